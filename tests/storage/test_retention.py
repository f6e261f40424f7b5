"""Logs that nobody settles: what is kept of them, and where a moment is found in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.errors import StorageError
from leveret.ports import Durability, Retention
from leveret.ports.records import BatchBuilder
from leveret.storage import retention as retention_module
from leveret.storage.state import MemoryStateStore
from tests.storage.harness import (
    PERSISTENT,
    abandon,
    bodies,
    committed,
    make_store,
    open_log,
    store_at,
)
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
BOTH = [Durability.OS, Durability.FSYNC]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(retention_module, "SEGMENT_BYTES_MIN", 1000)


def put(store, log, count, *, size=100, after_ms=0):
    """One batch for each of `count` messages, at the clock's time and then `after_ms` later."""
    for number in range(count):
        now = store._services.clock.now_ms
        log.builder.add(PERSISTENT, now, b"x", b"key", b"header", b"%d" % number + b"." * size)
        log.append()
        store._services.clock.now_ms += after_ms


def segment_names(log):
    return sorted(path.name for path in log.directory.iterdir() if path.suffix == ".log")


def size_of(log):
    return sum(segment.size for segment in log._segments.items)


@pytest.mark.parametrize("durability", BOTH)
async def test_the_oldest_segments_go_when_there_are_too_many_bytes(tmp_path, durability):
    async with store_at(tmp_path, segment_bytes_max=2000, settle_flush_interval_ms=1) as store:
        log = open_log(store, durability, retention=Retention(bytes_max=6000))
        put(store, log, 100)
        await committed(log, 100)
        await eventually(lambda: size_of(log) <= 6000)
        assert 0 < log.first < 100
        assert list(await bodies(log, log.first)) == list(range(log.first, 100))
        assert log.settled.contains(0, log.first)
        assert size_of(log) > 3000


async def test_what_is_not_committed_is_not_given_up(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=2000) as store:
        log = open_log(store, Durability.FSYNC, retention=Retention(bytes_max=0))
        put(store, log, 100)
        log.check_retention()
        assert (log.committed, list(log.settled)) == (0, [])


