"""Permissions: the method, and the resource on which it needs which one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

# `limited` may configure what ends in .mine, write to that and .inbox, read it and .outbox.
LIMITED = {"user": "limited", "password": "limited"}
WORDS = ("mine", "inbox", "outbox", "other")


def _with_queues_and_exchanges(talk: Talk) -> None:
    channel = talk.channel()
    for word in WORDS:
        channel.declare(talk.name(word))
        channel.exchange(talk.name(word), "fanout")


def _try_each(talk: Talk, attempt: Callable[[Channel, str], object]) -> None:
    """Make an attempt on each of the names, on a channel of its own."""
    connection = talk.connection(**LIMITED)
    for number, word in enumerate(WORDS, start=1):
        attempt(connection.channel(number), talk.name(word))


@pytest.mark.covers("B-303")
def vhost_without_permission(talk: Talk) -> None:
    talk.connection(user="stranger", password="stranger")


@pytest.mark.covers("B-235", "B-406")
def declaring_needs_configure(talk: Talk) -> None:
    _try_each(talk, lambda channel, name: channel.declare(name))
    _try_each(talk, lambda channel, name: channel.exchange(name, "fanout"))
    talk.connection(**LIMITED).channel().declare("", exclusive=True)


@pytest.mark.covers("B-406", "exchange.declare", "queue.declare")
def passive_declares_need_little(talk: Talk) -> None:
    _with_queues_and_exchanges(talk)
    _try_each(talk, lambda channel, name: channel.declare(name, passive=True))
    _try_each(talk, lambda channel, name: channel.exchange(name, passive=True))


@pytest.mark.covers("B-235", "B-406")
def deleting_needs_configure(talk: Talk) -> None:
    _with_queues_and_exchanges(talk)
    _try_each(talk, lambda channel, name: channel.call(commands.Queue.Delete(queue=name)))
    _try_each(talk, lambda channel, name: channel.call(commands.Exchange.Delete(exchange=name)))


@pytest.mark.covers("B-235", "B-406")
def publishing_needs_write(talk: Talk) -> None:
    _with_queues_and_exchanges(talk)

    def publish(channel: Channel, name: str) -> None:
        channel.publish(name, "k", mandatory=True)
        channel.read_answer()

    _try_each(talk, publish)
    channel = talk.connection(**LIMITED).channel()
    channel.publish("", talk.name("mine"))
    channel.read_answer()


@pytest.mark.covers("B-235", "B-406")
def reading_needs_read(talk: Talk) -> None:
    _with_queues_and_exchanges(talk)
    _try_each(talk, lambda channel, name: channel.get(name))
    _try_each(talk, lambda channel, name: channel.consume(name, "tag"))
    _try_each(talk, lambda channel, name: channel.call(commands.Queue.Purge(queue=name)))


@pytest.mark.covers("B-235", "B-406")
def binding_needs_write_to_one_and_read_of_the_other(talk: Talk) -> None:
    _with_queues_and_exchanges(talk)
    mine = talk.name("mine")
    _try_each(talk, lambda channel, name: channel.bind(name, mine))
    _try_each(talk, lambda channel, name: channel.bind(mine, name))
    unbind: Any = commands.Queue.Unbind
    _try_each(talk, lambda channel, name: channel.call(unbind(0, name, mine)))
    _try_each(talk, lambda channel, name: channel.call(unbind(0, mine, name)))


@pytest.mark.covers("B-235", "B-406")
def binding_exchanges_needs_the_same(talk: Talk) -> None:
    _with_queues_and_exchanges(talk)
    mine, bind, unbind = talk.name("mine"), commands.Exchange.Bind, commands.Exchange.Unbind
    _try_each(talk, lambda channel, name: channel.call(bind(0, name, mine)))
    _try_each(talk, lambda channel, name: channel.call(bind(0, mine, name)))
    _try_each(talk, lambda channel, name: channel.call(unbind(0, mine, name)))


@pytest.mark.covers("B-235", "B-406", "B-105")
def alternates_need_write(talk: Talk) -> None:
    """They are not asked about again where the exchange is there already."""
    connection = talk.connection(**LIMITED)
    for number, word in enumerate(WORDS, start=1):
        channel = connection.channel(number)
        alternate = {"alternate-exchange": talk.name(word)}
        answer = channel.exchange(talk.name("x.mine"), arguments=alternate)
        if isinstance(answer, commands.Exchange.DeclareOk):
            channel.exchange(talk.name("x.mine"), arguments=alternate)
            channel.call(commands.Exchange.Delete(exchange=talk.name("x.mine")))


@pytest.mark.covers("B-235")
def default_exchange_goes_by_another_name(talk: Talk) -> None:
    channel = talk.connection(**LIMITED).channel()
    channel.publish("", "anything")
    channel.read_answer()
