"""queue.declare and exchange.declare: what must match, what is refused, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from interop_tests.differential.client import VALUES_OF_EVERY_TYPE, raw_frame, unchecked

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk


def _declare_twice(talk: Talk, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    connection = talk.connection()
    for number, (first, second) in enumerate(rows, start=1):
        channel, queue = connection.channel(number), talk.name(f"q{number}")
        channel.declare(queue, **first)
        channel.declare(queue, **second)


def _declare_once(talk: Talk, rows: list[dict[str, Any]]) -> None:
    connection = talk.connection()
    for number, arguments in enumerate(rows, start=1):
        queue = talk.name(f"q{number}")
        connection.channel(number).declare(queue, durable=True, arguments=arguments)


@pytest.mark.covers("B-207", "queue.declare")
def queue_declared_twice_alike(talk: Talk) -> None:
    arguments = {"x-message-ttl": 60000, "x-max-length": 10, "x-dead-letter-exchange": "dlx"}
    everything = {"durable": True, "auto_delete": True, "arguments": arguments}
    _declare_twice(talk, [({}, {}), (everything, everything)])


@pytest.mark.covers("B-207")
def queue_flags_must_match(talk: Talk) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"durable": True}, {"durable": False}),
        ({"durable": False}, {"durable": True}),
        ({"auto_delete": True}, {"auto_delete": False}),
        ({"auto_delete": False}, {"auto_delete": True}),
        ({"exclusive": True}, {"exclusive": False}),
        ({"exclusive": False}, {"exclusive": True}),
        ({"exclusive": True, "durable": True}, {"exclusive": True, "durable": False}),
        ({"durable": True, "auto_delete": True}, {}),
    ]
    _declare_twice(talk, rows)


@pytest.mark.covers("B-207")
def queue_argument_on_one_side_only(talk: Talk) -> None:
    values: dict[str, Any] = {
        "x-message-ttl": 1000,
        "x-expires": 60000,
        "x-max-length": 5,
        "x-max-length-bytes": 500,
        "x-dead-letter-exchange": "dlx",
        "x-max-priority": 10,
        "x-overflow": "reject-publish",
        "x-single-active-consumer": True,
        "x-queue-mode": "lazy",
        "x-queue-type": "quorum",
    }
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, value in values.items():
        rows.append(({"durable": True, "arguments": {name: value}}, {"durable": True}))
        rows.append(({"durable": True}, {"durable": True, "arguments": {name: value}}))
    _declare_twice(talk, rows)


@pytest.mark.covers("B-207")
def queue_arguments_of_other_value(talk: Talk) -> None:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"x-message-ttl": 1000}, {"x-message-ttl": 2000}),
        ({"x-message-ttl": 1000}, {"x-message-ttl": 100000}),
        ({"x-expires": 60000}, {"x-expires": 50000}),
        ({"x-max-length": 5}, {"x-max-length": 6}),
        ({"x-max-priority": 5}, {"x-max-priority": 6}),
        ({"x-dead-letter-exchange": "a"}, {"x-dead-letter-exchange": "b"}),
        (
            {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "k"},
            {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "l"},
        ),
        ({"x-overflow": "drop-head"}, {"x-overflow": "reject-publish"}),
        ({"x-queue-type": "classic"}, {"x-queue-type": "quorum"}),
        ({"x-single-active-consumer": True}, {"x-single-active-consumer": False}),
        ({"x-queue-type": "classic"}, {}),
        ({}, {"x-queue-type": "classic"}),
        ({"x-unknown": 1}, {"x-unknown": 2}),
        ({}, {"x-unknown": "text"}),
    ]
    rows = [
        ({"durable": True, "arguments": one}, {"durable": True, "arguments": two})
        for one, two in pairs
    ]
    _declare_twice(talk, rows)


def _declare_with_ttl(channel: Channel, queue: str, kind: bytes, size: int) -> None:
    """Declare with x-message-ttl of 100 in one of the protocol's integer types."""
    table = b"\x0dx-message-ttl" + kind + (100).to_bytes(size, "big")
    name = bytes([len(queue)]) + queue.encode()
    payload = b"\x00\x32\x00\x0a\x00\x00" + name + b"\x00" + len(table).to_bytes(4, "big")
    frame = raw_frame(1, channel.number, payload + table)
    channel.connection.send_raw(frame, f"queue.declare with x-message-ttl as {kind!r}")
    channel.read_answer()


