"""Partitions of the decisions: the controller makes them, and gives them more replicas in time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from leveret.cluster.assignment import NodeLoad, assign
from leveret.cluster.controller import elect, reassign
from leveret.cluster.partition_state import Member, PartitionState
from leveret.clustering.operating.states import known_moves, racks_for_new
from leveret.core.settings.replication import Acks, Replication
from leveret.ports.coordination import CoordinatorError, KeyChange
from leveret.replication.replicator import PARTITIONS_PREFIX, registrations

if TYPE_CHECKING:
    from leveret.ports.coordination import Coordinator
    from leveret.replication.partition_table import PartitionTable

__all__ = [
    "DECISIONS_KEY",
    "DECISIONS_REPLICATION",
    "PARTITIONS",
    "DecisionPlacing",
    "decisions_key",
]

logger = logging.getLogger(__name__)

DECISIONS_KEY: Final = "leveret.transactions/"  # and the number: no queue's incarnation has a dot
PARTITIONS: Final = 16
DECISIONS_REPLICATION: Final = Replication(replicas=3, acks=Acks.ALL, in_sync_min=2)
REPLICAS: Final = DECISIONS_REPLICATION.replicas
CHECK_SECONDS: Final = 5.0  # should a change have been missed, or a write have failed


def decisions_key(partition: int) -> str:
    """Return the key of a partition of the decisions."""
    return f"{DECISIONS_KEY}{partition}"


class DecisionPlacing:
    """The controller's duty to the decisions."""

    def __init__(
        self, coordinator: Coordinator, table: PartitionTable, *, partitions: int = PARTITIONS
    ) -> None:
        self._coordinator = coordinator
        self._table = table
        self._keys = [decisions_key(number) for number in range(partitions)]
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self._coordinator.follow_nodes(self._wake.set)
        self._coordinator.follow_controller(self._wake.set)
        while True:
            if self._coordinator.is_controller and self._coordinator.nodes:
                try:
                    await self._place()
                except CoordinatorError as error:
                    logger.warning("decisions about transactions stay where they are: %s", error)
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _place(self) -> None:
        """Make the partitions that are missing; give replicas to those that have too few."""
        changes = self._changes()
        if changes:
            await self._coordinator.write_as_controller(changes)

    def _changes(self) -> list[KeyChange]:
        states, moves = self._table.states, known_moves(self._coordinator)
        lacking = [
            key
            for key in self._keys
            if key not in states or (len(states[key].replicas) < REPLICAS and key not in moves)
        ]
        if not lacking:
            return []
        racks = racks_for_new(self._coordinator)
        load = NodeLoad.of(states.values())
        changes = []
        for key in lacking:
            known = self._table.with_version(key)
            if known is None:
                changes.append(KeyChange(PARTITIONS_PREFIX + key, self._made(racks, load), 0))
            elif (grown := _grown(known[0], racks, load)) is not None:
                changes.append(KeyChange(PARTITIONS_PREFIX + key, grown.to_bytes(), known[1]))
        return changes

    def _made(self, racks: dict[int, str], load: NodeLoad) -> bytes:
        """Return the state of a new partition."""
        nodes = registrations(self._coordinator)
        (replicas,) = assign(1, REPLICAS, racks, load)
        members = frozenset(Member(node, nodes[node].incarnation) for node in replicas)
        state = PartitionState(replicas, members)
        return (elect(state, nodes, survives_power_loss=True) or state).to_bytes()


def _grown(state: PartitionState, racks: dict[int, str], load: NodeLoad) -> PartitionState | None:
    """Return the state with as many replicas as there should be; None: there are no nodes."""
    others = {node: rack for node, rack in racks.items() if node not in state.replicas}
    if not others:
        return None
    (more,) = assign(1, REPLICAS - len(state.replicas), others, load)
    return reassign(state, (*state.replicas, *more))
