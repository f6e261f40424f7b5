"""A deleted log goes with the last who has it: nothing of it waits for the garbage collector."""

from __future__ import annotations

import pytest

from leveret.ports import Durability, Retention
from tests.storage.harness import committed, open_log, put, store_at
from tests.support.cycles import left_in_cycles


@pytest.mark.parametrize("durability", list(Durability))
async def test_a_deleted_log_leaves_no_cycle(tmp_path, durability):
    async with store_at(tmp_path) as store:
        await use(store, durability)  # what is made once for all
        with left_in_cycles() as left:
            for _ in range(3):
                await use(store, durability)
        assert left == []


async def use(store, durability):
    log = open_log(store, durability)
    log.on_commit(lambda: log.end)
    log.retention = Retention(bytes_max=1_000_000)
    put(log, b"first")
    if durability is not Durability.NONE:
        await committed(log, 1)
    log.settle([(0, 1)])
    await log.delete()
