"""The nodes that are live, as the coordinator last told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leveret.cluster.entries import LIVE, LiveValue, live_path, parse_entry
from leveret.cluster.refresh import Refresh

if TYPE_CHECKING:
    from leveret.ports.coordinator import Coordinator

__all__ = ["LiveNodes", "read_live"]


async def read_live(coordinator: Coordinator) -> dict[int, LiveValue]:
    """Return the live nodes. Raises CoordinatorError."""
    names = [name for name in await coordinator.children(LIVE) if name.isdecimal()]
    paths = [live_path(int(name)) for name in names]
    found = await asyncio.gather(*(coordinator.read(path) for path in paths))
    return {
        int(name): parse_entry(LiveValue, path, entry)
        for name, path, entry in zip(names, paths, found, strict=True)
        if entry is not None
    }


class LiveNodes:
    """Keeps `nodes` up to date, a moment behind."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.nodes: dict[int, LiveValue] = {}
        self._coordinator = coordinator
        self._refresh = Refresh(self._read)
        self._unwatch = coordinator.watch(LIVE, self._refresh.ask)
        self._refresh.ask()

    async def _read(self) -> None:
        self.nodes = await read_live(self._coordinator)

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
