"""Comparison of the nodes' clocks: times of messages are those of the node that took them.

Delays, expirations and retention by age are as wrong as two nodes' clocks differ. So each node asks
the others what time it is, and says where that is far from its own time.

    answer, little-endian: 0  u64  milliseconds since 1970

Half of the round trip is what the answer took; a slow one says nothing, so it is left out.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Final

from leveret.links.errors import LinkError
from leveret.ports.link_kinds import READ_CLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.links.accepted import RequestHandler
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports import Clock
    from leveret.ports.coordination import Coordinator

__all__ = ["OFFSET_SECONDS_MAX", "ClusterClocks"]

logger = logging.getLogger(__name__)

COMPARE_SECONDS: Final = 10.0
ANSWER_SECONDS_MAX: Final = 1.0
ROUND_TRIP_MS_MAX: Final = 200  # so that an answer is wrong by a tenth of a second at most
OFFSET_SECONDS_MAX: Final = 1.0  # with NTP, clocks differ by milliseconds
TIME: Final = struct.Struct("<Q")


class ClusterClocks:
    """Clocks of the other nodes, compared with that of this one.

    `offsets` are the seconds by which the clocks of nodes are ahead of this node's, as far as they
    have answered; negative where they are behind.
    """

    def __init__(self, node: int, coordinator: Coordinator, links: Links, clock: Clock) -> None:
        self.offsets: dict[int, float] = {}
        self._node = node
        self._coordinator = coordinator
        self._links = links
        self._clock = clock
        self._differing: set[int] = set()  # of which the log says so

    @property
    def requests(self) -> Mapping[int, RequestHandler]:
        """Handlers of other nodes' requests, by their kinds."""
        return {READ_CLOCK: self.serve}

    async def serve(self, _: NodeIdentity, _payload: memoryview) -> bytes:
        """Answer what time it is here."""
        return TIME.pack(self._clock.wall_ms())

    async def run(self) -> None:
        """Compare, until cancelled."""
        while True:
            await self.compare()
            await asyncio.sleep(COMPARE_SECONDS)

    async def compare(self) -> None:
        """Ask all nodes once."""
        others = self._coordinator.nodes.keys() - {self._node}
        for node in self.offsets.keys() - others:
            del self.offsets[node]
            self._differing.discard(node)
        await asyncio.gather(*map(self._compare, others))

    async def _compare(self, node: int) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            answer = await self._links.peer(node).request(
                READ_CLOCK, b"", timeout_s=ANSWER_SECONDS_MAX
            )
            (theirs_ms,) = TIME.unpack(answer)
        except (LinkError, struct.error) as error:
            logger.debug("node %d does not say what time it is: %r", node, error)
            return
        took_ms = self._clock.monotonic_ms() - began_ms
        if took_ms <= ROUND_TRIP_MS_MAX:
            self._note(node, (theirs_ms - self._clock.wall_ms() + took_ms / 2) / 1000)

    def _note(self, node: int, seconds: float) -> None:
        """Note how far a node's clock is ahead, and log when that begins or ceases to be much."""
        self.offsets[node] = seconds
        if abs(seconds) <= OFFSET_SECONDS_MAX:
            if node in self._differing:
                logger.info("the clock of node %d agrees with this node's again", node)
            self._differing.discard(node)
        elif node not in self._differing:
            self._differing.add(node)
            logger.warning(
                "the clock of node %d is %.1f s %s this node's: delays, expirations and retention "
                "by age are wrong by as much; see that NTP runs on both",
                node,
                abs(seconds),
                "ahead of" if seconds > 0 else "behind",
            )
