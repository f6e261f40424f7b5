"""Which nodes have links with each other, as they tell by the coordinator.

A leader without links to its followers cannot know whether it is cut off or they have died: the
coordinator knows of that seconds later. So a node that has no link to one that is registered writes
down to which ones it has. Who reads that knows that it lives, and whether it could lead.

    links/NODE    {"session": 3, "linked": [1, 4]}
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from leveret.ports.coordination import LINKS_PREFIX, CoordinatorError, KeyChange

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator

__all__ = ["PATIENT_LOOKS", "LinkReports"]

logger = logging.getLogger(__name__)

# Looks in a row, one each quarter of a second, at which links are missing before that counts. A
# node that was only busy is dialed again, and dials, within less, and does not look while it is.
PATIENT_LOOKS: Final = 4


class LinkReports:
    """Tells others of this node's links, and knows what they tell. `start` starts a task."""

    def __init__(
        self,
        node: int,
        coordinator: Coordinator,
        links: Links,
        start: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self.linked: frozenset[int] = frozenset()  # at the last look, whoever has dialed
        self._node = node
        self._coordinator = coordinator
        self._links = links
        self._start = start
        self._missing: Counter[int] = Counter()  # looks in a row, by node
        self._is_writing = False

    def look(self) -> None:
        """Look at the links, and report them if that is due."""
        self.linked = self._links.connected_nodes()
        missing = self._coordinator.nodes.keys() - self.linked - {self._node}
        self._missing = Counter({node: self._missing[node] + 1 for node in missing})
        key = f"{LINKS_PREFIX}{self._node}"
        entry = self._coordinator.entries.get(key)
        report = self._report()
        if report != (None if entry is None else entry.value) and not self._is_writing:
            self._is_writing = True
            self._start(self._write(KeyChange(key, report)))

    def _report(self) -> bytes | None:
        """Return what is to be told; None if no link has been missing for long."""
        if max(self._missing.values(), default=0) < PATIENT_LOOKS:
            return None
        told = {"session": self._coordinator.session, "linked": sorted(self.linked)}
        return json.dumps(told, separators=(",", ":")).encode()

    async def _write(self, change: KeyChange) -> None:
        try:
            await self._coordinator.write([change])
        except CoordinatorError as error:
            logger.debug("links are not reported: %s", error)
        finally:
            self._is_writing = False

    def told_by(self, node: int) -> frozenset[int] | None:
        """Return to which nodes another one has links; None if it does not tell."""
        entry = self._coordinator.entries.get(f"{LINKS_PREFIX}{node}")
        known = self._coordinator.nodes.get(node)
        if entry is None or known is None:
            return None
        try:
            told = json.loads(entry.value)
            if told["session"] != known.session:
                return None  # an earlier process
            return frozenset(map(int, told["linked"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            logger.debug("node %d tells nothing of its links: %s", node, error)
            return None
