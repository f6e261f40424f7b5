"""Logs that rest give their files back, and go on where they stopped."""

from __future__ import annotations

import pytest

from leveret.ports import Durability
from leveret.storage.state import MemoryStateStore
from tests.storage.harness import bodies, committed, open_log, put, store_at
from tests.support.waiting import eventually

LOGS, OPEN_MAX = 20, 4


def open_count(store) -> int:
    return sum(log.segments[-1].handle is not None for log in store.logs() if log.segments)


@pytest.mark.parametrize("durability", list(Durability))
async def test_few_files_serve_many_logs(tmp_path, durability):
    state = MemoryStateStore()
    limits = {"open_segments_max": OPEN_MAX, "segment_bytes_max": 400, "tail_cache_bytes_max": 1}
    async with store_at(tmp_path, state=state, **limits) as store:
        logs = [open_log(store, durability, topic=f"q{number}") for number in range(LOGS)]
        for turn in range(12):
            for number, log in enumerate(logs):
                put(log, b"%d of %d " % (turn, number) * 5)
                if durability is not Durability.NONE:
                    await committed(log, turn + 1)
            await eventually(lambda: open_count(store) <= OPEN_MAX + 1)  # and that of the decisions
        for number, log in enumerate(logs):
            found = await bodies(log)
            assert found == {turn: b"%d of %d " % (turn, number) * 5 for turn in range(12)}
            await eventually(lambda: open_count(store) <= OPEN_MAX + 1)
    if durability is Durability.NONE:
        return
    async with store_at(tmp_path, state=state, **limits) as store:
        for number in range(LOGS):
            log = open_log(store, durability, topic=f"q{number}")
            assert len(await bodies(log)) == 12
            put(log, b"more")
            await committed(log, 13)
        await eventually(lambda: open_count(store) <= OPEN_MAX + 1)


async def test_log_that_is_written_to_all_the_time_keeps_its_file(tmp_path):
    async with store_at(tmp_path, open_segments_max=OPEN_MAX) as store:
        busy = open_log(store, Durability.OS, topic="busy")
        put(busy, b"first")
        handle = busy.segments[-1].handle
        for number in range(LOGS):
            put(open_log(store, Durability.OS, topic=f"q{number}"), b"once")
            put(busy, b"again")
            assert busy.segments[-1].handle == handle
