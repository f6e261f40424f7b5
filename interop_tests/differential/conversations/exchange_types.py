"""Exchange types that RabbitMQ has as plugins: what they refuse, remember, and how they share out.

Which key goes where is each broker's own choice; that equal keys go together is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, frame, header

from interop_tests.differential.client import Observer

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

POURED = 1200


def _pour(talk: Talk, channel: Channel, exchange: str, messages: list[tuple[str, Any]]) -> None:
    """Publish (key, properties) in one write; only their number is noted."""
    frames = b""
    for key, properties in messages:
        content = header.ContentHeader(0, 1, commands.Basic.Properties(**properties))
        publish = commands.Basic.Publish(exchange=exchange, routing_key=key)
        for one in (publish, content, body.ContentBody(b"x")):
            frames += frame.marshal(one, channel.number)
    channel.connection.send_bytes(frames)
    talk.note(f"poured {len(messages)} into {exchange}")


def _shares(talk: Talk, queues: list[str], total: int) -> list[int]:
    """How many messages each queue has when all have come."""
    counts: list[int] = []
    with Observer(talk.address) as observer:
        for _ in range(400):
            found = [observer.counts(queue) for queue in queues]
            counts = [one[0] if one else 0 for one in found]
            if sum(counts) == total:
                return counts
    talk.note(f"{sum(counts)} of {total} came")
    return counts


def _note_shares(talk: Talk, counts: list[int], wanted: list[float]) -> None:
    total = sum(counts)
    for number, (count, part) in enumerate(zip(counts, wanted, strict=True)):
        fair = abs(count / total - part) < 0.08
        talk.note(f"queue {number} has its part" if fair else f"queue {number}: {count} of {total}")


def _empty(channel: Channel, queues: list[str]) -> None:
    """Purge; how many there were is each broker's own."""
    for queue in queues:
        channel.connection.send_bytes(
            frame.marshal(commands.Queue.Purge(queue=queue), channel.number)
        )
        channel.connection.next_frame()


def _bound_queues(talk: Talk, channel: Channel, exchange: str, keys: list[str]) -> list[str]:
    queues = [talk.name(f"q{number}") for number in range(len(keys))]
    for queue, key in zip(queues, keys, strict=True):
        channel.declare(queue)
        channel.bind(queue, exchange, key)
    return queues


