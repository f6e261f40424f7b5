"""The controller makes the partitions of decisions, and gives them more replicas in time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from leveret.cluster.moves import PartitionMove
from leveret.clustering.transactions.placing import DecisionPlacing, decisions_key
from leveret.ports.coordination import (
    DRAINING,
    MOVES_PREFIX,
    NODES_PREFIX,
    KeyChange,
    NodeRegistration,
)
from leveret.replication.partition_table import PartitionTable
from leveret.replication.replicator import PARTITIONS_PREFIX
from tests.memory_coordinator import MemoryEnsemble
from tests.support.waiting import eventually


class PlacedDecisions:
    """A controller, node 0, and what it has placed."""

    def __init__(self) -> None:
        self.ensemble = MemoryEnsemble()
        self.coordinator = self.add_node(0)
        self.table = PartitionTable(self.coordinator)

    def add_node(self, number: int):
        return self.ensemble.open(NodeRegistration(number, "", "", directory=f"data-{number}"))

    @contextlib.asynccontextmanager
    async def placed(self, partitions: int = 2):
        """Have the controller do its duty."""
        placing = DecisionPlacing(self.coordinator, self.table, partitions=partitions)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(placing.run())
            yield
            task.cancel()

    async def replicas(self, *wanted: set[int]) -> None:
        """Wait until the partitions have these replicas."""
        keys = [decisions_key(number) for number in range(len(wanted))]
        states = self.table.states
        await eventually(
            lambda: (
                [set(states[key].replicas) if key in states else set() for key in keys]
                == list(wanted)
            )
        )


@pytest.fixture
def decisions():
    return PlacedDecisions()


async def test_partitions_grow_with_the_cluster(decisions):
    async with decisions.placed():
        await decisions.replicas({0}, {0})
        decisions.add_node(1)
        await decisions.replicas({0, 1}, {0, 1})
        decisions.add_node(2)
        decisions.add_node(3)
        await eventually(
            lambda: all(len(state.replicas) == 3 for state in decisions.table.states.values())
        )
    assert {state.leader for state in decisions.table.states.values()} == {0}


async def test_draining_nodes_get_none_unless_all_are_draining(decisions):
    for node in (0, 2):
        await decisions.coordinator.write([KeyChange(f"{NODES_PREFIX}{node}", DRAINING)])
    async with decisions.placed():
        await decisions.replicas({0}, {0})
        decisions.add_node(1)
        decisions.add_node(2)
        await decisions.replicas({0, 1}, {0, 1})
        await decisions.coordinator.write([KeyChange(f"{NODES_PREFIX}2", None)])
        decisions.add_node(3)  # so that it looks again
        await eventually(
            lambda: all(len(state.replicas) == 3 for state in decisions.table.states.values())
        )


async def test_what_moves_has_its_replicas_afterwards(decisions):
    async with decisions.placed():
        await decisions.replicas({0}, {0})
        key = MOVES_PREFIX + decisions_key(0)
        move = PartitionMove((1,), (0,))
        await decisions.coordinator.write([KeyChange(key, move.to_bytes())])
        decisions.add_node(1)
        await decisions.replicas({0}, {0, 1})
        await decisions.coordinator.write([KeyChange(key, None)])
        decisions.add_node(2)
        await decisions.replicas({0, 1, 2}, {0, 1, 2})


async def test_states_that_make_no_sense_stop_nothing(decisions):
    await decisions.coordinator.write([KeyChange(f"{PARTITIONS_PREFIX}of/0", b"no state")])
    async with decisions.placed():
        await decisions.replicas({0}, {0})
