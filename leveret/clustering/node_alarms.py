"""Resource alarms of the nodes of a cluster: while one has any, publishers of all are blocked.

As with RabbitMQ: a client publishes to queues that another node leads, and whose replicas fill
others' disks. Each node tells all others of its alarms whenever they change, and every second, so
that one that was not reached for a moment, or has just started, knows of them soon.

    0  u8  bits: 1 memory, 2 disk

What a node has told is forgotten when it is gone from the cluster, and when nothing is heard of it
any more: publishers must not wait for somebody who cannot say that all is well again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.core.alarms import Resource
from leveret.links.errors import LinkError
from leveret.ports.link_kinds import NODE_ALARMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.core.alarms import Alarms
    from leveret.links.accepted import MessageHandler
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator

__all__ = ["ClusterAlarms"]

logger = logging.getLogger(__name__)

TELL_SECONDS: Final = 1.0
SILENT_MS_MAX: Final = 10_000  # since a node was heard last; a busy one tells late
BITS: Final = {Resource.MEMORY: 1, Resource.DISK: 2}


class ToldAlarms(NamedTuple):
    """Last message of a node: its name and session, when it was heard, and what is low there."""

    name: str
    session: int
    heard_ms: int
    low: frozenset[Resource]


class ClusterAlarms:
    """Tells other nodes of this node's `alarms`, and has them know those of the others."""

    def __init__(
        self,
        node: int,
        coordinator: Coordinator,
        links: Links,
        alarms: Alarms,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._links = links
        self._alarms = alarms
        self._monotonic_ms = monotonic_ms
        self._told: dict[int, ToldAlarms] = {}

    @property
    def messages(self) -> Mapping[int, MessageHandler]:
        """Handlers of other nodes' messages, by their kinds."""
        return {NODE_ALARMS: self.heard}

    def low_of(self, node: int) -> frozenset[str]:
        """Return the names of the resources of a node that are low, as far as this one knows."""
        told = self._told.get(node)
        if node == self._node:
            low = frozenset(self._alarms.low)
        else:
            low = frozenset() if told is None else told.low
        return frozenset(resource.value for resource in low)

    async def run(self) -> None:
        """Tell and forget, until cancelled."""
        self._alarms.on_change = self.tell
        self._coordinator.follow_nodes(self.forget)
        while True:
            self.tell()
            self.forget()
            await asyncio.sleep(TELL_SECONDS)

    def tell(self) -> None:
        """Tell all other nodes of the alarms of this one."""
        bits = sum(BITS[resource] for resource in self._alarms.low)
        for node in self._coordinator.nodes.keys() - {self._node}:
            with contextlib.suppress(LinkError):  # it is told again
                self._links.peer(node).send(NODE_ALARMS, bytes((bits,)))

    def heard(self, peer: NodeIdentity, payload: memoryview) -> None:
        """Note the alarms of another node: the handler of its messages."""
        registered = self._coordinator.nodes.get(peer.node)
        if registered is None or registered.session != peer.session or len(payload) != 1:
            return
        name = registered.name or f"leveret-{peer.node}"
        before = self._told.get(peer.node)
        if before is not None and before.name != name:
            self._set(before.name, frozenset())
        low = frozenset(each for each, bit in BITS.items() if payload[0] & bit)
        self._told[peer.node] = ToldAlarms(name, peer.session, self._monotonic_ms(), low)
        self._set(name, low)

    def forget(self) -> None:
        """Forget the alarms of nodes that are gone, or of which nothing is heard."""
        heard_after_ms = self._monotonic_ms() - SILENT_MS_MAX
        for node, told in list(self._told.items()):
            registered = self._coordinator.nodes.get(node)
            is_there = registered is not None and registered.session == told.session
            if not is_there or told.heard_ms < heard_after_ms:
                del self._told[node]
                self._set(told.name, frozenset())

    def _set(self, name: str, low: frozenset[Resource]) -> None:
        if not self._alarms.set_elsewhere(name, low):
            return
        names = [resource.value for resource in BITS if resource in low]
        if names:
            text = f"runs low on {' and '.join(names)}; publishers are blocked on all nodes"
            logger.warning("node %s %s until the alarm clears", name, text)
        else:
            logger.warning("node %s: alarm cleared", name)