@pytest.mark.covers("B-173")
def consistent_hash_shares_by_weight(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-consistent-hash")
    queues = _bound_queues(talk, channel, exchange, ["1", "1", "2"])
    _pour(talk, channel, exchange, [(f"key.{number}", {}) for number in range(POURED)])
    _note_shares(talk, _shares(talk, queues, POURED), [0.25, 0.25, 0.5])


@pytest.mark.covers("B-173")
def consistent_hash_keeps_equal_keys_together(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-consistent-hash")
    queues = _bound_queues(talk, channel, exchange, ["1", "1", "1"])
    _pour(talk, channel, exchange, [("same", {"headers": {"n": n}}) for n in range(30)])
    talk.note(str(sorted(_shares(talk, queues, 30))))


@pytest.mark.covers("B-173")
def consistent_hash_of_a_header(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-consistent-hash", arguments={"hash-header": "customer"})
    queues = _bound_queues(talk, channel, exchange, ["1", "1"])
    messages = [("k", {"headers": {"customer": f"c{n}"}}) for n in range(POURED)]
    _pour(talk, channel, exchange, messages)
    _note_shares(talk, _shares(talk, queues, POURED), [0.5, 0.5])
    _empty(channel, queues)
    _pour(talk, channel, exchange, [(f"k{n}", {"headers": {"customer": "c"}}) for n in range(20)])
    talk.note(str(sorted(_shares(talk, queues, 20))))


@pytest.mark.covers("B-173")
def consistent_hash_of_a_property(talk: Talk) -> None:
    channel = talk.channel()
    for name in ("message_id", "correlation_id"):
        exchange = talk.name(name)
        channel.exchange(exchange, "x-consistent-hash", arguments={"hash-property": name})
        queues = [talk.name(f"{name}.{number}") for number in range(2)]
        for queue in queues:
            channel.declare(queue)
            channel.bind(queue, exchange, "1")
        _pour(talk, channel, exchange, [("k", {name: f"m{n}"}) for n in range(POURED)])
        _note_shares(talk, _shares(talk, queues, POURED), [0.5, 0.5])


@pytest.mark.covers("B-173", "B-228")
def consistent_hash_refusals(talk: Talk) -> None:
    connection = talk.connection()
    exchange = talk.name("x")
    first = connection.channel(1)
    first.exchange(exchange, "x-consistent-hash")
    first.declare(talk.name("q"))
    for number, key in enumerate(["0", "-1", "many", "1.5", ""], start=2):
        connection.channel(number).bind(talk.name("q"), exchange, key)
    connection.channel(7).exchange(
        talk.name("y"), "x-consistent-hash", arguments={"hash-property": "app_id"}
    )
    connection.channel(8).exchange(
        talk.name("z"),
        "x-consistent-hash",
        arguments={"hash-property": "message_id", "hash-header": "h"},
    )
    first.exchange(talk.name("y"), passive=True)


@pytest.mark.covers("B-174")
def modulus_hash_keeps_equal_keys_together(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-modulus-hash")
    queues = _bound_queues(talk, channel, exchange, ["", "any", "10"])
    _pour(talk, channel, exchange, [(f"key.{number}", {}) for number in range(POURED)])
    _note_shares(talk, _shares(talk, queues, POURED), [1 / 3] * 3)
    _empty(channel, queues)
    _pour(talk, channel, exchange, [("same", {})] * 30)
    talk.note(str(sorted(_shares(talk, queues, 30))))


@pytest.mark.covers("B-174")
def random_shares_evenly(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-random")
    channel.publish(exchange, "k", mandatory=True)
    channel.read()
    queues = _bound_queues(talk, channel, exchange, ["", "any", "k"])
    _pour(talk, channel, exchange, [("same", {})] * POURED)
    _note_shares(talk, _shares(talk, queues, POURED), [1 / 3] * 3)


@pytest.mark.covers("B-175")
def recent_history_for_those_who_come_late(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-recent-history")
    for number in range(23):
        channel.publish(exchange, f"k.{number}", b"m%d" % number, message_id=f"id{number}")
    channel.publish(exchange, "k", b"unkept", headers={"x-recent-history-no-store": True})
    channel.declare(talk.name("early"))
    channel.bind(talk.name("early"), exchange, "whatever")
    channel.count(talk.name("early"), 20)
    channel.publish(exchange, "k", b"new")
    while isinstance(channel.get(talk.name("early"), no_ack=True), commands.Basic.GetOk):
        pass
    channel.bind(talk.name("early"), exchange, "whatever")
    channel.count(talk.name("early"), 0)


@pytest.mark.covers("B-175")
def recent_history_of_a_length(talk: Talk) -> None:
    channel = talk.channel()
    exchange = talk.name("x")
    channel.exchange(exchange, "x-recent-history", arguments={"x-recent-history-length": 2})
    for number in range(4):
        channel.publish(exchange, f"k.{number}", b"m%d" % number)
    channel.exchange(talk.name("t"), "topic")
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("t"), "k.#")
    channel.call(commands.Exchange.Bind(0, talk.name("t"), exchange, ""))
    channel.count(talk.name("q"), 2)
    channel.get(talk.name("q"), no_ack=True)


@pytest.mark.covers("B-175")
def recent_history_refusals(talk: Talk) -> None:
    connection = talk.connection()
    for number, length in enumerate([0, -3, "5"], start=1):
        connection.channel(number).exchange(
            talk.name("x"), "x-recent-history", arguments={"x-recent-history-length": length}
        )
