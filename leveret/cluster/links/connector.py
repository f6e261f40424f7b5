"""Keeps a link open to the one node that is wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.cluster.links.link import LinkLimits, NodeLink

__all__ = ["LinkConnector", "LinkDialing"]


class LinkDialing(NamedTuple):
    """How links to other nodes are opened."""

    address_of: Callable[[int], tuple[str, int] | None]  # host and port of a node, if known
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class LinkConnector:
    """Connects to a node, and again after a pause when the link has ended.

    The pause doubles from attempt to attempt, and is shortened by up to a half: nodes that lost
    their leader at the same time are not to come back at the same time. `make_link` makes a link to
    a node, `draw` returns random bytes.
    """

    def __init__(
        self,
        dialing: LinkDialing,
        limits: LinkLimits,
        loop: asyncio.AbstractEventLoop,
        make_link: Callable[[int], NodeLink],
        draw: Callable[[int], bytes],
    ) -> None:
        self._dialing, self._limits, self._loop = dialing, limits, loop
        self._make_link, self._draw = make_link, draw
        self._node: int | None = None
        self._link: NodeLink | None = None  # open, or on its way
        self._pause_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def want(self, node: int | None) -> None:
        """Keep a link to a node, and to no other; the end of the present one is told first."""
        if node == self._node:
            return
        self._node, self._pause_ms = node, self._limits.pause_ms_min
        link, self._link = self._link, None
        if link is not None:
            link.close("this node wants no link to that one any more")
        self._schedule(0)  # to `self._node`: who was told of the end may want another one

    def ended(self, link: NodeLink) -> None:
        """Connect again after a pause, if it was the present link."""
        if link is not self._link:
            return
        self._link = None
        if link.is_steady:
            self._pause_ms = self._limits.pause_ms_min
        self._schedule(self._pause_ms * (256 - self._draw(1)[0] / 2) / 256)
        self._pause_ms = min(2 * self._pause_ms, self._limits.pause_ms_max)

    def _schedule(self, pause_ms: float) -> None:
        """Have the next attempt begin after a pause; none if no node is wanted."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._timer = self._task = None
        if self._node is not None:
            self._timer = self._loop.call_later(pause_ms / 1000, self._connect, self._node)

    def _connect(self, node: int) -> None:
        link = self._link = self._make_link(node)
        address = self._dialing.address_of(node)
        if address is None:
            link.abort("no address of it is known")
        else:
            link.host, link.port = address
            self._task = self._dialing.spawn(self._dial(link, *address))

    async def _dial(self, link: NodeLink, host: str, port: int) -> None:
        """Connect a link; its own time limit ends the attempt."""
        try:
            await self._loop.create_connection(lambda: link, host, port)
        except (OSError, ValueError, OverflowError) as error:  # the latter: of an address
            link.abort(one_line(error))
