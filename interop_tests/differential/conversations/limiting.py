"""Queues that keep less than they are sent: lifetimes, limits, delivery limits, priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

QUORUM = {"x-queue-type": "quorum"}


def _get_all(channel: Channel, queue: str, count: int) -> None:
    for _ in range(count + 1):
        channel.get(queue, no_ack=True)


@pytest.mark.covers("B-111", "B-145")
def queue_lifetime_counts_for_all(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-message-ttl": 2000})
    channel.publish("", talk.name("q"), b"one")
    channel.publish("", talk.name("q"), b"two", expiration="60000")
    channel.count(talk.name("q"), 2)
    talk.await_messages(talk.name("q"), 0)
    channel.get(talk.name("q"))


@pytest.mark.covers("B-111")
def no_lifetime_without_a_consumer_is_none(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-message-ttl": 0})
    channel.publish("", talk.name("q"), b"lost")
    talk.await_messages(talk.name("q"), 0)
    channel.consume(talk.name("q"), "tag")
    channel.publish("", talk.name("q"), b"delivered")
    channel.read()


@pytest.mark.covers("B-145")
def queue_that_nobody_uses(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-expires": 300})
    channel.publish("", talk.name("q"))
    talk.await_gone(talk.name("q"))


@pytest.mark.covers("B-144")
def bytes_of_ready_messages_are_limited(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-max-length-bytes": 10})
    for body in (b"four", b"more", b"last"):
        channel.publish("", talk.name("q"), body)
    channel.count(talk.name("q"), 2)
    channel.publish("", talk.name("q"), b"far too long")
    channel.count(talk.name("q"), 0)
    channel.publish("", talk.name("q"), b"fits")
    _get_all(channel, talk.name("q"), 1)


@pytest.mark.covers("B-101", "B-144")
def bytes_of_publishes_are_refused_one_by_one(talk: Talk) -> None:
    channel = talk.channel()
    arguments = {"x-max-length-bytes": 10, "x-overflow": "reject-publish"}
    channel.declare(talk.name("q"), arguments=arguments)
    channel.call(commands.Confirm.Select())
    for body in (b"12345678", b"12345", b"12", b"1"):
        channel.publish("", talk.name("q"), body)
        channel.read()
    _get_all(channel, talk.name("q"), 2)


@pytest.mark.covers("B-144")
def limits_count_what_is_ready(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-max-length": 2})
    channel.publish("", talk.name("q"), b"taken")
    channel.count(talk.name("q"), 1)
    channel.get(talk.name("q"))
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
    channel.count(talk.name("q"), 2)
    _get_all(channel, talk.name("q"), 2)


@pytest.mark.covers("B-144")
def length_of_nothing(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-max-length": 0})
    channel.publish("", talk.name("q"), b"lost")
    channel.count(talk.name("q"), 0)
    channel.consume(talk.name("q"), "tag")
    channel.publish("", talk.name("q"), b"delivered")
    channel.read()


@pytest.mark.covers("B-144")
def refused_publishes_die(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("dead"))
    arguments = {
        "x-max-length": 1,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": talk.name("dead"),
    }
    channel.declare(talk.name("q"), arguments=arguments)
    for word in (b"one", b"two"):
        channel.publish("", talk.name("q"), word)
    talk.await_messages(talk.name("dead"), 1)
    channel.count(talk.name("q"), 1)


@pytest.mark.covers("B-140")
def priorities_and_returns(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-max-priority": 10})
    for priority in (1, 9, 1, 9):
        channel.publish("", talk.name("q"), b"%d" % priority, priority=priority)
    channel.count(talk.name("q"), 4)
    for _ in range(3):
        channel.get(talk.name("q"))
    channel.nack(3)
    channel.nack(1)
    channel.publish("", talk.name("q"), b"10", priority=10)
    channel.count(talk.name("q"), 4)
    _get_all(channel, talk.name("q"), 4)


@pytest.mark.covers("B-129")
def quorum_queue_counts_returns(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), durable=True, arguments=QUORUM)
    channel.publish("", talk.name("q"), b"m", headers={"own": True})
    talk.await_messages(talk.name("q"), 1)
    for tag in range(1, 4):
        channel.get(talk.name("q"))
        channel.nack(tag)
        talk.await_messages(talk.name("q"), 1)
    channel.consume(talk.name("q"), "tag")
    channel.read()
    channel.reject(4)
    channel.read()


@pytest.mark.covers("B-142")
def quorum_queue_gives_up(talk: Talk) -> None:
    channel = talk.channel()
    arguments = {**QUORUM, "x-delivery-limit": 2}
    channel.declare(talk.name("q"), durable=True, arguments=arguments)
    channel.publish("", talk.name("q"), b"m")
    channel.consume(talk.name("q"), "tag")
    for tag in range(1, 4):
        channel.read()
        channel.nack(tag)
    channel.expect_quiet()
    channel.count(talk.name("q"), 0)


@pytest.mark.covers("B-205")
def quorum_queue_with_a_single_active_consumer_has_no_get(talk: Talk) -> None:
    channel = talk.channel()
    arguments = {**QUORUM, "x-single-active-consumer": True}
    channel.declare(talk.name("q"), durable=True, arguments=arguments)
    channel.get(talk.name("q"))