INTEGER_TYPES = {b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8}


@pytest.mark.covers("B-207")
def queue_argument_in_another_integer_width(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-message-ttl": 100})
    for kind, size in INTEGER_TYPES.items():
        _declare_with_ttl(channel, talk.name("q"), kind, size)


@pytest.mark.covers("B-207", "B-016")
def integer_types_are_named(talk: Talk) -> None:
    connection = talk.connection()
    for number, (kind, size) in enumerate(INTEGER_TYPES.items(), start=1):
        channel, queue = connection.channel(number), talk.name(f"q{number}")
        channel.declare(queue)
        _declare_with_ttl(channel, queue, kind, size)


@pytest.mark.covers("B-207")
def queue_checks_come_in_order(talk: Talk) -> None:
    _declare_twice(
        talk,
        [
            ({"durable": True, "auto_delete": True}, {"arguments": {"x-message-ttl": 5}}),
            ({"auto_delete": True}, {"arguments": {"x-message-ttl": 5}}),
            ({"exclusive": True, "auto_delete": True}, {"durable": True}),
        ],
    )


@pytest.mark.covers("B-217")
def queue_arguments_of_wrong_value(talk: Talk) -> None:
    rows: list[dict[str, Any]] = [
        {"x-message-ttl": -1},
        {"x-message-ttl": "1000"},
        {"x-message-ttl": 2**40},
        {"x-expires": 0},
        {"x-expires": -5},
        {"x-expires": "soon"},
        {"x-max-length": -1},
        {"x-max-length": "ten"},
        {"x-max-length-bytes": -1},
        {"x-max-priority": -1},
        {"x-max-priority": 256},
        {"x-max-priority": "high"},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": 5},
        {"x-overflow": "explode"},
        {"x-overflow": 1},
        {"x-queue-type": "foo"},
        {"x-queue-type": 5},
        {"x-queue-mode": "fast"},
        {"x-queue-version": 7},
        {"x-single-active-consumer": "yes"},
    ]
    _declare_once(talk, rows)


@pytest.mark.covers("B-220")
def quorum_queue_properties(talk: Talk) -> None:
    connection = talk.connection()
    quorum = {"x-queue-type": "quorum"}
    rows: list[dict[str, Any]] = [
        {"durable": False},
        {"durable": True, "exclusive": True},
        {"durable": True, "auto_delete": True},
        {"durable": True, "arguments": {"x-overflow": "reject-publish-dlx"}},
    ]
    for number, options in enumerate(rows, start=1):
        arguments = {**quorum, **options.pop("arguments", {})}
        name = talk.name(f"q{number}")
        connection.channel(number).declare(name, arguments=arguments, **options)


@pytest.mark.covers("B-220")
def stream_properties(talk: Talk) -> None:
    connection = talk.connection()
    stream = {"x-queue-type": "stream"}
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"durable": False}, {}),
        ({"durable": True, "exclusive": True}, {}),
        ({"durable": True, "auto_delete": True}, {}),
        ({"durable": True}, {"x-max-age": "1D", "x-max-length-bytes": 100000}),
    ]
    for number, (options, extra) in enumerate(rows, start=1):
        name = talk.name(f"q{number}")
        connection.channel(number).declare(name, arguments={**stream, **extra}, **options)


@pytest.mark.covers("B-217")
def stream_of_wrong_age(talk: Talk) -> None:
    arguments = {"x-queue-type": "stream", "x-max-age": "soon"}
    talk.channel().declare(talk.name("q"), durable=True, arguments=arguments)


