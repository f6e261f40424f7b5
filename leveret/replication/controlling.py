"""The controller's duty: while this node is the controller, it elects the leaders of partitions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from leveret.cluster.controller import elect
from leveret.ports.coordination import (
    ConflictError,
    CoordinatorError,
    KeyChange,
    draining_nodes,
)
from leveret.replication.replicator import PARTITIONS_PREFIX, registrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports.coordination import Coordinator
    from leveret.replication.partition_table import PartitionTable

__all__ = ["ControllerDuty"]

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0  # should a change have been missed, or a write have failed
STATES_AT_ONCE: Final = 200  # of one write: it is far below a znode's bound


class ControllerDuty:
    """Elects leaders when nodes come and go. `survives_power_loss(key)` is asked for each log."""

    def __init__(
        self,
        coordinator: Coordinator,
        table: PartitionTable,
        survives_power_loss: Callable[[str], bool],
    ) -> None:
        self._coordinator = coordinator
        self._table = table
        self._survives = survives_power_loss
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self._coordinator.follow_nodes(self._wake.set)
        self._coordinator.follow_controller(self._wake.set)
        while True:
            if self._coordinator.is_controller:
                try:
                    await self._elect()
                except CoordinatorError as error:
                    logger.warning("leaders cannot be elected now: %s", error)
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _elect(self) -> None:
        """Elect where the leader is gone, or has begun anew."""
        nodes = registrations(self._coordinator)
        changes: list[KeyChange] = []
        entries = self._coordinator.entries
        avoided = draining_nodes(entries)
        for key, state in self._table.states.items():
            wanted = elect(state, nodes, survives_power_loss=self._survives(key), avoided=avoided)
            if wanted is not None:
                name = PARTITIONS_PREFIX + key
                changes.append(KeyChange(name, wanted.to_bytes(), entries[name].version))
        for first in range(0, len(changes), STATES_AT_ONCE):
            await self._write(changes[first : first + STATES_AT_ONCE])

    async def _write(self, changes: list[KeyChange]) -> None:
        """Write states; where one has changed meanwhile, the others by themselves."""
        try:
            await self._coordinator.write_as_controller(changes)
        except ConflictError as error:
            rest = [change for change in changes if change.key not in error.keys]
            if rest:
                await self._write(rest)
            self._wake.set()
