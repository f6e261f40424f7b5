"""The nodes that are live, as the coordinator last told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.cluster.entries import LIVE, LiveValue, MalformedEntryError, live_path, parse_entry
from leveret.cluster.numbered_entries import read_numbered
from leveret.cluster.refresh import Refresh

if TYPE_CHECKING:
    from leveret.ports.coordinator import Coordinator

__all__ = ["LiveNodes", "read_live"]


async def read_live(coordinator: Coordinator) -> dict[int, LiveValue]:
    """Return the live nodes.

    Raises CoordinatorError; MalformedEntryError among others, since a node whose entry nobody
    understands may lead, and must not be taken for dead by who elects another one.
    """
    live, malformed = await _read_understood(coordinator)
    if malformed is not None:
        raise malformed
    return live


async def _read_understood(
    coordinator: Coordinator,
) -> tuple[dict[int, LiveValue], MalformedEntryError | None]:
    """Return the live nodes whose entries are understood, and what is wrong with another one.

    Raises CoordinatorError.
    """
    live: dict[int, LiveValue] = {}
    malformed: MalformedEntryError | None = None
    for node, entry in (await read_numbered(coordinator, LIVE)).items():
        try:
            live[node] = parse_entry(LiveValue, live_path(node), entry)
        except MalformedEntryError as error:
            malformed = error
    return live, malformed


class LiveNodes:
    """Keeps `nodes` up to date, a moment behind: those whose entries are understood."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.nodes: dict[int, LiveValue] = {}
        self._coordinator = coordinator
        self._refresh = Refresh(self._read)
        self._unwatch = coordinator.watch(LIVE, self._refresh.ask)
        self._refresh.ask()

    async def _read(self) -> None:
        self.nodes, malformed = await _read_understood(self._coordinator)
        if malformed is not None:
            raise malformed  # so that it is told, and read again

    @property
    def incarnations(self) -> dict[int, int]:
        """Incarnations of the live nodes."""
        return {node: live.incarnation for node, live in self.nodes.items()}

    def address(self, node: int) -> tuple[str, int] | None:
        """Return where a live node is reached by others."""
        live = self.nodes.get(node)
        return None if live is None else (live.host, live.port)

    async def close(self) -> None:
        """Stop looking."""
        self._unwatch()
        await self._refresh.close()
