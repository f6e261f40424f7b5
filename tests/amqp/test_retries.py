"""Retries as clients see them: the failures that count, and the ladders that are refused."""

import pytest
from pamqp import commands, header

from tests.support.client import Client
from tests.support.stage import Stage

LADDER = {"x-retry-delays": [1000]}


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open(1, 2)


def reasons(client):
    """How the messages that came had failed last."""
    return [
        (value.properties.headers or {}).get("x-last-failure-reason")
        for _, value in client.received()
        if isinstance(value, header.ContentHeader)
    ]


def declare(client, *failures):
    on = {"x-retry-on": list(failures)} if failures else {}
    client.declare("q", durable=True, arguments={**LADDER, **on})
    client.publish("q", b"m")


@pytest.mark.parametrize(
    ("failure", "method", "reason"),
    [
        ("reject", commands.Basic.Reject(1, False), "rejected"),
        ("reject", commands.Basic.Nack(1, False, False), "rejected"),
        ("requeue", commands.Basic.Nack(1), "requeued"),
        ("requeue", commands.Basic.Reject(1), "requeued"),
    ],
)
def test_a_consumer_that_fails_gets_the_message_later(stage, client, failure, method, reason):
    declare(client, failure)
    client.consume("q")
    assert reasons(client) == [None]
    client.send(method)
    stage.run()
    assert reasons(client) == []
    stage.advance(1.1)
    assert reasons(client) == [reason]


def test_a_channel_that_ends_fails_what_it_holds(stage, client):
    declare(client, "disconnect")
    client.consume("q")
    client.send(commands.Channel.Close(200, "", 0, 0))
    stage.run()
    client.received()
    assert client.count("q", 2) == 0
    stage.advance(1.1)
    assert client.count("q", 2) == 1


def test_what_is_not_asked_for_comes_back_at_once(stage, client):
    declare(client)
    client.consume("q")
    client.received()
    client.send(commands.Basic.Nack(1))
    stage.run()
    assert reasons(client) == [None]


@pytest.mark.parametrize(
    ("name", "value"), [("x-retry-delays", []), ("x-retry-max-attempts", "often")]
)
def test_a_message_with_a_wrong_ladder_is_refused(client, name, value):
    declare(client)
    client.publish("q", b"m", headers={name: value})
    closed = next(
        value for _, value in client.received() if isinstance(value, commands.Channel.Close)
    )
    assert closed.reply_code == 406
    assert f"invalid header '{name}'" in closed.reply_text
    assert client.count("q", 2) == 1
