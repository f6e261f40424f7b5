"""Streams: what they refuse, where consumers begin, and what acknowledgements mean to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel, Connection
    from interop_tests.differential.talk import Talk

STREAM = {"x-queue-type": "stream"}


def _stream(channel: Channel, name: str, **arguments: Any) -> None:
    channel.declare(name, durable=True, arguments={**STREAM, **arguments})


def _publish_numbers(channel: Channel, stream: str, count: int) -> None:
    """One confirmed message after another, so that each stands by itself."""
    channel.call(commands.Confirm.Select())
    for number in range(1, count + 1):
        channel.publish("", stream, b"%d" % number, message_id=f"m{number}")
        channel.connection.read_confirms(number, number)


def _consume(channel: Channel, stream: str, tag: str, **arguments: Any) -> Any:
    found = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return channel.consume(stream, tag, arguments=found)


@pytest.mark.covers("B-225", "B-314")
def stream_consumers_need_a_limit_and_acks(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    connection.channel(2).consume(talk.name("s"), "unlimited")
    three = connection.channel(3)
    three.qos(10)
    three.consume(talk.name("s"), "careless", no_ack=True)


@pytest.mark.covers("B-225", "B-314")
def stream_refuses_no_credit_before_no_acks(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    connection.channel(2).consume(talk.name("s"), "both", no_ack=True)
    three = connection.channel(3)
    three.qos(10, shared=True)
    three.consume(talk.name("s"), "shared")


@pytest.mark.covers("B-314")
def stream_under_a_shared_limit(talk: Talk) -> None:
    channel = talk.channel()
    _stream(channel, talk.name("s"))
    channel.qos(10)
    channel.qos(10, shared=True)
    channel.consume(talk.name("s"), "shared")


@pytest.mark.covers("B-314")
def stream_has_no_get(talk: Talk) -> None:
    channel = talk.channel()
    _stream(channel, talk.name("s"))
    channel.get(talk.name("s"))


@pytest.mark.covers("B-314")
def stream_has_no_purge(talk: Talk) -> None:
    channel = talk.channel()
    _stream(channel, talk.name("s"))
    channel.call(commands.Queue.Purge(0, talk.name("s")))


@pytest.mark.covers("B-221")
def stream_wants_a_name(talk: Talk) -> None:
    talk.channel().declare("", durable=True, arguments=STREAM)


@pytest.mark.covers("B-210")
def stream_deleted_if_unused(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    _stream(channel, talk.name("s"))
    channel.qos(1)
    channel.consume(talk.name("s"), "c")
    connection.channel(2).call(commands.Queue.Delete(0, talk.name("s"), if_unused=True))


@pytest.mark.covers("B-217", "B-218")
def stream_arguments_of_wrong_value(talk: Talk) -> None:
    rows: list[dict[str, Any]] = [
        {"x-max-length-bytes": -1},
        {"x-max-length-bytes": "ten"},
        {"x-stream-max-segment-size-bytes": -1},
        {"x-stream-max-segment-size-bytes": "big"},
        {"x-stream-max-segment-size-bytes": 3_000_000_001},
        {"x-initial-cluster-size": 0},
        {"x-initial-cluster-size": "one"},
        {"x-queue-leader-locator": "nearby"},
        {"x-max-age": 5},
        {"x-message-ttl": 5},
        {"x-expires": 5},
        {"x-max-length": 5},
        {"x-overflow": "drop-head"},
        {"x-max-priority": 5},
        {"x-dead-letter-exchange": "dlx"},
        {"x-delivery-limit": 5},
        {"x-queue-mode": "lazy"},
        {"x-single-active-consumer": True},
        {"x-unheard-of": 5},
    ]
    connection = talk.connection()
    for number, arguments in enumerate(rows, start=1):
        _stream(connection.channel(number), talk.name(f"s{number}"), **arguments)


@pytest.mark.covers("B-218")
def stream_arguments_elsewhere(talk: Talk) -> None:
    connection = talk.connection()
    number = 0
    for kind in ("classic", "quorum"):
        for key in ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"):
            number += 1
            arguments = {"x-queue-type": kind, key: "1h" if key == "x-max-age" else 1}
            connection.channel(number).declare(
                talk.name(f"q{number}"), durable=True, arguments=arguments
            )


@pytest.mark.covers("B-207")
def stream_declared_again(talk: Talk) -> None:
    connection = talk.connection()
    name = talk.name("s")
    _stream(connection.channel(1), name, **{"x-max-age": "1h", "x-max-length-bytes": 1000})
    rows: list[dict[str, Any]] = [
        {"x-max-age": "1h", "x-max-length-bytes": 1000},
        {"x-max-age": "60m", "x-max-length-bytes": 1000},
        {"x-max-age": "1h"},
        {"x-max-age": "1h", "x-max-length-bytes": 1000, "x-initial-cluster-size": 1},
    ]
    for number, arguments in enumerate(rows, start=2):
        _stream(connection.channel(number), name, **arguments)
    connection.channel(9).declare(name, durable=True)


def _offsets(talk: Talk, offsets: list[Any], count: int = 5) -> Connection:
    """A channel for each offset, on which one consumer starts there; what comes is read."""
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), count)
    for number, offset in enumerate(offsets, start=3):
        channel = connection.channel(number)
        channel.qos(2)
        _consume(channel, talk.name("s"), f"at {number}", stream_offset=offset)
        if isinstance(offset, int | str) and offset != "next":
            connection.read(2 if offset not in {"last", count - 1} else 1)
        connection.expect_quiet()
    return connection


@pytest.mark.covers("B-129")
def stream_offsets_in_words(talk: Talk) -> None:
    connection = _offsets(talk, ["first", "last", "next"])
    connection.channel(9).publish("", talk.name("s"), b"news")
    connection.read_any_order(2)


@pytest.mark.covers("B-129")
def stream_offsets_in_numbers(talk: Talk) -> None:
    _offsets(talk, [0, 1, 3, 4])


@pytest.mark.covers("B-129")
def stream_offset_that_is_the_next(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), 3)
    channel = connection.channel(3)
    channel.qos(10)
    _consume(channel, talk.name("s"), "at the end", stream_offset=3)
    connection.expect_quiet()
    channel.publish("", talk.name("s"), b"news")
    connection.read()


@pytest.mark.covers("B-129")
def stream_offset_beyond_the_end(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), 3)
    channel = connection.channel(3)
    channel.qos(10)
    _consume(channel, talk.name("s"), "beyond", stream_offset=5)
    for number in range(3):
        channel.publish("", talk.name("s"), b"news %d" % number)
    connection.read()


@pytest.mark.covers("B-129")
def stream_offsets_in_time(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), 3)
    now = datetime.now(tz=UTC)
    offsets = [now - timedelta(hours=1), "1h", "20s", "1D"]
    for number, offset in enumerate(offsets, start=3):
        channel = connection.channel(number)
        channel.qos(10)
        _consume(channel, talk.name("s"), f"since {number}", stream_offset=offset)
        connection.read(3)
    late = connection.channel(9)
    late.qos(10)
    _consume(late, talk.name("s"), "later", stream_offset=now + timedelta(hours=1))
    connection.expect_quiet()


@pytest.mark.covers("B-217")
def stream_offset_that_is_none(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    channel = connection.channel(2)
    channel.qos(10)
    _consume(channel, talk.name("s"), "c", stream_offset="soon")


@pytest.mark.covers("B-218")
def stream_consumer_arguments_of_others(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    rows: list[dict[str, Any]] = [
        {"x-priority": 5},
        {"x-priority": "high"},
        {"x-unheard-of": 1},
    ]
    for number, arguments in enumerate(rows, start=2):
        channel = connection.channel(number)
        channel.qos(10)
        channel.consume(talk.name("s"), "c", arguments=arguments)


@pytest.mark.covers("B-218")
def stream_offset_for_another_queue(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).declare(talk.name("q"))
    connection.channel(2).consume(talk.name("q"), "c", arguments={"x-stream-offset": "first"})
    connection.channel(3).consume(talk.name("q"), "d", arguments={"x-stream-offset": "soon"})


@pytest.mark.covers("B-120")
def stream_consumers_are_never_alone(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    for number in (2, 3):
        channel = connection.channel(number)
        channel.qos(10)
        channel.consume(talk.name("s"), f"c{number}", exclusive=True)
    connection.channel(4).publish("", talk.name("s"))
    connection.read_any_order(2)


@pytest.mark.covers("B-129")
def stream_acks_give_credit_and_keep_the_message(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), 8)
    channel = connection.channel(3)
    channel.qos(2)
    _consume(channel, talk.name("s"), "c", stream_offset="first")
    connection.read(2)
    connection.expect_quiet()
    channel.ack(1)
    connection.read()
    channel.ack(3, multiple=True)
    connection.read(2)
    channel.ack(3)
    channel.read_answer()


def _refused(talk: Talk, settle: Any) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), 3)
    channel = connection.channel(3)
    channel.qos(1)
    _consume(channel, talk.name("s"), "c", stream_offset="first")
    connection.read()
    channel.send(settle)
    channel.read_answer()


@pytest.mark.covers("B-129")
def stream_nack_gives_credit(talk: Talk) -> None:
    _refused(talk, commands.Basic.Nack(1, requeue=True))


@pytest.mark.covers("B-129")
def stream_reject_gives_credit(talk: Talk) -> None:
    _refused(talk, commands.Basic.Reject(1, requeue=False))


@pytest.mark.covers("B-129")
def stream_read_twice(talk: Talk) -> None:
    connection = talk.connection()
    _stream(connection.channel(1), talk.name("s"))
    _publish_numbers(connection.channel(2), talk.name("s"), 3)
    channel = connection.channel(3)
    channel.qos(10)
    for tag in ("once", "again"):
        _consume(channel, talk.name("s"), tag, stream_offset="first")
        connection.read(3)
        channel.ack(0, multiple=True)
        channel.call(commands.Basic.Cancel(tag))


@pytest.mark.covers("B-129")
def stream_behind_an_exchange(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    _stream(channel, talk.name("s"))
    channel.exchange(talk.name("x"), "topic")
    channel.bind(talk.name("s"), talk.name("x"), "a.#")
    channel.qos(10)
    _consume(channel, talk.name("s"), "c", stream_offset="first")
    channel.publish(talk.name("x"), "a.b", b"one", headers={"k": "v"}, delivery_mode=1)
    connection.read()
    channel.publish(
        talk.name("x"), "a", b"two", content_type="text/plain", delivery_mode=2, app_id="app"
    )
    connection.read()


@pytest.mark.covers("B-129")
def stream_cancelled_when_deleted(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    _stream(channel, talk.name("s"))
    channel.qos(10)
    channel.consume(talk.name("s"), "c")
    connection.channel(2).send(commands.Queue.Delete(0, talk.name("s")))
    connection.read_any_order(2)
