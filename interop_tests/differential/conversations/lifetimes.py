"""Automatic deletion: chains of exchanges, queues with their consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk


@pytest.mark.covers("B-108", "B-104")
def auto_delete_exchanges_go_one_after_the_other(talk: Talk) -> None:
    channel = talk.channel()
    for word in ("one", "two", "three"):
        channel.exchange(talk.name(word), "fanout", auto_delete=True)
    bind = commands.Exchange.Bind
    channel.call(bind(0, talk.name("two"), talk.name("one")))
    channel.call(bind(0, talk.name("three"), talk.name("two")))
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("three"))
    channel.call(commands.Queue.Delete(queue=talk.name("q")))
    for number, word in enumerate(("one", "two", "three"), start=2):
        channel.connection.channel(number).exchange(talk.name(word), passive=True)


@pytest.mark.covers("B-108")
def auto_delete_exchange_is_not_kept_by_what_flows_into_it(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "fanout", auto_delete=True)
    channel.call(commands.Exchange.Bind(0, talk.name("x"), "amq.fanout", "in"))
    channel.call(commands.Exchange.Unbind(0, talk.name("x"), "amq.fanout", "in"))
    channel.exchange(talk.name("x"), passive=True)
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("x"))
    channel.call(commands.Exchange.Bind(0, talk.name("x"), "amq.fanout", "in"))
    channel.call(commands.Queue.Unbind(0, talk.name("q"), talk.name("x")))
    channel.exchange(talk.name("x"), passive=True)


@pytest.mark.covers("B-108")
def auto_delete_exchange_goes_by_an_unbind_of_exchanges(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "fanout", auto_delete=True)
    channel.call(commands.Exchange.Bind(0, "amq.fanout", talk.name("x"), "out"))
    channel.call(commands.Exchange.Unbind(0, "amq.fanout", talk.name("x"), "other"))
    channel.exchange(talk.name("x"), passive=True)
    channel.call(commands.Exchange.Unbind(0, "amq.fanout", talk.name("x"), "out"))
    channel.exchange(talk.name("x"), passive=True)


@pytest.mark.covers("B-105")
def alternates_of_alternates(talk: Talk) -> None:
    channel = talk.channel()
    names = [talk.name(word) for word in ("one", "two", "three")]
    for name, alternate in zip(names, [*names[1:], names[0]], strict=True):
        channel.exchange(name, "direct", arguments={"alternate-exchange": alternate})
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("three"), "known")
    channel.publish(talk.name("one"), "known", mandatory=True)
    channel.get(talk.name("q"), no_ack=True)
    channel.publish(talk.name("one"), "unknown", mandatory=True)
    channel.read()


@pytest.mark.covers("B-105", "B-104")
def alternate_of_an_exchange_that_is_bound_to(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("spare"), "fanout")
    channel.exchange(
        talk.name("end"), "direct", arguments={"alternate-exchange": talk.name("spare")}
    )
    channel.exchange(talk.name("start"), "fanout")
    channel.call(commands.Exchange.Bind(0, talk.name("end"), talk.name("start")))
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("spare"))
    channel.publish(talk.name("start"), "nowhere", mandatory=True)
    channel.get(talk.name("q"), no_ack=True)


@pytest.mark.covers("B-105", "B-108")
def alternate_may_be_internal(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("spare"), "fanout", internal=True)
    channel.exchange(talk.name("x"), "direct", arguments={"alternate-exchange": talk.name("spare")})
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("spare"))
    channel.publish(talk.name("x"), "nowhere", mandatory=True)
    channel.get(talk.name("q"), no_ack=True)


@pytest.mark.covers("B-125", "B-126")
def server_named_auto_delete_queue(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare("", auto_delete=True)
    channel.consume("", "tag", exclusive=True)
    channel.publish("amq.direct", "nowhere")
    channel.call(commands.Basic.Cancel("tag"))
    channel.declare("", passive=True)


@pytest.mark.covers("queue.delete", "B-120")
def deletion_cancels_consumers_of_all_channels(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"))
    for word in (b"one", b"two", b"three"):
        one.publish("", talk.name("q"), word)
    one.count(talk.name("q"), 3)
    one.qos(1)
    one.consume(talk.name("q"), "first")
    one.read()
    two.qos(1)
    two.consume(talk.name("q"), "second")
    two.read()
    other = talk.channel()
    other.call(commands.Queue.Delete(queue=talk.name("q")))
    connection.read_any_order(2)
    one.ack(1)
    two.nack(1)
    one.count("amq.none")


@pytest.mark.covers("basic.cancel", "B-122")
def recover_after_a_cancel(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    for word in (b"one", b"two"):
        channel.publish("", talk.name("q"), word)
    channel.consume(talk.name("q"), "tag")
    channel.read(2)
    channel.call(commands.Basic.Cancel("tag"))
    channel.call(commands.Basic.Recover(requeue=True))
    channel.count(talk.name("q"), 2)
    channel.consume(talk.name("q"), "tag")
    channel.read(2)
    channel.ack(4, multiple=True)
    channel.expect_quiet()


@pytest.mark.covers("basic.get", "basic.consume")
def tags_count_over_gets_and_deliveries(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.declare(talk.name("r"))
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
        channel.publish("", talk.name("r"), word)
    channel.get(talk.name("q"))
    channel.consume(talk.name("r"), "tag", no_ack=True)
    channel.read(3)
    channel.get(talk.name("q"), no_ack=True)
    channel.get(talk.name("q"))
    channel.ack(6, multiple=True)
    channel.ack(1)
    channel.read_answer()


@pytest.mark.covers("nowait")
def nowait_of_exchanges(talk: Talk) -> None:
    channel = talk.channel()
    for word in ("one", "two"):
        channel.send(commands.Exchange.Declare(exchange=talk.name(word), nowait=True))
    bind = commands.Exchange.Bind(0, talk.name("two"), talk.name("one"), "k", True)
    unbind = commands.Exchange.Unbind(0, talk.name("two"), talk.name("one"), "k", True)
    channel.send(bind)
    channel.send(unbind)
    channel.send(commands.Exchange.Delete(exchange=talk.name("two"), nowait=True))
    channel.exchange(talk.name("one"), passive=True)
    channel.exchange(talk.name("two"), passive=True)


@pytest.mark.covers("B-121")
def prefetch_of_both_kinds(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    for number in range(1, 9):
        channel.publish("", talk.name("q"), b"%d" % number)
    channel.count(talk.name("q"), 8)
    channel.qos(3)
    channel.qos(4, shared=True)
    channel.consume(talk.name("q"), "one")
    channel.read(3)
    channel.expect_quiet()
    channel.qos(2, shared=True)
    channel.ack(1)
    channel.expect_quiet()
    channel.ack(3, multiple=True)
    channel.read(2)
    channel.expect_quiet()


@pytest.mark.covers("B-120")
def priorities_of_three_consumers(talk: Talk) -> None:
    connection = talk.connection()
    channels = [connection.channel(number) for number in (1, 2, 3)]
    channels[0].declare(talk.name("q"))
    for channel, priority in zip(channels, (-1, 5, 0), strict=True):
        channel.qos(1)
        arguments = {"x-priority": priority}
        channel.consume(talk.name("q"), f"priority {priority}", arguments=arguments)
    for number in range(4):
        channels[0].publish("", talk.name("q"), b"%d" % number)
        if number < 3:
            channels[0].read()
    channels[0].count(talk.name("q"), 1)
    channels[2].ack(1)
    channels[2].read()


@pytest.mark.covers("B-122")
def flag_of_what_was_only_requeued(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
    channel.qos(2)
    channel.consume(talk.name("q"), "tag")
    channel.read(2)
    channel.close()
    other = channel.connection.channel(2)
    talk.await_messages(talk.name("q"), 3)
    for _ in range(3):
        other.get(talk.name("q"))


@pytest.mark.covers("queue.bind")
def bindings_that_differ_in_arguments(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.exchange(talk.name("x"), "direct")
    for arguments in ({}, {"a": 1}, {"a": 1}, {"a": 2}):
        channel.bind(talk.name("q"), talk.name("x"), "k", arguments=arguments)
    unbind = commands.Queue.Unbind
    for arguments in ({"a": 1}, {}, {"a": 3}):
        channel.call(unbind(0, talk.name("q"), talk.name("x"), "k", arguments))
        channel.publish(talk.name("x"), "k", mandatory=True)
        channel.get(talk.name("q"), no_ack=True)
    channel.call(unbind(0, talk.name("q"), talk.name("x"), "k", {"a": 2}))
    channel.publish(talk.name("x"), "k", mandatory=True)
    channel.read()
