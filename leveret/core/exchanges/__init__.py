"""Exchange types; a new one is a file in this package and a line in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from leveret.core.exchanges.consistent_hash import ConsistentHashRouter
from leveret.core.exchanges.direct import DirectRouter
from leveret.core.exchanges.fanout import FanoutRouter
from leveret.core.exchanges.headers import HeadersRouter
from leveret.core.exchanges.modulus_hash import ModulusHashRouter
from leveret.core.exchanges.random_exchange import LocalRandomRouter, RandomRouter
from leveret.core.exchanges.recent_history import RecentHistoryRouter
from leveret.core.exchanges.topic import TopicRouter
from leveret.errors import ChannelError
from leveret.ports.definitions import Arguments

if TYPE_CHECKING:
    from leveret.core.routing.router import Router

# `random_below(n)` returns one of 0 … n - 1.
RandomBelow: TypeAlias = Callable[[int], int]
RouterMaker: TypeAlias = Callable[[Arguments, RandomBelow], "Router"]

DELAYED_MESSAGE, DELAYED_TYPE = "x-delayed-message", "x-delayed-type"


def _certain(router: Callable[[Arguments], Router]) -> RouterMaker:
    """Return a maker of routers that need no randomness."""
    return lambda arguments, _: router(arguments)


def _delayed(arguments: Arguments, random_below: RandomBelow) -> Router:
    """Return a router of the type in `x-delayed-type`, as RabbitMQ's delayed message plugin.

    Delays are handled before routing, for messages to any exchange.
    """
    inner = arguments.get(DELAYED_TYPE)
    if not isinstance(inner, str):
        raise ChannelError(
            406, f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
        )
    if inner == DELAYED_MESSAGE:
        raise ChannelError(
            406, f"Invalid argument, '{DELAYED_MESSAGE}' can't be used for '{DELAYED_TYPE}'"
        )
    check_type(inner)
    return EXCHANGE_TYPES[inner](arguments, random_below)


EXCHANGE_TYPES: dict[str, RouterMaker] = {
    "direct": _certain(DirectRouter),
    "fanout": _certain(FanoutRouter),
    "headers": _certain(HeadersRouter),
    "topic": _certain(TopicRouter),
    "x-consistent-hash": _certain(ConsistentHashRouter),
    DELAYED_MESSAGE: _delayed,
    "x-local-random": LocalRandomRouter,
    "x-modulus-hash": _certain(ModulusHashRouter),
    "x-random": RandomRouter,
    "x-recent-history": _certain(RecentHistoryRouter),
}

EXTENSIONS = {
    "x-consistent-hash": "Shares messages out by weight; equal hashes stay together",
    DELAYED_MESSAGE: "Delivers when a message's x-delay is over, as its x-delayed-type does",
    "x-local-random": "Sends each message to one queue of this node, drawn by lot",
    "x-modulus-hash": "Sends each message to one binding, by its routing key's hash",
    "x-random": "Sends each message to one binding, drawn by lot",
    "x-recent-history": "Sends everything everywhere, and the last messages to new bindings",
}


def describe_type(name: str) -> str:
    """Return the description of a type for people."""
    return EXTENSIONS.get(name, f"AMQP {name} exchange, as per the AMQP specification")


def check_type(name: str) -> None:
    """Raise 406 for an unknown type."""
    if name not in EXCHANGE_TYPES:
        raise ChannelError(406, f"unknown exchange type '{name}'")
