"""Figures of queues that other nodes lead: asked of these when somebody looks at a list.

    2000                    the request: the page that begins with this row
    4000                    the answer: where the next page begins, and of each partition
    INCARNATION/0 5 1 2 0   the ready and the leased messages, consumers, an exclusive one or not

The first line of the last answer is empty. What a node leads may change between two pages: what is
left out keeps its figures until the next time.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from leveret.clustering.forwarding.wire import QueueFigures
from leveret.links.errors import LinkError, PeerRefusedError
from leveret.mgmt_ui.queue_nodes import QueueNodes
from leveret.ports.link_kinds import LED_FIGURES
from leveret.ports.waiting import let_others_run
from leveret.replication.replica import partition_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leveret.cluster.partition_state import PartitionState
    from leveret.clustering.placement import PartitionPlacement
    from leveret.core.routing.bindings import QueueLike
    from leveret.links.accepted import RequestHandler
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator
    from leveret.replication.partition_table import PartitionTable

__all__ = ["ClusterQueues"]

logger = logging.getLogger(__name__)

PAGE_ROWS: Final = 2000  # some milliseconds of the event loop
FRESH_SECONDS: Final = 1.0  # for which nobody is asked again
ANSWER_SECONDS_MAX: Final = 2.0  # whoever looks at a list does not wait longer for a slow node
BAD_REQUEST: Final = 1
DIGITS_MAX: Final = 9


class ClusterQueues:
    """`QueuesOfCluster` of a node of a cluster."""

    def __init__(
        self,
        node: int,
        coordinator: Coordinator,
        links: Links,
        *,
        placement: PartitionPlacement,
        table: PartitionTable,
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._links = links
        self._placement = placement
        self._table = table
        self._asked_at = -FRESH_SECONDS  # by the clock of the loop
        self._lock = asyncio.Lock()

    @property
    def requests(self) -> Mapping[int, RequestHandler]:
        """Handlers of other nodes' requests, by their kinds."""
        return {LED_FIGURES: self.serve}

    # -- asking

    async def refresh(self) -> None:
        """Have figures that are at most a second old, of all nodes that answer in time."""
        async with self._lock:  # all who come meanwhile get the same
            seconds = asyncio.get_running_loop().time
            if seconds() - self._asked_at < FRESH_SECONDS:
                return
            await asyncio.gather(*map(self._ask, self._coordinator.nodes.keys() - {self._node}))
            self._asked_at = seconds()

    async def _ask(self, node: int) -> None:
        """Take what a node tells of what it leads; without an answer, figures stay as they are."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                page = "0"
                while page:
                    answer = await self._links.peer(node).request(
                        LED_FIGURES, page.encode(), timeout_s=ANSWER_SECONDS_MAX
                    )
                    page = self._take(bytes(answer))
                    await let_others_run()
        except (LinkError, TimeoutError, ValueError) as error:
            logger.info("lists have old figures of queues that node %d leads: %r", node, error)

    def _take(self, answer: bytes) -> str:
        """Note the figures of an answer; return where the next page begins."""
        following, *lines = answer.decode().split("\n")
        for line in filter(None, lines):
            key, *figures = line.split(" ")
            ready, leased, consumers, exclusive = map(int, figures)
            self._placement.note_figures(
                key, QueueFigures(0, ready, leased, consumers, bool(exclusive))
            )
        return str(int(following)) if following else ""

    # -- answering

    async def serve(self, _: NodeIdentity, payload: memoryview) -> bytes:
        """Answer a request for a page."""
        digits = bytes(payload)
        if not digits.isdigit() or len(digits) > DIGITS_MAX:
            raise PeerRefusedError(BAD_REQUEST, "no number of a page's first row")
        first = int(digits)
        rows = list(islice(self._placement.led_figures(), first, first + PAGE_ROWS))
        lines = ["" if len(rows) < PAGE_ROWS else str(first + PAGE_ROWS)]
        lines += [
            f"{key} {each.ready} {each.leased} {each.consumers} {int(each.exclusive)}"
            for key, each in rows
        ]
        return "\n".join(lines).encode()

    # -- places

    def nodes_of(self, queue: QueueLike) -> QueueNodes:
        """Return the names of the nodes that have a queue."""
        definition = queue.definition
        home = definition.home
        states = list(self._states(queue))
        if home is not None or not states:
            name = self._name(self._node if home is None else home.node)
            return QueueNodes(name, (name,), (name,))
        nodes = sorted({node for state in states for node in state.replicas})
        leader = states[0].leader
        return QueueNodes(
            "" if leader is None else self._name(leader),
            tuple(map(self._name, nodes)),
            tuple(self._name(node) for node in nodes if node in self._coordinator.nodes),
        )

    def _states(self, queue: QueueLike) -> Iterator[PartitionState]:
        for place in queue.places:
            key = partition_key(queue.definition.incarnation, place.number)
            state = self._table.states.get(key)
            if state is not None:
                yield state

    def _name(self, node: int) -> str:
        known = self._coordinator.nodes.get(node)
        return f"leveret-{node}" if known is None or not known.name else known.name
