"""Messages that an operator puts back are no duplicates, in whatever queue has a window."""

from __future__ import annotations

import time

import pytest

from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import await_count, connected, declare, drained, publish
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

KINDS = {
    "classic": {"dedup_window": True},
    "quorum": {"queue_type": "quorum", "dedup_window": 600_000},
    "policy": {},
}


def ask(broker, operation, **parameters):
    answer = request(broker.data / "control.sock", operation, parameters)
    assert answer["ok"], answer
    return answer["result"]


def redrive(broker, queue, **target):
    parameters = {
        "offsets": [],
        "message_ids": [],
        "reason": None,
        "source": None,
        "headers": {},
        "since": None,
        "until": None,
        "exchange": None,
        "routing_key": None,
        "routed": False,
        "rate": None,
    }
    ask(broker, "dlq.redrive", vhost="/", queue=queue, **{**parameters, **target})
    deadline = time.monotonic() + LIMIT_SECONDS
    while (told := ask(broker, "dlq.status", vhost="/", queue=queue))["phase"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (told["phase"], told["moved"]) == ("done", 1), told


def move(broker, source, **where):
    target = {"to_queue": None, "exchange": None, "routing_key": None, **where}
    choice = {"select": {}, "after": None, "limit": None}
    told = ask(broker, "message.move", vhost="/", queue=source, **choice, **target)
    assert told["moved"] == 1, told


def duplicates(broker):
    return sum(window["duplicates"] for window in ask(broker, "dedup.list", vhost="/"))


@pytest.mark.covers("C-206")
@pytest.mark.covers("C-207")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_back_arrives_within_the_window_over_a_kill(tmp_path, kind):
    with BrokerProcess(tmp_path / "data") as broker:
        if kind == "policy":
            rule = {"pattern": "^w$", "apply_to": "queues", "priority": 0, "operator": False}
            definition = {"dedup-window": 600_000}
            ask(broker, "policy.set", vhost="/", name="p", definition=definition, **rule)
        connection, channel = connected(broker)
        declare(channel, "w", dead_letter_topic=True, **KINDS[kind])
        declare(channel, "aside")
        channel.exchange_declare("x", "fanout", durable=True, arguments={"x-dedup-window": True})
        channel.queue_bind("w", "x")
        publish(channel, "w", b"a", message_id="1")
        publish(channel, "w", b"again", message_id="1")  # the one duplicate there is
        for target in ({}, {"routed": True}, {"exchange": "x"}):
            method, _, _ = channel.basic_get("w")
            channel.basic_reject(method.delivery_tag, requeue=False)
            await_count(channel, "w.dlq", 1)
            redrive(broker, "w.dlq", **target)
            await_count(channel, "w", 1)
        move(broker, "w", to_queue="aside")
        move(broker, "aside", to_queue="w")
        move(broker, "w", to_queue="aside")
        move(broker, "aside", exchange="x")
        (seen,) = ask(
            broker,
            "message.list",
            vhost="/",
            queue="w",
            select={},
            after=None,
            limit=None,
            backwards=False,
            truncate=None,
            encoding=None,
            **{"from": None},
        )["messages"]
        edit = {"queue": "w", "offset": seen["offset"], "changes": {"payload": "b"}}
        assert ask(broker, "message.edit", vhost="/", **edit) == {"edited": 1}
        assert duplicates(broker) == 1
        connection.close()
        time.sleep(0.5)  # whatever is settled is written down
        broker.kill()
        broker.start()
        connection, channel = connected(broker)
        publish(channel, "w", b"again", message_id="1")
        channel.basic_publish("x", "", b"new to x")
        assert drained(channel, "w") == ["b", "new to x"]
        assert duplicates(broker) == 1
        connection.close()
        broker.check_untroubled()


def test_each_delivery_of_a_repeating_message_arrives(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        declare(channel, "w", dedup_window=True)
        repeating = {"x-repeat-every": 50, "x-repeat-count": 3}
        publish(channel, "w", b"tick", message_id="tick", headers=repeating)
        await_count(channel, "w", 3)
        publish(channel, "w", b"tick", message_id="tick")
        assert drained(channel, "w") == ["tick"] * 3
        connection.close()


def test_each_question_about_a_half_message_arrives(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        declare(channel, "checks", dedup_window=True)
        half = {
            "x-prepare": True,
            "x-prepare-id": "h",
            "x-dedup-id": "h",
            "x-check-queue": "checks",
            "x-check-after": 50,
        }
        publish(channel, "checks", b"half", headers=half)
        deadline = time.monotonic() + LIMIT_SECONDS
        while channel.queue_declare("checks", passive=True).method.message_count < 2:
            assert time.monotonic() < deadline, "asked once only"
            time.sleep(0.05)
        connection.close()
