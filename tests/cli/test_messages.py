"""`leveret message …` on a running node."""

import json

import pika
import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def leveret(node):
    return CommandLine(node.data_dir, "message")


@pytest.fixture
def channel(channel):
    channel.queue_declare("q", durable=True)
    channel.queue_declare("other", durable=True)
    for number in range(4):
        properties = pika.BasicProperties(
            message_id=f"m{number}",
            delivery_mode=2,
            headers={"x-tags": ["even" if number % 2 == 0 else "odd"], "n": number},
        )
        channel.basic_publish("", "q", b"body %d" % number, properties)
    yield channel
    channel.queue_delete("q")
    channel.queue_delete("other")


def bodies(channel, queue):
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0]:
        found.append(got[2])
    return found


def count(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def test_messages_are_listed_and_shown_without_being_delivered(leveret, channel):
    lines = leveret("list", "q").splitlines()
    assert lines[0].split() == [
        "offset",
        "state",
        "stored_at",
        "message_id",
        "exchange",
        "routing_key",
        "payload_bytes",
    ]
    assert [line.split()[3] for line in lines[1:]] == ["m0", "m1", "m2", "m3"]
    told = leveret("list", "q", "--newest-first", "--limit", "2", "--json").splitlines()
    assert told[1] == "the first 2 shown; there are more: --limit 0 shows all"
    rows = json.loads(told[0])
    assert [row["payload"] for row in rows] == ["body 3", "body 2"]
    assert "payload: body 1\n" in leveret("show", "q", rows[1]["offset"] - 1)
    assert "no message 99" in leveret("show", "q", "99", status=1)
    method, _, _ = channel.basic_get("q")
    assert not method.redelivered


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        (("--tags", "odd"), ["m1", "m3"]),
        (("--sql", "n > 2"), ["m3"]),
        (("--message-id", "m1", "--message-id", "m2"), ["m1", "m2"]),
        (("--since", "2100-01-01"), []),
        (("--state", "unacked"), []),
        (("--exchange", "", "--routing-key", "q", "--tags", "even"), ["m0", "m2"]),
    ],
)
def test_messages_are_chosen(leveret, channel, selected, found):
    rows = leveret.json("list", "q", *selected)
    assert [row["properties"]["message_id"] for row in rows] == found


def test_where_messages_went(leveret, channel):
    method, _, _ = channel.basic_get("q")
    leveret("copy", "q", "--message-id", "m0", "--to-queue", "other")
    [row] = leveret.json("list", "q", "--state", "unacked")
    lines = leveret("trace", "q", row["offset"]).splitlines()
    assert lines[0] == f"message {row['offset']} of queue q"
    assert "Published to the default exchange with key 'q'" in lines[1]
    assert f"Stored in queue q as offset {row['offset']}" in lines[2]
    assert "Delivered to a basic.get on channel 1 of 127.0.0.1:" in lines[3]
    found = leveret.json("trace", "--message-id", "m0")
    assert [(each["queue"], each["state"]) for each in found] == [
        ("other", "ready"),
        ("q", "unacked"),
    ]
    assert "no message with id 'none'" in leveret("trace", "--message-id", "none", status=1)
    assert "state a queue and an offset" in leveret("trace", "q", status=1)
    channel.basic_nack(method.delivery_tag)


def test_messages_are_deleted_moved_and_copied(leveret, channel):
    assert leveret("delete", "q", "--header", "n=0") == "1 message was deleted\n"
    assert leveret("move", "q", "--tags", "odd", "--to-queue", "other") == "2 messages were moved\n"
    assert bodies(channel, "other") == [b"body 1", b"body 3"]
    there = ("--to-exchange", "", "--to-key", "other")
    assert leveret.json("copy", "q", *there)["copied"] == 1
    assert (bodies(channel, "q"), bodies(channel, "other")) == ([b"body 2"], [b"body 2"])


def test_copies_into_the_same_queue_come_to_an_end(leveret, channel):
    there = ("--to-exchange", "", "--to-key", "q")
    assert leveret("copy", "q", *there) == "4 messages were copied\n"
    assert count(channel, "q") == 8


def test_what_a_consumer_has_is_left(leveret, channel):
    channel.basic_get("q")
    told = leveret("move", "q", "--to-queue", "other", status=1)
    assert told == "3 messages were moved\n1 message was left: with a consumer\n"


def test_a_message_is_changed(leveret, channel):
    (row,) = leveret.json("list", "q", "--message-id", "m0")
    change = ("--payload", "new", "--headers", '{"by": "hand", "n": null}')
    assert leveret("edit", "q", row["offset"], *change) == "1 message was changed\n"
    (row,) = leveret.json("list", "q", "--message-id", "m0")
    assert row["payload"] == "new"
    assert row["properties"]["headers"] == {"x-tags": ["even"], "by": "hand"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("delete", "q"), "state which messages"),
        (("move", "q"), "state either a queue or an exchange"),
        (("move", "q", "--to-queue", "other", "--to-key", "k"), "--to-key is for --to-exchange"),
        (("list", "q", "--sql", "a >"), "expected a value"),
        (("edit", "q", "0"), "state payload"),
    ],
)
def test_what_is_refused(leveret, channel, arguments, why):
    assert why in leveret(*arguments, status=1)


def test_a_payload_does_not_steer_the_terminal(leveret, channel):
    channel.basic_publish("", "other", b"\x1b]0;x\x07")
    assert "payload: \\u001b]0;x\\u0007\n" in leveret("show", "other", "0")
