"""The entry of a shard, as a replica reads and writes it at the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.cluster.entries import NodeValue, ShardValue, node_path, parse_entry, shard_path
from leveret.ports.coordinator import (
    CheckEntry,
    CoordinatorError,
    EntryOperation,
    SetEntry,
    WriteOutcome,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports.coordinator import Coordinator
    from leveret.replication.shard import ShardEntry

__all__ = ["ShardEntries"]


class ShardEntries:
    """Reads and writes the entry of one shard."""

    def __init__(self, coordinator: Coordinator, shard: int) -> None:
        self._coordinator = coordinator
        self._path = shard_path(shard)

    async def read(self) -> ShardEntry | None:
        """Return the entry, behind all writes that are done; None without one.

        Raises CoordinatorError.
        """
        found = await self._coordinator.read(self._path)
        return None if found is None else parse_entry(ShardValue, self._path, found).entry

    async def write(
        self, entry: ShardEntry, members: Sequence[tuple[int, int]] = (), *checks: CheckEntry
    ) -> WriteOutcome:
        """Replace the entry of the change before, if the checks hold.

        Each of the members must have its incarnation still. What cannot be read for that is as
        unknown as an answer that is lost; nothing was written then.
        """
        try:
            conditions = [await self._incarnation(*member) for member in members]
            found = await self._coordinator.read(self._path)
            if found is None or None in conditions:
                return WriteOutcome.CONFLICT
            if parse_entry(ShardValue, self._path, found).change != entry.change - 1:
                return WriteOutcome.CONFLICT
            value = ShardValue.of(entry).to_bytes()
            operations: list[EntryOperation] = [SetEntry(self._path, value, found.version)]
            operations += [condition for condition in conditions if condition is not None]
            return await self._coordinator.commit(*operations, *checks)
        except CoordinatorError:
            return WriteOutcome.UNKNOWN

    async def _incarnation(self, node: int, incarnation: int) -> CheckEntry | None:
        """Return what holds as long as a node has an incarnation; None if it has another.

        Raises CoordinatorError.
        """
        path = node_path(node)
        found = await self._coordinator.read(path)
        if found is None or parse_entry(NodeValue, path, found).incarnation != incarnation:
            return None
        return CheckEntry(path, found.version)
