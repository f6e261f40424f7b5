"""Knowledge of which definitions all nodes have: a client is answered once they do.

So a client that is told a name by the client that declared it can use it at once, on any node, as
with RabbitMQ. Each node tells the controller how far it has applied what the coordinator has. One
that does not keep up is waited for only a moment, and not again before it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Final

from leveret.links.errors import LinkError
from leveret.ports.link_kinds import DEFINITIONS_APPLIED

if TYPE_CHECKING:
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator

__all__ = ["DefinitionVisibility"]

APPLIED: Final = struct.Struct("<Q")
WAIT_SECONDS_MAX: Final = 0.5


class DefinitionVisibility:
    """How far each node has applied the coordinator's changes, as this node knows.

    `node` is this one.
    """

    def __init__(self, coordinator: Coordinator, node: int) -> None:
        self.links: Links | None = None  # set once they are open
        self._coordinator = coordinator
        self._node = node
        self._applied: dict[int, tuple[int, int]] = {}  # by node: its session, and how far it is
        self._late: set[int] = set()  # nodes that are not waited for
        self._own = 0
        self._progress = asyncio.Event()

    # -- of this node

    def advanced(self, sequence: int) -> None:
        """Tell the controller that this node has applied everything up to a write."""
        self._own = sequence
        self.tell()

    def tell(self) -> None:
        """Tell the controller how far this node is, also when there is another controller."""
        controller = self._coordinator.controller
        if self.links is None or controller is None or controller == self._node:
            return
        # If it is not connected, it hears of the next change, and waits only a moment.
        with contextlib.suppress(LinkError):
            self.links.peer(controller).send(DEFINITIONS_APPLIED, APPLIED.pack(self._own))

    # -- of other nodes

    def told(self, peer: NodeIdentity, payload: memoryview) -> None:
        """Note how far another node is: the handler of its messages."""
        try:
            (sequence,) = APPLIED.unpack(payload)
        except struct.error:
            return
        self._applied[peer.node] = (peer.session, sequence)
        if sequence >= self._coordinator.sequence:
            self._late.discard(peer.node)
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def reached(self, sequence: int) -> None:
        """Wait until all nodes that keep up have applied everything up to a write."""
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while self._behind(sequence):
                    await self._progress.wait()
        except TimeoutError:
            self._late.update(self._behind(sequence))

    def _behind(self, sequence: int) -> list[int]:
        """Return the nodes that are waited for."""
        return [
            node
            for node, registered in self._coordinator.nodes.items()
            if node not in self._late
            and node != self._node
            and not self._has_reached(node, registered.session, sequence)
        ]

    def _has_reached(self, node: int, session: int, sequence: int) -> bool:
        told = self._applied.get(node)
        return told is not None and told[0] == session and told[1] >= sequence
