"""Discarded messages are counted once, by where they went and why."""

import pytest
from pamqp import commands

from leveret.features.dead_letter.counters import DeathLabels
from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def client(stage):
    return Client(stage).open()


def reject(client, queue, count):
    client.consume(queue, tag=queue)
    for delivery in client.deliveries()[:count]:
        client.send(commands.Basic.Reject(delivery.tag, requeue=False))
    client.call(commands.Basic.Cancel(queue))


def test_what_nobody_keeps_is_counted_as_lost(stage, client):
    client.declare("q", arguments={"x-max-length": 2})
    client.publish("q", b"1", b"2", b"3", b"4", b"5")
    assert stage.broker.dead_letter_counters.deaths == {
        DeathLabels("classic", "disabled", "maxlen"): 3
    }


def test_letters_are_counted_by_reason(stage, client):
    client.declare("dead")
    client.declare(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    client.publish("q", b"1", b"2", b"3")
    reject(client, "q", 2)
    assert stage.broker.dead_letter_counters.deaths == {
        DeathLabels("classic", "at_most_once", "rejected"): 2
    }
    assert client.count("dead") == 2


def test_letters_that_must_arrive_count_when_they_have(stage, client):
    client.declare(
        "q",
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )
    client.publish("q", b"1", b"2")
    reject(client, "q", 2)
    assert not stage.broker.dead_letter_counters.deaths
    client.declare("dead", durable=True)
    stage.advance(6)
    stage.advance(6)
    assert stage.broker.dead_letter_counters.deaths == {
        DeathLabels("quorum", "at_least_once", "rejected"): 2
    }


def test_retries_are_counted_by_what_failed(stage, client):
    client.declare("q", durable=True, arguments={"x-retry-attempts": 3, "x-retry-delay": 1000})
    client.publish("q", b"1")
    reject(client, "q", 1)
    assert stage.broker.dead_letter_counters.retries == {"rejected": 1}
    assert not stage.broker.dead_letter_counters.deaths
