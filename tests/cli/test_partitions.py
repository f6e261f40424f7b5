"""Commands on messages, retries and dead letters of a queue with several partitions."""

import pika
import pytest

from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000
KEYS = "a", "order-42"  # of partition 0, and of partition 1


@pytest.fixture
def leveret(node):
    return CommandLine(node.data_dir)


def declare(channel, name, **arguments):
    """A queue with one message in partition 0 and three in partition 1."""
    channel.queue_declare(name, durable=True, arguments={"x-partitions": 2, **arguments})
    for number, partition in enumerate((0, 1, 1, 1)):
        properties = pika.BasicProperties(
            message_id=f"m{number}", delivery_mode=2, headers={"x-partition-key": KEYS[partition]}
        )
        channel.basic_publish("", name, b"body %d" % number, properties)


def reject_all(channel, queue):
    for _ in range(4):
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=False)


def test_single_messages_of_a_partition(leveret, channel):
    declare(channel, "parted")
    declare(channel, "there")

    def payloads(queue, partition):
        rows = leveret.json("message", "list", queue, "--partition", partition)
        return [row["payload"] for row in rows]

    assert payloads("parted", "1") == ["body 1", "body 2", "body 3"]
    rows = leveret.json("message", "list", "parted")[:3]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (1, 0), (1, 1)]
    first, second, *_ = leveret("message", "list", "parted").splitlines()
    assert first.split()[:2] == ["partition", "offset"]
    assert second.split()[:2] == ["0", "0"]
    for verb in (("show", "parted", "0"), ("edit", "parted", "0", "--payload", "new")):
        said = leveret("message", *verb, status=1)
        assert "queue 'parted' has the partitions 0 to 1: state one of them" in said
    said = leveret("message", "show", "parted", "0", "--partition", "7", status=1)
    assert "has the partitions 0 to 1" in said
    assert "payload: body 2\n" in leveret("message", "show", "parted", "1", "--partition", "1")
    told = leveret("message", "trace", "parted", "1", "--partition", "1")
    assert told.startswith("message 1 of partition 1 of queue parted\n")
    one = ("parted", "0", "--partition", "1")
    assert "changed" in leveret("message", "edit", *one, "--payload", "new")
    assert payloads("parted", "1") == ["body 2", "body 3", "new"]
    some = ("parted", "--partition", "1", "--message-id", "m2")
    assert "1 message was copied" in leveret("message", "copy", *some, "--to-queue", "there")
    assert "1 message was moved" in leveret("message", "move", *some, "--to-queue", "there")
    assert payloads("there", "1")[3:] == ["body 2", "body 2"]
    said = leveret("message", "delete", "parted", "--partition", "1", status=1)
    assert "state which messages" in said
    leveret("message", "delete", "parted", "--partition", "1", "--text", "new")
    assert (payloads("parted", "0"), payloads("parted", "1")) == (["body 0"], ["body 3"])
    told = leveret("message", "move", "parted", "--partition", "0", "--to-queue", "there")
    assert "1 message was moved" in told
    leveret("message", "move", "parted", "--partition", "0", "--to-queue", "there")  # none is left


def test_retries_of_a_partition(leveret, channel):
    declare(channel, "retried", **{"x-retry-delays": [HOUR_MS]})
    reject_all(channel, "retried")

    def ids(partition):
        rows = leveret.json("retry", "list", "retried", "--partition", partition)
        return [row["id"] for row in rows]

    wait_until(lambda: (len(ids("0")), len(ids("1"))) == (1, 3))
    first, second, _ = ids("1")
    rows = leveret.json("retry", "list", "retried")
    assert [row["partition"] for row in rows] == [0, 1, 1, 1]
    assert leveret("retry", "list", "retried").startswith("partition  id")
    assert "state one of them" in leveret("retry", "show", "retried", second, status=1)
    there = ("--partition", "1")
    assert "message_id: m2\n" in leveret("retry", "show", "retried", second, *there)
    assert "1 message was retried" in leveret("retry", "retry-now", "retried", first, *there)
    assert "2 messages were deleted" in leveret("retry", "cancel", "retried", "--all", *there)
    assert len(ids("0")) == 1


def test_dead_letters_of_a_partition(leveret, channel):
    declare(channel, "dying", **{"x-dead-letter-topic": True})
    channel.queue_declare("dying.dlq", durable=True, arguments={"x-partitions": 2})
    reject_all(channel, "dying")
    there = ("dying.dlq", "--partition", "1")

    def ids(partition):
        rows = leveret.json("dlq", "list", "dying.dlq", "--partition", partition)
        return [row["message_id"] for row in rows]

    wait_until(lambda: (ids("0"), ids("1")) == (["m0"], ["m1", "m2", "m3"]))
    rows = leveret.json("dlq", "list", "dying.dlq")
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert leveret("dlq", "list", "dying.dlq").startswith("partition  offset")
    assert "state one of them" in leveret("dlq", "show", "dying.dlq", "1", status=1)
    assert "payload: body 2\n" in leveret("dlq", "show", "dying.dlq", "1", "--partition", "1")
    leveret("dlq", "delete", *there, "--offset", "0")
    assert "1 moved" in leveret("dlq", "redrive", *there, "--offset", "1")
    assert "1 moved" in leveret("dlq", "status", *there)
    said = leveret("dlq", "status", "dying.dlq", "--partition", "0", status=1)
    assert "is not being redriven" in said
    assert "1 message was deleted" in leveret("dlq", "purge", *there)
    assert (ids("0"), ids("1")) == (["m0"], [])
    leveret("dlq", "redrive", *there)  # all of none
    said = leveret("dlq", "redrive", *there, "--offset", "9", status=1)
    assert "no message was redriven" in said
