"""Bindings and what they route: missing things, exchange to exchange, topic and headers tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from interop_tests.differential.client import unchecked

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk


def _fill(channel: Channel, exchange: str, keys: list[str]) -> None:
    for key in keys:
        channel.publish(exchange, key, key.encode())


def _drain(channel: Channel, queue: str) -> None:
    while isinstance(channel.get(queue, no_ack=True), commands.Basic.GetOk):
        pass


@pytest.mark.covers("queue.bind", "exchange.bind", "B-201")
def bind_missing_things(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.declare(talk.name("q"))
    one.bind(talk.name("q"), talk.name("missing"), "k")
    connection.channel(2).bind(talk.name("missing"), "amq.direct", "k")
    connection.channel(3).bind(talk.name("missing"), talk.name("missing"), "k")
    exchange_bind = commands.Exchange.Bind
    connection.channel(4).call(exchange_bind(0, talk.name("missing"), "amq.direct", "k"))
    connection.channel(5).call(exchange_bind(0, "amq.direct", talk.name("missing"), "k"))


@pytest.mark.covers("queue.bind", "exchange.bind")
def unbind_missing_things(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.declare(talk.name("q"))
    unbind = commands.Queue.Unbind
    one.call(unbind(0, talk.name("q"), "amq.direct", "never bound"))
    one.call(unbind(0, talk.name("q"), talk.name("missing"), "k"))
    connection.channel(2).call(unbind(0, talk.name("missing"), "amq.direct", "k"))
    exchange_unbind = commands.Exchange.Unbind
    connection.channel(3).call(exchange_unbind(0, "amq.fanout", "amq.direct", "never bound"))
    connection.channel(4).call(exchange_unbind(0, talk.name("missing"), "amq.direct", "k"))


@pytest.mark.covers("queue.bind")
def bind_twice_is_one_binding(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), "amq.direct", "twice")
    channel.bind(talk.name("q"), "amq.direct", "twice")
    channel.publish("amq.direct", "twice")
    channel.count(talk.name("q"), 1)
    channel.call(commands.Queue.Unbind(0, talk.name("q"), "amq.direct", "twice"))
    channel.publish("amq.direct", "twice", mandatory=True)
    channel.read()


@pytest.mark.covers("queue.bind")
def unbind_needs_the_same_arguments(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "direct")
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("x"), "k", arguments={"note": "mine"})
    channel.call(commands.Queue.Unbind(0, talk.name("q"), talk.name("x"), "k"))
    channel.publish(talk.name("x"), "k")
    channel.count(talk.name("q"), 1)
    channel.call(commands.Queue.Unbind(0, talk.name("q"), talk.name("x"), "k", {"note": "mine"}))
    channel.publish(talk.name("x"), "k")
    channel.count(talk.name("q"), 1)


@pytest.mark.covers("queue.delete")
def queue_deletion_removes_bindings(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), "amq.direct", "gone")
    channel.call(commands.Queue.Delete(queue=talk.name("q")))
    channel.declare(talk.name("q"))
    channel.publish("amq.direct", "gone", mandatory=True)
    channel.read()


@pytest.mark.covers("B-104")
def one_message_per_queue_whatever_the_bindings(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "topic")
    channel.declare(talk.name("q"))
    for key in ("#", "a.*", "*.b", "a.b"):
        channel.bind(talk.name("q"), talk.name("x"), key)
    channel.publish(talk.name("x"), "a.b")
    channel.count(talk.name("q"), 1)


@pytest.mark.covers("B-170")
def direct_and_fanout(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("direct"), "direct")
    channel.exchange(talk.name("fanout"), "fanout")
    for word in ("one", "two"):
        channel.declare(talk.name(word))
        channel.bind(talk.name(word), talk.name("direct"), word)
        channel.bind(talk.name(word), talk.name("fanout"), "ignored")
    _fill(channel, talk.name("direct"), ["one", "two", "One", "", "two"])
    _fill(channel, talk.name("fanout"), ["anything"])
    _drain(channel, talk.name("one"))
    _drain(channel, talk.name("two"))


TOPIC_PATTERNS = ["#", "*", "a", "a.b", "a.*", "*.b", "a.#", "#.b", "a.*.c", "a.#.c", "*.*", "#.#"]
TOPIC_PATTERNS += ["", ".", "a..b", "*.#", "#.*", "lazy.#.#", "a.*b"]
TOPIC_KEYS = ["", "a", "b", "a.b", "a.b.c", "a.c", "a.x.y.c", "a..b", ".", ".b", "a.", "lazy", "#"]


@pytest.mark.covers("B-171")
def topic_routing_table(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "topic")
    for number, pattern in enumerate(TOPIC_PATTERNS):
        channel.declare(talk.name(f"q{number}"))
        channel.bind(talk.name(f"q{number}"), talk.name("x"), pattern)
    _fill(channel, talk.name("x"), TOPIC_KEYS)
    for number in range(len(TOPIC_PATTERNS)):
        _drain(channel, talk.name(f"q{number}"))


HEADERS_BINDINGS: list[dict[str, Any]] = [
    {},
    {"x-match": "all"},
    {"x-match": "any"},
    {"x-match": "all", "a": 1, "b": "two"},
    {"x-match": "any", "a": 1, "b": "two"},
    {"a": 1},
    {"x-match": "all", "a": None},
    {"x-match": "any", "a": None, "c": True},
    {"x-match": "all", "x-own": 1, "a": 1},
    {"x-match": "any-with-x", "x-own": 1},
    {"x-match": "all-with-x", "x-own": 1, "a": 1},
]
HEADERS_MESSAGES: list[dict[str, Any]] = [
    {},
    {"a": 1},
    {"a": "1"},
    {"a": 1, "b": "two"},
    {"b": "two", "extra": 5},
    {"a": 2, "b": "three"},
    {"c": True},
    {"x-own": 1},
    {"x-own": 1, "a": 1},
]


@pytest.mark.covers("B-172")
def headers_routing_table(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "headers")
    for number, arguments in enumerate(HEADERS_BINDINGS):
        channel.declare(talk.name(f"q{number}"))
        channel.bind(talk.name(f"q{number}"), talk.name("x"), "", arguments=arguments)
    for number, headers in enumerate(HEADERS_MESSAGES):
        channel.publish(talk.name("x"), "", b"%d" % number, headers=headers)
    for number in range(len(HEADERS_BINDINGS)):
        _drain(channel, talk.name(f"q{number}"))


@pytest.mark.covers("B-226")
def headers_binding_of_wrong_match(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.exchange(talk.name("x"), "headers")
    one.declare(talk.name("q"))
    one.bind(talk.name("q"), talk.name("x"), "", arguments={"x-match": "most"})
    two = connection.channel(2)
    two.bind(talk.name("q"), talk.name("x"), "", arguments={"x-match": 5})


@pytest.mark.covers("B-104", "exchange.bind")
def exchange_to_exchange(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("source"), "topic")
    channel.exchange(talk.name("middle"), "direct")
    channel.declare(talk.name("q"))
    bind = commands.Exchange.Bind(0, talk.name("middle"), talk.name("source"), "a.*")
    channel.call(bind)
    channel.call(bind)
    channel.bind(talk.name("q"), talk.name("middle"), "a.b")
    _fill(channel, talk.name("source"), ["a.b", "a.c", "b.b"])
    _drain(channel, talk.name("q"))
    channel.call(commands.Exchange.Unbind(0, talk.name("middle"), talk.name("source"), "a.*"))
    _fill(channel, talk.name("source"), ["a.b"])
    _drain(channel, talk.name("q"))


@pytest.mark.covers("B-104")
def exchange_bindings_in_a_circle(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("one"), "fanout")
    channel.exchange(talk.name("two"), "fanout")
    channel.call(commands.Exchange.Bind(0, talk.name("two"), talk.name("one")))
    channel.call(commands.Exchange.Bind(0, talk.name("one"), talk.name("two")))
    channel.call(commands.Exchange.Bind(0, talk.name("one"), talk.name("one")))
    for word in ("q1", "q2"):
        channel.declare(talk.name(word))
    channel.bind(talk.name("q1"), talk.name("one"))
    channel.bind(talk.name("q2"), talk.name("two"))
    _fill(channel, talk.name("one"), ["round"])
    _drain(channel, talk.name("q1"))
    _drain(channel, talk.name("q2"))


@pytest.mark.covers("B-105")
def alternate_exchange_takes_the_unrouted(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("spare"), "fanout")
    channel.exchange(talk.name("x"), arguments={"alternate-exchange": talk.name("spare")})
    channel.exchange(talk.name("broken"), arguments={"alternate-exchange": talk.name("missing")})
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("spare"))
    channel.publish(talk.name("x"), "unrouted", mandatory=True)
    channel.get(talk.name("q"), no_ack=True)
    channel.publish(talk.name("broken"), "unrouted", mandatory=True)
    channel.read()


@pytest.mark.covers("exchange.delete", "B-210")
def exchange_delete(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.exchange(talk.name("x"))
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("x"), "k")
    channel.call(commands.Exchange.Delete(exchange=talk.name("missing")))
    channel.call(commands.Exchange.Delete(exchange=talk.name("x"), if_unused=True))
    two = connection.channel(2)
    two.call(commands.Exchange.Delete(exchange=talk.name("x")))
    two.exchange(talk.name("x"), "topic")
    two.publish(talk.name("x"), "k", mandatory=True)
    two.read()
    two.call(commands.Exchange.Delete(exchange=talk.name("x"), if_unused=True))


@pytest.mark.covers("B-210")
def exchange_used_by_an_exchange_is_in_use(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("source"), "fanout")
    channel.exchange(talk.name("target"), "fanout")
    channel.call(commands.Exchange.Bind(0, talk.name("target"), talk.name("source")))
    channel.call(commands.Exchange.Delete(exchange=talk.name("target"), if_unused=True))
    channel.exchange(talk.name("target"), "fanout")
    channel.call(commands.Exchange.Bind(0, talk.name("target"), talk.name("source")))
    channel.call(commands.Exchange.Delete(exchange=talk.name("source"), if_unused=True))


@pytest.mark.covers("B-108")
def auto_delete_exchange(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.exchange(talk.name("x"), "fanout", auto_delete=True)
    channel.exchange(talk.name("x"), passive=True)
    for word in ("one", "two"):
        channel.declare(talk.name(word))
        channel.bind(talk.name(word), talk.name("x"))
    channel.call(commands.Queue.Unbind(0, talk.name("one"), talk.name("x")))
    channel.exchange(talk.name("x"), passive=True)
    channel.call(commands.Queue.Delete(queue=talk.name("two")))
    channel.exchange(talk.name("x"), passive=True)


@pytest.mark.covers("B-108", "B-232")
def internal_exchange_refuses_publish(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "fanout", internal=True)
    channel.publish(talk.name("x"), "k")
    channel.read_answer()


@pytest.mark.covers("B-201")
def publish_to_a_missing_exchange(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.publish(talk.name("missing"), "k")
    channel.read_answer()
    confirming = connection.channel(2)
    confirming.call(commands.Confirm.Select())
    confirming.publish(talk.name("missing"), "k", mandatory=True)
    confirming.read_answer()


@pytest.mark.covers("B-109")
def predeclared_exchanges(talk: Talk) -> None:
    connection = talk.connection()
    names = ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]
    for number, name in enumerate([*names, "amq.rabbitmq.trace"], start=1):
        connection.channel(number).exchange(name, passive=True)
    kinds = ["direct", "fanout", "topic", "headers", "headers"]
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True), start=10):
        connection.channel(number).exchange(name, kind, durable=True)


def long_routing_key(talk: Talk) -> None:
    channel = talk.channel()
    channel.publish("amq.direct", "k" * 255, mandatory=True)
    channel.read()
    channel.call(unchecked(commands.Queue.Declare, queue="q" * 255, passive=True))
