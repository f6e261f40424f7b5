"""ack, nack, reject, recover: what comes back, where, and with which flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import body, commands, header

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk


def _with_messages(talk: Talk, count: int = 4) -> Channel:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    for number in range(1, count + 1):
        channel.publish("", talk.name("q"), b"%d" % number)
    return channel


def _get(channel: Channel, queue: str, count: int) -> None:
    for _ in range(count):
        channel.get(queue)


@pytest.mark.covers("basic.ack")
def ack_one_and_multiple(talk: Talk) -> None:
    channel = _with_messages(talk, 5)
    _get(channel, talk.name("q"), 4)
    channel.ack(2)
    channel.ack(3, multiple=True)
    channel.call(commands.Basic.Recover(requeue=True))
    _get(channel, talk.name("q"), 3)
    channel.ack(0, multiple=True)
    channel.call(commands.Basic.Recover(requeue=True))
    _get(channel, talk.name("q"), 1)


@pytest.mark.covers("B-211")
def ack_of_an_unknown_tag(talk: Talk) -> None:
    connection = talk.connection()
    for number, send in enumerate(("ack", "nack", "reject"), start=1):
        channel = connection.channel(number)
        getattr(channel, send)(42)
        channel.read_answer()


@pytest.mark.covers("B-211")
def ack_twice(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 2)
    channel.ack(1)
    channel.ack(1)
    channel.read_answer()


@pytest.mark.covers("B-211")
def ack_of_zero_without_multiple(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 2)
    channel.ack(0)
    channel.read_answer()


@pytest.mark.covers("basic.ack")
def ack_multiple_with_nothing_outstanding(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.ack(0, multiple=True)
    one.declare(talk.name("q"))
    one.ack(3, multiple=True)
    one.read_answer()


@pytest.mark.covers("B-211")
def ack_multiple_beyond_the_last_tag(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 2)
    channel.ack(9, multiple=True)
    channel.read_answer()


@pytest.mark.covers("B-211")
def ack_on_another_channel(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 1)
    other = channel.connection.channel(2)
    other.ack(1)
    other.read_answer()


@pytest.mark.covers("B-122", "basic.nack")
def reject_and_requeue(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 2)
    channel.reject(1, requeue=True)
    channel.reject(2, requeue=False)
    _get(channel, talk.name("q"), 4)


@pytest.mark.covers("B-122", "basic.nack")
def nack_multiple_requeues_in_order(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 3)
    channel.nack(3, multiple=True)
    _get(channel, talk.name("q"), 5)


@pytest.mark.covers("B-122")
def nack_in_reverse_keeps_the_place(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 3)
    for tag in (3, 1, 2):
        channel.nack(tag)
    _get(channel, talk.name("q"), 4)


@pytest.mark.covers("basic.nack")
def nack_of_zero_multiple_is_all(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 3)
    channel.nack(0, multiple=True, requeue=False)
    _get(channel, talk.name("q"), 2)


@pytest.mark.covers("B-122")
def requeue_to_the_same_consumer(talk: Talk) -> None:
    channel = _with_messages(talk, 3)
    channel.qos(1)
    channel.consume(talk.name("q"), "tag")
    channel.read()
    channel.nack(1)
    channel.read()
    channel.ack(2)
    channel.read()


@pytest.mark.covers("B-122", "basic.recover")
def recover_requeues(talk: Talk) -> None:
    channel = _with_messages(talk, 3)
    _get(channel, talk.name("q"), 2)
    channel.call(commands.Basic.Recover(requeue=True))
    _get(channel, talk.name("q"), 4)


@pytest.mark.covers("basic.recover")
def recover_async_requeues(talk: Talk) -> None:
    channel = _with_messages(talk, 3)
    _get(channel, talk.name("q"), 2)
    channel.send(commands.Basic.RecoverAsync(requeue=True))
    _get(channel, talk.name("q"), 4)


@pytest.mark.covers("basic.recover")
def recover_to_the_same_consumer(talk: Talk) -> None:
    channel = _with_messages(talk, 2)
    channel.consume(talk.name("q"), "tag")
    channel.read(2)
    channel.send(commands.Basic.Recover(requeue=True))
    channel.read_any_order(3)


@pytest.mark.covers("B-314")
def recover_without_requeue(talk: Talk) -> None:
    talk.channel().call(commands.Basic.Recover(requeue=False))


@pytest.mark.covers("B-122")
def channel_close_requeues(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 2)
    channel.close()
    other = channel.connection.channel(2)
    talk.await_messages(talk.name("q"), 4)
    _get(other, talk.name("q"), 4)


@pytest.mark.covers("B-122")
def lost_connection_requeues(talk: Talk) -> None:
    channel = _with_messages(talk)
    _get(channel, talk.name("q"), 2)
    channel.connection.hang_up()
    talk.await_messages(talk.name("q"), 4)
    _get(talk.channel(), talk.name("q"), 4)


@pytest.mark.covers("basic.cancel")
def cancel_keeps_what_was_delivered(talk: Talk) -> None:
    channel = _with_messages(talk, 2)
    channel.qos(1)
    channel.consume(talk.name("q"), "tag")
    channel.read()
    channel.call(commands.Basic.Cancel("tag"))
    channel.count(talk.name("q"), 1)
    channel.ack(1)
    _get(channel, talk.name("q"), 2)


@pytest.mark.covers("B-211", "B-015")
def publishes_behind_a_wrong_ack_are_ignored(talk: Talk) -> None:
    """Sent in one write, so that the broker reads them at once."""
    channel = _with_messages(talk, 2)
    channel.get(talk.name("q"))
    channel.ack(1)
    content = header.ContentHeader(0, 4), body.ContentBody(b"late")
    publish = commands.Basic.Publish(exchange="", routing_key=talk.name("q"))
    channel.send(commands.Basic.Ack(1), publish, *content, publish, *content)
    channel.read_answer()
    other = channel.connection.channel(2)
    other.count(talk.name("q"), 1)


@pytest.mark.covers("B-211", "B-112")
def wrong_acks_in_a_transaction(talk: Talk) -> None:
    channel = _with_messages(talk)
    connection = channel.connection
    channel.call(commands.Tx.Select())
    _get(channel, talk.name("q"), 2)
    channel.ack(1)
    channel.ack(1)
    channel.read_answer()
    two = connection.channel(2)
    two.call(commands.Tx.Select())
    two.ack(7)
    two.read_answer()
    three = connection.channel(3)
    three.call(commands.Tx.Select())
    three.get(talk.name("q"))
    three.ack(1)
    three.call(commands.Tx.Rollback())
    three.ack(1)
    three.call(commands.Tx.Commit())
    three.ack(1)
    three.read_answer()


@pytest.mark.covers("B-122")
def requeued_come_before_later_ones_for_another_consumer(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"))
    for number in range(1, 5):
        one.publish("", talk.name("q"), b"%d" % number)
    one.qos(3)
    one.consume(talk.name("q"), "first")
    one.read(3)
    one.close()
    two.consume(talk.name("q"), "second")
    two.read(4)
