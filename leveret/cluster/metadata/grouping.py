"""Writes that share a batch: as many of those that wait as fit, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.coordination import WRITE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.cluster.metadata.changes import PendingWrite
    from leveret.cluster.metadata.state import MetadataState

__all__ = ["WriteGroup", "group_writes"]

WRITES_MAX = 1000  # checking and applying more would hold the event loop for milliseconds


class WriteGroup(NamedTuple):
    """Outcome of the first `taken` writes: the places of those to be made, and all conflicts."""

    taken: int
    accepted: list[int]
    conflicts: list[tuple[int, list[str]]]


def group_writes(state: MetadataState, waiting: Iterable[PendingWrite]) -> WriteGroup:
    """Return which of the waiting writes go into the next batch, and which are in conflict.

    All changes of a batch have one version. So a write that touches a key which an earlier one in
    the batch changes waits for the next: nobody could tell its value from the earlier one.
    """
    accepted: list[int] = []
    conflicts: list[tuple[int, list[str]]] = []
    changed: set[str] = set()
    size = taken = 0
    for write in waiting:
        size += write.size
        keys = {change.key for change in write.changes}
        touched = keys.union(check.key for check in write.checks)
        if taken == WRITES_MAX or size > WRITE_BYTES_MAX or not changed.isdisjoint(touched):
            break
        found = state.conflicts(write)
        if found:
            conflicts.append((taken, found))
            size -= write.size
        else:
            accepted.append(taken)
            changed |= keys
        taken += 1
    return WriteGroup(taken, accepted, conflicts)
