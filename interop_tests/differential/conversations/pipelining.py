"""Methods sent in one write: each sees the effects of those before it on its channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, header

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

PERSISTENT = 2


def _publishes(queue: str, *bodies: bytes, **properties: Any) -> list[Any]:
    """The frames of messages to one queue."""
    frames: list[Any] = []
    for data in bodies:
        content = header.ContentHeader(0, len(data), commands.Basic.Properties(**properties))
        frames += [commands.Basic.Publish(routing_key=queue), content, body.ContentBody(data)]
    return frames


def _consumed(talk: Talk, prefetch: int = 0, **options: Any) -> tuple[Channel, str]:
    """A channel that consumes from a queue of its own."""
    channel, queue = talk.channel(), talk.name("q")
    channel.declare(queue, **options)
    if prefetch:
        channel.qos(prefetch)
    channel.consume(queue, "waiting")
    return channel, queue


@pytest.mark.covers("basic.get")
def a_get_leaves_what_a_consumer_waits_for(talk: Talk) -> None:
    channel, queue = _consumed(talk)
    channel.send(*_publishes(queue, b"one"), commands.Basic.Get(0, queue))
    channel.read_any_order(2)


@pytest.mark.covers("basic.get")
def a_get_leaves_persistent_messages_to_who_waits(talk: Talk) -> None:
    channel, queue = _consumed(talk, durable=True)
    published = _publishes(queue, b"one", delivery_mode=PERSISTENT)
    channel.send(*published, commands.Basic.Get(0, queue))
    channel.read_any_order(2)


@pytest.mark.covers("basic.get")
def a_get_takes_what_a_consumers_prefetch_leaves(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    other = channel.connection.channel(2)
    channel.declare(queue)
    other.qos(2)
    other.consume(queue, "c")
    channel.send(*_publishes(queue, b"1", b"2", b"3", b"4"), commands.Basic.Get(0, queue))
    channel.read_any_order(3)
    channel.count(queue, 1)


@pytest.mark.covers("basic.get")
def a_get_behind_a_consume_leaves_all_to_it(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    channel.declare(queue)
    channel.publish("", queue, b"one")
    channel.count(queue, 1)
    channel.send(
        commands.Basic.Consume(queue=queue, consumer_tag="c"), commands.Basic.Get(0, queue)
    )
    channel.read_any_order(3)


@pytest.mark.covers("basic.qos")
def a_get_behind_a_larger_prefetch_leaves_more_to_consumers(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    channel.declare(queue)
    channel.qos(1, shared=True)
    channel.consume(queue, "c")
    for data in (b"1", b"2", b"3"):
        channel.publish("", queue, data)
    channel.read()
    channel.count(queue, 2)
    channel.send(commands.Basic.Qos(0, 3, True), commands.Basic.Get(0, queue))
    channel.read_any_order(4)


@pytest.mark.covers("basic.qos")
def a_smaller_prefetch_comes_too_late_for_what_was_published(talk: Talk) -> None:
    channel, queue = _consumed(talk)
    channel.send(*_publishes(queue, b"1", b"2", b"3"), commands.Basic.Qos(0, 1, True))
    channel.read_any_order(4)


@pytest.mark.covers("basic.cancel")
def a_cancel_comes_too_late_for_what_was_published(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    channel.declare(queue)
    channel.consume(queue, "low")
    channel.consume(queue, "high", arguments={"x-priority": 10})
    bodies = [b"%d" % number for number in range(10)]
    channel.send(*_publishes(queue, *bodies), commands.Basic.Cancel("high"))
    channel.read_any_order(11)
    channel.connection.expect_quiet()


@pytest.mark.covers("basic.cancel")
def a_cancel_comes_too_late_for_persistent_messages(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    channel.declare(queue, durable=True)
    channel.consume(queue, "low")
    channel.consume(queue, "high", arguments={"x-priority": 10})
    published = _publishes(queue, b"1", b"2", b"3", delivery_mode=PERSISTENT)
    channel.send(*published, commands.Basic.Cancel("high"))
    channel.read_any_order(4)
    channel.connection.expect_quiet()


@pytest.mark.covers("basic.cancel")
def an_ack_brings_one_more_before_the_cancel(talk: Talk) -> None:
    channel, queue = _consumed(talk, prefetch=1)
    channel.publish("", queue, b"one")
    channel.publish("", queue, b"two")
    channel.read()
    channel.count(queue, 1)
    channel.send(commands.Basic.Ack(1), commands.Basic.Cancel("waiting"))
    channel.read_any_order(2)
    channel.count(queue, 0)


@pytest.mark.covers("basic.consume")
def a_preferred_consumer_comes_too_late_for_what_was_published(talk: Talk) -> None:
    channel, queue = _consumed(talk)
    channel.send(
        *_publishes(queue, b"1", b"2", b"3"),
        commands.Basic.Consume(queue=queue, consumer_tag="high", arguments={"x-priority": 10}),
    )
    channel.read_any_order(4)


@pytest.mark.covers("basic.nack")
def a_get_behind_a_requeue_sees_a_queue_within_its_limit(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    channel.declare(queue, arguments={"x-max-length": 2})
    for data in (b"1", b"2"):
        channel.publish("", queue, data)
    channel.count(queue, 2)
    channel.get(queue)
    channel.get(queue)
    for data in (b"3", b"4"):
        channel.publish("", queue, data)
    channel.count(queue, 2)
    channel.send(commands.Basic.Nack(2, True, True), commands.Basic.Get(0, queue))
    channel.read()


@pytest.mark.covers("queue.purge")
def a_purge_leaves_what_a_consumer_waits_for(talk: Talk) -> None:
    channel, queue = _consumed(talk, prefetch=1)
    channel.send(*_publishes(queue, b"1", b"2", b"3"), commands.Queue.Purge(queue=queue))
    channel.read_any_order(2)


@pytest.mark.covers("queue.delete")
def a_delete_counts_what_no_consumer_waits_for(talk: Talk) -> None:
    channel, queue = talk.channel(), talk.name("q")
    other = channel.connection.channel(2)
    channel.declare(queue)
    other.qos(1)
    other.consume(queue, "c")
    channel.send(*_publishes(queue, b"1", b"2", b"3"), commands.Queue.Delete(queue=queue))
    channel.read_any_order(3)


@pytest.mark.covers("tx")
def a_get_behind_a_commit_leaves_what_a_consumer_waits_for(talk: Talk) -> None:
    channel, queue = _consumed(talk)
    channel.call(commands.Tx.Select())
    channel.send(*_publishes(queue, b"one"), commands.Tx.Commit())
    channel.read_any_order(2)
    channel.get(queue)


@pytest.mark.covers("basic.recover")
def a_get_behind_a_recover_leaves_what_a_consumer_waits_for(talk: Talk) -> None:
    channel, queue = _consumed(talk)
    channel.publish("", queue, b"one")
    channel.read()
    channel.send(commands.Basic.Recover(requeue=True), commands.Basic.Get(0, queue))
    channel.read_any_order(3)
