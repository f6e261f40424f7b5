"""The exchange types there are: a new one is a file beside these and a line in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.exchanges.direct import DirectRouter
from leveret.core.exchanges.fanout import FanoutRouter
from leveret.core.exchanges.headers import HeadersRouter
from leveret.core.exchanges.topic import TopicRouter
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.exchanges.router import Router
    from leveret.ports.definitions import Arguments

EXCHANGE_TYPES: dict[str, Callable[[Arguments], Router]] = {
    "direct": DirectRouter,
    "fanout": FanoutRouter,
    "headers": HeadersRouter,
    "topic": TopicRouter,
}


def check_type(name: str) -> None:
    """Raise 406 for a type that does not exist."""
    if name not in EXCHANGE_TYPES:
        raise ChannelError(406, f"unknown exchange type '{name}'")
