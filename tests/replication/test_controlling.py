"""The controller elects leaders, of what the table of partitions has."""

from __future__ import annotations

import asyncio

import pytest

from leveret.cluster.partition_state import Member, PartitionState
from leveret.ports.coordination import KeyChange, NodeRegistration
from leveret.replication.controlling import ControllerDuty
from leveret.replication.partition_table import PartitionTable
from leveret.replication.replicator import PARTITIONS_PREFIX
from tests.memory_coordinator import MemoryEnsemble
from tests.support.waiting import eventually

STATE = PartitionState((0, 1), frozenset([Member(0, 0), Member(1, 0)]))


@pytest.fixture
async def ensemble():
    return MemoryEnsemble()


def opened(ensemble, number):
    return ensemble.open(NodeRegistration(number, "", "", directory=f"data-{number}"))


async def test_leaders_are_elected_beside_states_that_make_no_sense(ensemble):
    coordinator = opened(ensemble, 0)
    table = PartitionTable(coordinator)
    duty = ControllerDuty(coordinator, table, lambda _key: True)
    values = {"a/0": STATE.to_bytes(), "b/0": b"no state", "c/0": STATE.to_bytes()}
    await coordinator.write(
        [KeyChange(PARTITIONS_PREFIX + key, value) for key, value in values.items()]
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(duty.run())
        await eventually(lambda: [each.leader for each in table.states.values()] == [0, 0])
        task.cancel()


async def test_a_table_has_the_states_of_now(ensemble):
    coordinator = opened(ensemble, 0)
    a, b = (f"{PARTITIONS_PREFIX}{key}" for key in ("a/0", "b/0"))
    await coordinator.write([KeyChange(a, STATE.to_bytes()), KeyChange(b, b"no state")])
    table = PartitionTable(coordinator)
    assert table.states == {"a/0": STATE}
    assert table.with_version("a/0") == (STATE, coordinator.entries[a].version)
    assert table.with_version("b/0") is None
    await coordinator.write([KeyChange(a, None), KeyChange(b, STATE.to_bytes())])
    assert table.states == {"b/0": STATE}