@pytest.mark.parametrize("durability", BOTH)
async def test_the_oldest_segments_go_when_they_are_too_old(tmp_path, durability):
    async with store_at(tmp_path, segment_bytes_max=2000, settle_flush_interval_ms=1) as store:
        log = open_log(store, durability, retention=Retention(age_ms_max=HOUR_MS))
        put(store, log, 60, after_ms=HOUR_MS // 30)
        await committed(log, 60)
        log.check_retention()
        kept = await log.offset_at(store._services.clock.now_ms - HOUR_MS)
        await eventually(lambda: log.first > 5)
        assert kept - 25 < log.first <= kept


async def test_a_short_wait_for_a_group_keeps_no_less_than_retention_does(tmp_path):
    limits = Retention(age_ms_max=HOUR_MS, waits_ms_max=HOUR_MS // 10)
    async with store_at(tmp_path, segment_bytes_max=2000, settle_flush_interval_ms=1) as store:
        log = open_log(store, retention=limits)
        log.retention_waits_at = lambda: 0
        put(store, log, 60, after_ms=HOUR_MS // 30)
        await committed(log, 60)
        log.check_retention()
        assert 0 < log.settled.count <= 30  # an hour of two


async def test_what_is_still_written_to_is_never_too_old(tmp_path):
    limits = Retention(age_ms_max=1, bytes_max=0)
    async with store_at(tmp_path, settle_flush_interval_ms=1) as store:
        log = open_log(store, retention=limits)
        put(store, log, 5)
        store._services.clock.now_ms += HOUR_MS
        log.check_retention()
        assert len(await bodies(log)) == 5


@pytest.mark.parametrize("durability", BOTH)
async def test_segments_of_earlier_runs_grow_old_too(tmp_path, durability, monkeypatch):
    monkeypatch.setattr(retention_module, "LOOKED_UP_MAX", 2)
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, durability)
        put(store, log, 100)
        await committed(log, 100)
        written = segment_names(log)
    async with store_at(
        tmp_path,
        state=state,
        segment_bytes_max=2000,
        settle_flush_interval_ms=1,
        retention_interval_ms=1,
    ) as store:
        log = open_log(store, durability, retention=Retention(age_ms_max=HOUR_MS))
        assert segment_names(log) == written
        store._services.clock.now_ms += HOUR_MS + 1
        await eventually(lambda: segment_names(log)[0] == written[-1])
        assert list(await bodies(log, log.first)) == list(range(log.first, 100))


async def test_a_crash_gives_nothing_back_that_is_gone(tmp_path):
    store = make_store(tmp_path, segment_bytes_max=2000, settle_flush_interval_ms=1)
    log = open_log(store, retention=Retention(bytes_max=4000))
    put(store, log, 100)
    await eventually(lambda: size_of(log) <= 4000)
    first = log.first
    abandon(store)
    async with store_at(tmp_path, segment_bytes_max=2000) as store:
        log = open_log(store)
        assert (log.first, log.end) == (first, 100)
        assert log.settled.contains(0, first)
        assert len(await bodies(log, first)) == 100 - first


async def test_limits_may_change_while_the_log_is_open(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=2000, settle_flush_interval_ms=1) as store:
        log = open_log(store)
        put(store, log, 100)
        assert log.retention is None
        log.retention = Retention(bytes_max=3000, segment_bytes_max=1500)
        await eventually(lambda: log.first > 0)
        base = log.end
        put(store, log, 30)
        names = [int(name[:20]) for name in segment_names(log) if int(name[:20]) > base + 20]
        assert names  # shorter ones than before


@pytest.mark.parametrize(
    ("asked", "got"), [(None, 9000), (5000, 5000), (90_000, 9000), (1, 1000), (0, 1000)]
)
def test_segments_are_as_large_as_asked_for_within_limits(asked, got):
    asked_for = Retention(segment_bytes_max=asked)
    assert retention_module.segment_bytes(asked_for, 9000) == got


async def test_times_that_cannot_be_read_keep_what_is_there(tmp_path, caplog):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store)
        put(store, log, 30)
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        for segment in log._segments.items[1:]:
            segment.path.unlink()
        log.retention = Retention(age_ms_max=1)
        await eventually(lambda: "nothing there is deleted for its age" in caplog.text)
        assert log.first == 0


# Finding offsets by time


async def test_a_moment_is_found_across_segments_and_runs(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=3000) as store:
        log = open_log(store)
        begin = store._services.clock.now_ms
        put(store, log, 200, after_ms=10)
        for offset in (0, 1, 57, 120, 199):
            assert await log.offset_at(begin + 10 * offset) == offset
            assert await log.offset_at(begin + 10 * offset - 9) == offset
        assert await log.offset_at(0) == 0
        assert await log.offset_at(begin + 2000) == 200
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        for offset in (0, 57, 199):
            assert await log.offset_at(begin + 10 * offset) == offset
        assert await log.offset_at(begin + 2000) == 200


async def test_a_moment_within_one_large_segment_is_found_by_the_index(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store)
        begin = store._services.clock.now_ms
        put(store, log, 300, size=5000, after_ms=10)
        for offset in (0, 11, 150, 288, 299):
            assert await log.offset_at(begin + 10 * offset) == offset


async def test_an_empty_log_has_no_moments(tmp_path):
    async with store_at(tmp_path) as store:
        assert await open_log(store).offset_at(5) == 0


async def test_damage_does_not_hide_what_comes_later(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=3000) as store:
        log = open_log(store)
        begin = store._services.clock.now_ms
        put(store, log, 100, after_ms=10)
        second = log._segments.items[1]
        with second.path.open("r+b") as file:
            file.seek(500)
            file.write(b"\xff" * 1000)
        found = await log.offset_at(begin + 10 * (second.stop - 1))
        assert found == second.stop - 1


async def test_a_damaged_beginning_does_not_hide_what_comes_before(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=3000) as store:
        log = open_log(store)
        begin = store._services.clock.now_ms
        put(store, log, 45, after_ms=10)
        for segment in log._segments.items[1:]:
            segment.began_ms = None
            with segment.path.open("r+b") as file:
                file.write(b"\xff" * 100)
        assert await log.offset_at(begin + 100) == 10


async def test_an_empty_file_after_a_crash_hides_nothing(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=3000) as store:
        log = open_log(store)
        begin = store._services.clock.now_ms
        put(store, log, 40, after_ms=10)
        path = log.directory
    (path / f"{40:020d}.log").touch()
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        assert await log.offset_at(begin + 100) == 10


async def test_a_log_that_cannot_be_read_says_so(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=3000) as store:
        log = open_log(store)
        put(store, log, 100, after_ms=10)
        log._segments.items[0].path.unlink()
        with pytest.raises(StorageError, match="cannot read the log in"):
            await log.offset_at(1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(0, 60))
def test_a_batch_tells_which_record_came_when(times, asked):
    builder = BatchBuilder()
    times.sort()
    for time in times:
        builder.add(0, time, b"", b"", b"", b"")
    late = [number for number, time in enumerate(times) if time >= asked]
    assert builder.seal(7).offset_at(asked) == 7 + (late[0] if late else len(times))


@pytest.mark.parametrize("durability", BOTH)
async def test_a_segment_that_is_being_read_goes_afterwards(tmp_path, durability):
    async with store_at(tmp_path, segment_bytes_max=2000, settle_flush_interval_ms=1) as store:
        log = open_log(store, durability, retention=Retention(age_ms_max=HOUR_MS))
        put(store, log, 60, after_ms=HOUR_MS // 30)
        await committed(log, 60)
        first = log.segments[0]
        first.pins += 1
        log.check_retention()
        await eventually(lambda: log.segments[1].base >= 20)  # those behind it went
        assert log.segments[0] is first
        log._segments.unpin(first)
        await eventually(lambda: log.first >= 20)  # and nothing else happens to the log
