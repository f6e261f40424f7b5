"""States of all partitions as the coordinator has them, parsed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.cluster.partition_state import PartitionState
from leveret.replication.replicator import PARTITIONS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.ports.coordination import Coordinator, KeyChange

__all__ = ["PartitionTable"]

logger = logging.getLogger(__name__)


class PartitionTable:
    """States of all partitions, by the keys of their logs, as the coordinator has them.

    They are parsed once: there may be ten thousands.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._states: dict[str, PartitionState] = {}
        entries = coordinator.entries
        for name in entries.keys(PARTITIONS_PREFIX):
            self._put(name, entries[name].value)
        coordinator.follow(self._changed)

    def _changed(self, _sequence: int, changes: Sequence[KeyChange]) -> None:
        for change in changes:
            if change.key.startswith(PARTITIONS_PREFIX):
                self._put(change.key, change.value)

    def _put(self, name: str, value: bytes | None) -> None:
        key = name.removeprefix(PARTITIONS_PREFIX)
        try:
            if value is None:
                self._states.pop(key, None)
            else:
                self._states[key] = PartitionState.from_bytes(value)
        except ValueError as error:
            logger.warning("%s stays as it is: %s", key, error)
            self._states.pop(key, None)

    @property
    def states(self) -> Mapping[str, PartitionState]:
        """The states as of now."""
        return self._states

    def with_version(self, key: str) -> tuple[PartitionState, int] | None:
        """Return a state, and the version that a write of it expects."""
        entry = self._coordinator.entries.get(PARTITIONS_PREFIX + key)
        state = self._states.get(key)
        return None if entry is None or state is None else (state, entry.version)