@pytest.mark.covers("queue.declare", "exchange.declare", "B-201")
def passive_declare(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.declare(talk.name("q"), durable=True, arguments={"x-message-ttl": 60000})
    one.publish("", talk.name("q"))
    one.count(talk.name("q"), 1)
    one.declare(talk.name("q"), passive=True, auto_delete=True, arguments={"x-expires": 7})
    one.count(talk.name("missing"))
    two = connection.channel(2)
    two.exchange(talk.name("x"), "fanout")
    two.exchange(talk.name("x"), "topic", passive=True, durable=True)
    two.exchange(talk.name("missing"), passive=True)
    connection.channel(3).exchange("amq.direct", passive=True)
    connection.channel(4).count("amq.missing")


@pytest.mark.covers("B-126", "queue.bind")
def server_named_queue(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare("", exclusive=True)
    channel.call(commands.Queue.Bind(0, "", "amq.direct", "k"))
    channel.publish("amq.direct", "k", b"to the last declared")
    channel.get("")
    channel.consume("", "tag")
    channel.call(commands.Basic.Cancel("tag"))
    channel.call(commands.Queue.Unbind(0, "", "amq.direct", "k"))
    channel.call(commands.Queue.Purge(0, ""))
    channel.call(commands.Queue.Delete(0, ""))


@pytest.mark.covers("B-202")
def no_previously_declared_queue(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).get("")
    connection.channel(2).consume("")
    connection.channel(3).bind("", "amq.direct", "k")
    connection.channel(4).call(commands.Queue.Purge())
    connection.channel(5).call(commands.Queue.Delete())


@pytest.mark.covers("B-201", "queue.declare")
def passive_declare_without_a_name(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).declare("", passive=True)
    two = connection.channel(2)
    two.declare(talk.name("q"))
    two.declare("", passive=True)


@pytest.mark.covers("B-201")
def last_declared_queue_after_deletion(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.call(commands.Queue.Delete(queue=talk.name("q")))
    channel.get("")


@pytest.mark.covers("queue.bind")
def bind_of_the_last_queue_without_key(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.bind("", "amq.direct", "")
    channel.publish("amq.direct", talk.name("q"))
    channel.get(talk.name("q"))
    channel.call(commands.Queue.Unbind(0, talk.name("q"), "amq.direct", talk.name("q")))


@pytest.mark.covers("B-231", "B-230")
def reserved_prefix(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).declare("amq.mine")
    connection.channel(2).exchange("amq.mine")
    connection.channel(3).exchange("amq.direct", "direct", durable=True)
    connection.channel(4).exchange("amq.direct", "topic", durable=True)
    connection.channel(5).call(unchecked(commands.Exchange.Delete, exchange="amq.topic"))
    connection.channel(6).call(commands.Queue.Delete(queue="amq.mine"))


@pytest.mark.covers("B-229", "B-103")
def default_exchange_is_protected(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.declare(talk.name("q"))
    channel.exchange("", "direct", durable=True)
    connection.channel(2).exchange("", passive=True)
    connection.channel(3).call(commands.Exchange.Delete(exchange=""))
    connection.channel(4).bind(talk.name("q"), "", "k")
    connection.channel(5).call(commands.Queue.Unbind(0, talk.name("q"), "", "k"))
    connection.channel(6).call(commands.Exchange.Bind(0, "amq.direct", "", "k"))
    connection.channel(7).call(commands.Exchange.Bind(0, "", "amq.direct", "k"))


@pytest.mark.covers("B-207")
def exchange_properties_must_match(talk: Talk) -> None:
    connection = talk.connection()
    alternate = {"alternate-exchange": "ae"}
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"kind": "fanout"}, {"kind": "topic"}),
        ({"durable": True}, {}),
        ({}, {"durable": True}),
        ({"auto_delete": True}, {}),
        ({}, {"auto_delete": True}),
        ({"internal": True}, {}),
        ({}, {"internal": True}),
        ({"arguments": alternate}, {}),
        ({}, {"arguments": alternate}),
        ({"arguments": alternate}, {"arguments": {"alternate-exchange": "other"}}),
        ({"kind": "fanout", "durable": True}, {"auto_delete": True}),
        ({"arguments": {"unknown": 1}}, {"arguments": {"unknown": 2}}),
    ]
    for number, (first, second) in enumerate(rows, start=1):
        channel, name = connection.channel(number), talk.name(f"x{number}")
        channel.exchange(name, **first)
        channel.exchange(name, **second)


@pytest.mark.covers("B-208")
def unknown_exchange_type(talk: Talk) -> None:
    talk.channel().exchange(talk.name("x"), "no-such-type")


@pytest.mark.covers("B-219")
def alternate_exchange_of_wrong_type(talk: Talk) -> None:
    talk.channel().exchange(talk.name("x"), arguments={"alternate-exchange": 5})


@pytest.mark.covers("B-017")
def names_lose_line_breaks(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(unchecked(commands.Queue.Declare, queue=talk.name("a") + "\r\nb"))
    channel.count(talk.name("ab"))


@pytest.mark.covers("B-017")
def names_of_any_characters(talk: Talk) -> None:
    channel = talk.channel()
    name = talk.name("spaces / slashes é ☃ \t'")
    channel.call(unchecked(commands.Queue.Declare, queue=name))
    channel.publish("", name)
    channel.call(unchecked(commands.Basic.Get, queue=name, no_ack=True))
    channel.call(unchecked(commands.Queue.Declare, queue=name, durable=True))


@pytest.mark.covers("B-201")
def long_names_are_cut_in_texts(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(unchecked(commands.Queue.Declare, queue="n" * 250, passive=True))


@pytest.mark.covers("nowait", "queue.declare", "exchange.declare", "queue.bind")
def nowait_declares(talk: Talk) -> None:
    channel = talk.channel()
    channel.send(commands.Queue.Declare(queue=talk.name("q"), nowait=True))
    channel.send(commands.Exchange.Declare(exchange=talk.name("x"), nowait=True))
    channel.send(commands.Queue.Bind(0, talk.name("q"), talk.name("x"), "k", True))
    channel.publish(talk.name("x"), "k")
    channel.count(talk.name("q"), 1)
    channel.send(commands.Queue.Declare(queue=talk.name("q"), durable=True, nowait=True))
    channel.read_answer()


@pytest.mark.covers("B-231", "B-126")
def made_up_name_declared_again(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    name = one.declare("", exclusive=True).queue
    one.declare(name, passive=True)
    one.declare(name, exclusive=True)
    connection.channel(2).declare(name)
    talk.channel().declare(name, passive=True)
    connection.channel(3).call(commands.Queue.Delete(queue=name))


@pytest.mark.covers("B-221")
def server_named_quorum_queue(talk: Talk) -> None:
    talk.channel().declare("", durable=True, arguments={"x-queue-type": "quorum"})


@pytest.mark.covers("B-218")
def arguments_of_another_queue_type(talk: Talk) -> None:
    """On the left what only quorum queues know, on the right what only classic ones do."""
    quorum = {"x-queue-type": "quorum"}
    rows: list[dict[str, Any]] = [
        {"x-quorum-initial-group-size": 3},
        {"x-delivery-limit": 5},
        {"x-max-age": "1D"},
        {"x-stream-max-segment-size-bytes": 1000},
        {**quorum, "x-max-priority": 5},
        {**quorum, "x-queue-mode": "lazy"},
        {**quorum, "x-max-age": "1D"},
        {**quorum, "x-queue-master-locator": "client-local"},
    ]
    _declare_once(talk, rows)


@pytest.mark.covers("B-314")
def quorum_queues_cannot_do_everything(talk: Talk) -> None:
    quorum = {"x-queue-type": "quorum"}
    talk.channel().declare(talk.name("q"), durable=True, arguments=quorum)
    for flag in ("if_unused", "if_empty"):
        talk.channel().call(commands.Queue.Delete(queue=talk.name("q"), **{flag: True}))
    channel = talk.channel()
    channel.qos(5, shared=True)
    channel.consume(talk.name("q"), "tag")


@pytest.mark.covers("B-207", "B-016")
def arguments_of_every_type_are_read(talk: Talk) -> None:
    """Unknown ones mean nothing, but they must not get in the way."""
    values = b"".join(
        b"\x02x" + letter + letter + value for letter, value in VALUES_OF_EVERY_TYPE.items()
    )
    name = talk.name("q").encode()
    start = b"\x00\x32\x00\x0a\x00\x00" + bytes([len(name)]) + name + b"\x00"
    channel = talk.channel()
    payload = start + len(values).to_bytes(4, "big") + values
    channel.connection.send_raw(raw_frame(1, 1, payload), "queue.declare with every type of value")
    channel.read_answer()
