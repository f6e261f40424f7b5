"""The exchange types there are: a new one is a file beside these and a line in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from leveret.core.exchanges.chance import LocalRandomRouter, RandomRouter
from leveret.core.exchanges.consistent_hash import ConsistentHashRouter
from leveret.core.exchanges.direct import DirectRouter
from leveret.core.exchanges.fanout import FanoutRouter
from leveret.core.exchanges.headers import HeadersRouter
from leveret.core.exchanges.modulus_hash import ModulusHashRouter
from leveret.core.exchanges.recent_history import RecentHistoryRouter
from leveret.core.exchanges.topic import TopicRouter
from leveret.errors import ChannelError
from leveret.ports.definitions import Arguments

if TYPE_CHECKING:
    from leveret.core.exchanges.router import Router

# `random_below(n)` draws one of 0 … n - 1.
RandomBelow: TypeAlias = Callable[[int], int]
RouterMaker: TypeAlias = Callable[[Arguments, RandomBelow], "Router"]


def _certain(router: Callable[[Arguments], Router]) -> RouterMaker:
    """A type that leaves nothing to chance."""
    return lambda arguments, _: router(arguments)


EXCHANGE_TYPES: dict[str, RouterMaker] = {
    "direct": _certain(DirectRouter),
    "fanout": _certain(FanoutRouter),
    "headers": _certain(HeadersRouter),
    "topic": _certain(TopicRouter),
    "x-consistent-hash": _certain(ConsistentHashRouter),
    "x-local-random": LocalRandomRouter,
    "x-modulus-hash": _certain(ModulusHashRouter),
    "x-random": RandomRouter,
    "x-recent-history": _certain(RecentHistoryRouter),
}


def check_type(name: str) -> None:
    """Raise 406 for a type that does not exist."""
    if name not in EXCHANGE_TYPES:
        raise ChannelError(406, f"unknown exchange type '{name}'")
