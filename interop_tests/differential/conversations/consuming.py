"""Consumers: tags, exclusivity, prefetch, cancellation, and queues that go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk


def _publish_numbers(channel: Channel, queue: str, count: int) -> None:
    for number in range(1, count + 1):
        channel.publish("", queue, b"%d" % number)


@pytest.mark.covers("basic.consume", "basic.cancel")
def consume_and_cancel(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.consume(talk.name("q"), "mine")
    channel.publish("", talk.name("q"))
    channel.read()
    channel.ack(1)
    channel.count(talk.name("q"))
    channel.call(commands.Basic.Cancel("mine"))
    channel.call(commands.Basic.Cancel("mine"))
    channel.publish("", talk.name("q"))
    channel.count(talk.name("q"), 1)


@pytest.mark.covers("B-120")
def server_made_tag(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.consume(talk.name("q"))
    channel.publish("", talk.name("q"))
    channel.read()


@pytest.mark.covers("B-201")
def consume_a_missing_queue(talk: Talk) -> None:
    talk.channel().consume(talk.name("missing"), "tag")


@pytest.mark.covers("B-307")
def duplicate_tag(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.declare(talk.name("q"))
    channel.consume(talk.name("q"), "tag")
    connection.channel(2).consume(talk.name("q"), "tag")
    channel.consume(talk.name("q"), "tag")


@pytest.mark.covers("B-120", "B-234")
def exclusive_consumer(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.declare(talk.name("q"))
    one.consume(talk.name("q"), "alone", exclusive=True)
    connection.channel(2).consume(talk.name("q"), "second")
    connection.channel(3).consume(talk.name("q"), "third", exclusive=True)
    one.call(commands.Basic.Cancel("alone"))
    one.consume(talk.name("q"), "shared")
    connection.channel(4).consume(talk.name("q"), "fourth", exclusive=True)


@pytest.mark.covers("basic.consume", "B-211")
def consume_without_acks(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    _publish_numbers(channel, talk.name("q"), 3)
    channel.consume(talk.name("q"), "tag", no_ack=True)
    channel.read(3)
    channel.count(talk.name("q"), 0)
    channel.ack(1)
    channel.read_answer()


@pytest.mark.covers("B-121", "basic.qos")
def prefetch_for_each_consumer(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    _publish_numbers(channel, talk.name("q"), 5)
    channel.qos(2)
    channel.consume(talk.name("q"), "one")
    channel.read(2)
    channel.consume(talk.name("q"), "two")
    channel.read(2)
    channel.expect_quiet()
    channel.ack(1)
    channel.read()
    channel.ack(5, multiple=True)
    channel.expect_quiet()


@pytest.mark.covers("B-121")
def prefetch_changed_later(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    _publish_numbers(channel, talk.name("q"), 4)
    channel.qos(1)
    channel.consume(talk.name("q"), "one")
    channel.read()
    channel.qos(0)
    channel.expect_quiet()
    channel.consume(talk.name("q"), "two")
    channel.read(3)


@pytest.mark.covers("B-121", "basic.qos")
def prefetch_over_the_channel(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    _publish_numbers(channel, talk.name("q"), 6)
    channel.qos(3, shared=True)
    channel.consume(talk.name("q"), "one")
    channel.read(3)
    channel.consume(talk.name("q"), "two")
    channel.expect_quiet()
    channel.ack(3, multiple=True)
    channel.read_any_order(3)
    channel.expect_quiet()


@pytest.mark.covers("B-121")
def prefetch_does_not_bind_get_or_no_ack(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    _publish_numbers(channel, talk.name("q"), 4)
    channel.qos(1)
    for _ in range(2):
        channel.get(talk.name("q"))
    channel.consume(talk.name("q"), "tag", no_ack=True)
    channel.read(2)


@pytest.mark.covers("B-314")
def prefetch_size_is_not_implemented(talk: Talk) -> None:
    talk.channel().call(commands.Basic.Qos(1024, 1, False))


def consumers_take_turns(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.consume(talk.name("q"), "one")
    channel.consume(talk.name("q"), "two")
    for number in range(4):
        channel.publish("", talk.name("q"), b"%d" % number)
        channel.read()


@pytest.mark.covers("B-120")
def consumer_priority(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.qos(1)
    channel.consume(talk.name("q"), "low")
    channel.consume(talk.name("q"), "high", arguments={"x-priority": 10})
    for number in range(3):
        channel.publish("", talk.name("q"), b"%d" % number)
        if number < 2:
            channel.read()
    channel.expect_quiet()


@pytest.mark.covers("B-217")
def consumer_priority_of_wrong_type(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.consume(talk.name("q"), "tag", arguments={"x-priority": "high"})


@pytest.mark.covers("B-123", "B-205")
def single_active_consumer(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"), arguments={"x-single-active-consumer": True})
    one.consume(talk.name("q"), "first")
    two.consume(talk.name("q"), "second")
    _publish_numbers(one, talk.name("q"), 2)
    one.read(2)
    one.ack(2, multiple=True)
    one.call(commands.Basic.Cancel("first"))
    _publish_numbers(one, talk.name("q"), 1)
    two.read()
    connection.channel(3).get(talk.name("q"))
    connection.channel(4).consume(talk.name("q"), "alone", exclusive=True)


@pytest.mark.covers("B-120", "basic.cancel")
def cancelled_when_the_queue_is_deleted(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"))
    one.consume(talk.name("q"), "tag")
    two.send(commands.Queue.Delete(queue=talk.name("q")))
    connection.read_any_order(2)
    one.count("amq.none")


@pytest.mark.covers("B-120", "queue.delete")
def cancelled_by_ones_own_delete(talk: Talk) -> None:
    channel = talk.channel()
    for durable in (False, True):
        channel.declare(talk.name("q"), durable=durable)
        channel.consume(talk.name("q"), "tag")
        channel.call(commands.Queue.Delete(queue=talk.name("q")))
        channel.read()


@pytest.mark.covers("connection")
def cancel_ok_from_a_client(talk: Talk) -> None:
    channel = talk.channel()
    channel.send(commands.Basic.CancelOk("tag"))
    channel.count("amq.none")


@pytest.mark.covers("B-120")
def cancel_is_not_told_to_those_who_do_not_know_it(talk: Talk) -> None:
    connection = talk.connection(capabilities={})
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"))
    one.consume(talk.name("q"), "tag")
    two.call(commands.Queue.Delete(queue=talk.name("q")))
    connection.expect_quiet()


@pytest.mark.covers("nowait")
def nowait_consume_and_cancel(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.send(commands.Basic.Consume(queue=talk.name("q"), consumer_tag="tag", nowait=True))
    channel.publish("", talk.name("q"))
    channel.read()
    channel.ack(1)
    channel.send(commands.Basic.Cancel("tag", True))
    channel.publish("", talk.name("q"))
    channel.count(talk.name("q"), 1)
    channel.send(commands.Queue.Purge(queue=talk.name("q"), nowait=True))
    channel.count(talk.name("q"), 0)
    channel.send(commands.Queue.Delete(queue=talk.name("q"), nowait=True))
    channel.count(talk.name("q"))


@pytest.mark.covers("nowait")
def nowait_errors_are_still_told(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.send(commands.Basic.Consume(queue=talk.name("missing"), nowait=True))
    one.read_answer()
    two = connection.channel(2)
    two.send(commands.Queue.Bind(0, talk.name("missing"), "amq.direct", "k", True))
    two.read_answer()


@pytest.mark.covers("B-124", "B-204")
def exclusive_queue_is_for_one_connection(talk: Talk) -> None:
    owner, other = talk.connection(), talk.connection()
    owner.channel(1).declare(talk.name("q"), exclusive=True)
    owner.channel(2).declare(talk.name("q"), exclusive=True)
    queue = talk.name("q")
    other.channel(1).declare(queue, exclusive=True)
    other.channel(2).count(queue)
    other.channel(3).get(queue)
    other.channel(4).consume(queue, "tag")
    other.channel(5).bind(queue, "amq.direct", "k")
    other.channel(6).call(commands.Queue.Purge(queue=queue))
    other.channel(7).call(commands.Queue.Delete(queue=queue))
    publisher = other.channel(8)
    publisher.publish("", queue, mandatory=True)
    publisher.expect_quiet()
    owner.channel(3).get(queue)
    owner.close()
    publisher.count(queue)


@pytest.mark.covers("B-124")
def exclusive_queue_goes_with_a_lost_connection(talk: Talk) -> None:
    owner = talk.connection()
    owner.channel().declare(talk.name("q"), exclusive=True)
    owner.hang_up()
    talk.await_gone(talk.name("q"))


@pytest.mark.covers("B-125")
def auto_delete_queue(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.declare(talk.name("q"), auto_delete=True)
    channel.publish("", talk.name("q"))
    channel.get(talk.name("q"), no_ack=True)
    channel.consume(talk.name("q"), "one")
    channel.consume(talk.name("q"), "two")
    channel.call(commands.Basic.Cancel("one"))
    channel.count(talk.name("q"), 0)
    channel.call(commands.Basic.Cancel("two"))
    talk.await_gone(talk.name("q"))
    channel.count(talk.name("q"))


@pytest.mark.covers("B-125")
def auto_delete_queue_goes_with_its_channel(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.declare(talk.name("q"), auto_delete=True)
    channel.consume(talk.name("q"), "one")
    channel.close()
    talk.await_gone(talk.name("q"))
