import asyncio
import errno
from pathlib import Path

import pytest

from leveret.errors import StorageError
from leveret.ports import Durability, Retention
from leveret.ports.records import BatchBuilder
from leveret.storage.dump import dump_segment
from leveret.storage.encryption import DataKey
from leveret.storage.files import RealFileSystem
from leveret.storage.replica_files import newest_epoch
from leveret.storage.segment_walk import last_epoch
from leveret.storage.state import MemoryStateStore
from leveret.storage.written_log import LOOP_FLUSH_BYTES_MAX
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import (
    PERSISTENT,
    abandon,
    bodies,
    committed,
    get,
    make_flushes_quick,
    make_store,
    open_log,
    put,
    store_at,
)
from tests.storage.keys import encrypted_keyring
from tests.support.waiting import LIMIT_SECONDS, eventually

KEPT = [Durability.FSYNC, Durability.OS]
ALL = [*KEPT, Durability.NONE]
AGE_MS_MAX = 3_600_000


@pytest.mark.parametrize("durability", ALL)
async def test_what_is_appended_is_read(tmp_path, durability):
    async with store_at(tmp_path) as store:
        log = open_log(store, durability)
        assert (log.first, log.end, log.committed, log.unclean) == (0, 0, 0, False)
        assert log.read(0, 100) == []
        assert put(log, b"a", b"b") == 0
        assert put(log, b"c") == 2
        await committed(log, 3)
        assert await bodies(log) == {0: b"a", 1: b"b", 2: b"c"}
        assert (await get(log, 1))[0].base_offset == 0
        assert log.read(3, 100) == []


async def test_a_flushed_log_commits_later_and_says_so(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store, Durability.FSYNC)
        told = asyncio.Event()
        log.on_commit(told.set)
        put(log, b"a")
        assert (log.committed, log.end) == (0, 1)
        assert log.read(0, 100) == []
        await told.wait()
        assert log.committed == 1


async def test_a_flush_commits_only_what_was_written_before_it_began(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store, Durability.FSYNC)
        seen = []
        log.on_commit(lambda: seen.append(log.committed))
        put(log, b"a")  # its flush has begun
        put(log, b"b")
        await committed(log, 2)
        assert seen == [1, 2]


async def test_a_quick_disk_is_waited_for_by_who_may(tmp_path):
    async with store_at(tmp_path) as store:
        log, told = open_log(store, Durability.FSYNC), []
        log.on_commit(lambda: told.append(log.committed))
        put(log, b"0", may_block=True)
        assert log.committed == 0  # nothing is known of the disk yet
        await committed(log, 1)
        make_flushes_quick(store)
        put(log, b"1", may_block=True)
        assert (log.committed, log.flushed) == (2, 2)
        put(log, b"2")
        assert log.committed == 2
        put(log, b"3", may_block=True)  # the flush that runs does not cover it
        assert log.committed == 2
        await committed(log, 4)
        put(log, b"4" * LOOP_FLUSH_BYTES_MAX, may_block=True)
        assert log.committed == 4
        await committed(log, 5)
        store.flushes.ended(1_000_000, 1, failed=False)
        put(log, b"5", may_block=True)
        assert log.committed == 5
        await committed(log, 6)
        assert 2 not in told
    async with store_at(tmp_path) as store:
        assert open_log(store).end == 6


async def test_a_transaction_is_not_ended_within_an_append(tmp_path):
    async with store_at(tmp_path) as store:
        log, told = open_log(store, Durability.FSYNC), []
        put(log, b"0")
        await committed(log, 1)
        make_flushes_quick(store)
        records = BatchBuilder()
        records.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", b"header", b"1")
        log.prepare(7, records, [], told.append)
        await eventually(lambda: told)
        put(log, b"2", may_block=True)
        await log.settlements_safe()
        assert log.committed == 1
        log.resolve(7, committed=True)
        log.write_settlements()  # what may be forgotten of the transaction waits for a flush
        make_flushes_quick(store)
        put(log, b"3", may_block=True)
        assert log.is_flushing
        await committed(log, 4)
        make_flushes_quick(store)  # on a busy machine, those were not
        put(log, b"4", may_block=True)
        assert log.committed == 5


async def test_transient_records_wait_only_behind_persistent_ones(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store, Durability.FSYNC)
        put(log, b"a", flags=0)
        assert log.committed == 1
        put(log, b"b")
        put(log, b"c", flags=0)
        assert log.committed == 1
        await committed(log, 3)


@pytest.mark.parametrize("durability", KEPT)
@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_comes_back(tmp_path, durability, clean):
    state = MemoryStateStore()
    store = make_store(tmp_path, state=state, segment_bytes_max=2000)
    log = open_log(store, durability)
    for i in range(100):
        put(log, b"%d" % (2 * i), b"%d" % (2 * i + 1))
    await committed(log, 200)
    log.settle([(0, 3), (10, 20)])
    log.settle([(150, 151)])
    log.redelivered_stop = 130
    log.returns.put(30, 33, 2, 1)
    log.note_returns([(30, 33)])
    log.write_settlements()
    if clean:
        await store.close()
    else:
        abandon(store)

    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, durability)
        assert log.unclean is not clean
        assert log.redelivered_stop == (130 if clean else 200)
        assert (log.end, log.committed) == (200, 200)
        assert list(log.settled) == [(0, 3), (10, 20), (150, 151)]
        assert list(log.returns.runs()) == [(30, 33, 2, 1)]
        assert await bodies(log) == {i: b"%d" % i for i in range(200)}
        assert put(log, b"more") == 200
        await committed(log, 201)
        assert (await bodies(log, 199)) == {199: b"199", 200: b"more"}


async def test_a_transient_log_is_gone_at_the_next_start(tmp_path):
    async with store_at(tmp_path, tail_cache_bytes_max=0) as store:
        log = open_log(store, Durability.NONE)
        put(log, b"a" * 1000)
        assert list((tmp_path / "transient").rglob("*.log"))
        assert await bodies(log) == {0: b"a" * 1000}
    async with store_at(tmp_path) as store:
        assert not (tmp_path / "transient").exists()
        assert open_log(store, Durability.NONE).end == 0


async def test_a_transient_log_that_is_consumed_never_touches_the_disk(tmp_path):
    async with store_at(tmp_path, tail_cache_bytes_max=10_000) as store:
        log = open_log(store, Durability.NONE)
        for i in range(100):
            put(log, b"a" * 1000)
            log.settle([(i, i + 1)])
        assert not (tmp_path / "transient").exists()
        assert log.first == 100


async def test_a_transient_log_spills_only_what_is_not_settled(tmp_path):
    async with store_at(tmp_path, tail_cache_bytes_max=3000, segment_bytes_max=5000) as store:
        log = open_log(store, Durability.NONE)
        for i in range(50):
            put(log, b"%04d" % i * 100)
            if i % 2:
                log.settle([(i, i + 1)])
        for i in range(0, 50, 2):
            found = await get(log, i, 1)
            assert found[0].record(i)[5] == b"%04d" % i * 100
        log.settle([(0, 50)])
        log.write_settlements()
        assert log.settled.count == 50


async def test_settled_segments_are_removed_around_a_stuck_message(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, Durability.FSYNC)
        for i in range(100):
            put(log, b"%d" % i * 10)
            await committed(log, i + 1)
        before = len(list(tmp_path.rglob("*.log")))
        log.settle([(0, 50), (51, 100)])
        log.write_settlements()
        await eventually(lambda: len(list(tmp_path.rglob("*.log"))) <= 3)
        assert before > 5
        assert await bodies(log, 50, 51) == {50: b"50" * 10}
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, Durability.FSYNC)
        assert list(log.settled) == [(0, 50), (51, 100)]
        assert log.first <= 50
        assert await bodies(log, 50, 51) == {50: b"50" * 10}


async def test_a_segment_stays_until_its_settlements_are_written():
    """Otherwise its records would be missing after a crash, and nobody would know why."""
    files, limits = FaultyFileSystem(), {"segment_bytes_max": 1000}
    store = make_store(Path("/data"), files, **limits)
    log = open_log(store, Durability.FSYNC)
    while len(log.segments) < 2:
        await committed(log, log.end)
        put(log, b"x" * 300)
    first, stop = log.segments[0].base, log.segments[0].stop
    log.settle([(first, stop)])  # while the new segment, which does not say so, is flushed
    await committed(log, log.end)
    abandon(store)
    async with store_at(Path("/data"), files.lose_process(), **limits) as store:
        log = open_log(store, Durability.FSYNC)
        assert store.losses.unacknowledged == []
        assert list(await bodies(log)) == list(range(stop + 1))


async def test_a_large_settled_segment_is_removed_though_it_is_the_last(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=20_000) as store:
        log = open_log(store)
        put(log, b"a" * 10_000)
        log.settle([(0, 1)])
        log.write_settlements()
        log.write_settlements()
        await eventually(lambda: len(list(tmp_path.rglob("*.log"))) == 1)
        assert next(tmp_path.rglob("*.log")).stat().st_size < 1000
        assert put(log, b"b") == 1
        assert await bodies(log, 1) == {1: b"b"}


async def test_control_batches_alone_fill_segments(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=1000) as store:
        log = open_log(store)
        put(log, *[b"a"] * 200)
        for i in range(0, 200, 2):
            log.settle([(i, i + 1)])
            log.write_settlements()
        assert put(log, b"b") == 200
        abandon(store)
    async with store_at(tmp_path, segment_bytes_max=1000) as store:
        log = open_log(store)
        assert list(log.settled) == [(i, i + 1) for i in range(0, 200, 2)]
        assert (await bodies(log, 200)) == {200: b"b"}


async def test_deleting_removes_the_files_and_a_new_incarnation_starts_empty(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store)
        put(log, b"a")
        await log.delete()
        again = store.open("/", "orders", "i2", 0, Durability.OS)
        assert again.end == 0
    assert not list(tmp_path.rglob("*~~i1"))
    assert not list((tmp_path / "topics" / ".deleted").iterdir())


async def test_a_closed_log_can_be_opened_again(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store)
        put(log, b"a")
        await log.close()
        log = open_log(store)
        assert (log.end, log.unclean) == (1, False)


async def test_settlements_are_written_by_the_timer(tmp_path):
    store = make_store(tmp_path, settle_flush_interval_ms=1)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a", b"b")
    log.settle([(0, 1)])
    await eventually(lambda: not log._pending)
    abandon(store)
    async with store_at(tmp_path) as store:
        assert list(open_log(store).settled) == [(0, 1)]


async def test_memory_does_not_follow_the_backlog(tmp_path):
    async with store_at(tmp_path, segment_bytes_max=100_000, tail_cache_bytes_max=50_000) as store:
        log = open_log(store)
        for _ in range(500):
            put(log, b"a" * 1000)
        assert store._services.tail_cache.bytes <= 50_000
        assert len(await bodies(log)) == 500


async def test_logs_that_nobody_opens_are_orphans_and_stay_as_they_are(tmp_path):
    state = MemoryStateStore()
    topics = ("orders", "other")
    async with store_at(tmp_path, state=state) as store:
        assert store.orphans() == []
        for topic in topics:
            put(open_log(store, topic=topic), b"a")
        put(open_log(store, Durability.NONE, "transient"), b"a")
        await open_log(store, topic="deleted").delete()
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        (orphan,) = store.orphans()
        assert orphan == log.directory.parents[1] / "other~~i1" / "0"
    async with store_at(tmp_path, state=state) as store:
        for topic in topics:
            log = open_log(store, topic=topic)
            assert (log.end, log.unclean) == (1, False)
        assert store.orphans() == []


async def test_a_last_segment_that_an_earlier_run_filled_is_sealed_and_flushed(tmp_path, caplog):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state) as store:
        put(open_log(store, Durability.FSYNC), b"x" * 5000)
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, Durability.FSYNC)
        put(log, b"more")
        await committed(log, 2)
        assert not caplog.text
        assert len(await bodies(log)) == 2


async def test_settled_segments_stay_that_somebody_must_read_first(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, Durability.FSYNC)
        log.keep_from("reader", 30)
        for i in range(100):
            put(log, b"%d" % i * 10)
            await committed(log, i + 1)
        log.settle([(0, 100)])
        log.write_settlements()
        await eventually(lambda: log.first > 0)
        assert log.first <= 30
        assert list(await bodies(log, 30)) == list(range(30, 100))
        log.keep_from("reader", 60)
        await eventually(lambda: log.first > 30)
        assert list(await bodies(log, 60)) == list(range(60, 100))
    async with store_at(tmp_path, state=state, segment_bytes_max=2000) as store:
        log = open_log(store, Durability.FSYNC)
        log.keep_from("reader", 60)
        put(log, b"more")
        await committed(log, 101)
        assert list(await bodies(log, 60)) == list(range(60, 101))
        log.settle([(100, 101)])
        log.keep_from("reader", None)
        log.write_settlements()
        await eventually(lambda: len(list(tmp_path.rglob("*.log"))) <= 2)


async def test_settlements_are_safe_when_that_was_waited_for(tmp_path):
    """Without a close, a crash of the machine included."""
    files = FaultyFileSystem()
    data = Path("/data")
    store = make_store(data, files)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a", b"b", b"c")
    await committed(log, 3)
    log.settle([(1, 2)])
    await log.settlements_safe()
    put(log, b"d")
    log.settle([(2, 3)])
    await log.settlements_safe()
    after = files.lose_machine()
    abandon(store)
    async with store_at(data, after) as store:
        assert list(open_log(store, Durability.FSYNC).settled) == [(1, 3)]


async def test_settlements_that_cannot_be_flushed_are_not_called_safe(tmp_path):
    files = FaultyFileSystem()
    store = make_store(Path("/data"), files)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a", b"b")
    await committed(log, 2)
    log.settle([(1, 2)])
    log.write_settlements()
    files.fail_at = files.calls + 1
    with pytest.raises(StorageError):
        await log.settlements_safe()
    files.fail_at = None
    log.settle([(0, 1)])
    await log.settlements_safe()
    abandon(store)
    async with store_at(Path("/data"), files.lose_machine()) as store:
        assert open_log(store, Durability.FSYNC).settled.contains(0, 2)


async def test_who_gives_up_waiting_for_a_flush_keeps_nobody_else_from_it(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store, Durability.FSYNC)
        put(log, b"a", b"b")
        await committed(log, 2)
        log.settle([(0, 1)])
        log.write_settlements()
        async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
            gives_up = tasks.create_task(log.settlements_safe())
            waits = tasks.create_task(log.settlements_safe())
            await asyncio.sleep(0)
            gives_up.cancel()
        assert gives_up.cancelled()
        assert waits.done()
        put(log, b"c")
        await committed(log, 3)


async def test_many_settled_at_once_and_anywhere_are_settled(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store)
        put(log, *(b"%d" % number for number in range(1000)))
        log.settle([(offset, offset + 1) for offset in range(999, 0, -2)])
        log.write_settlements()
        assert log.settled.count == 500
    async with store_at(tmp_path) as store:
        assert open_log(store).settled.count == 500


async def test_what_has_left_memory_cannot_be_looked_at_but_read(tmp_path):
    async with store_at(tmp_path, tail_cache_bytes_max=2_000) as store:
        log = open_log(store)
        put(log, b"first" * 300)
        put(log, b"second" * 300)
        assert log.peek(0) is None
        assert (await get(log, 0))[0].base_offset == 0
        assert log.peek(1).base_offset == 1
        assert 1_800 < log.held_bytes < 2_000
        log.settle([(1, 2)])
        assert log.peek(1) is None
        assert log.held_bytes == 0


async def test_whoever_raises_at_a_commit_hurts_no_other(tmp_path):
    reported = []
    handler = lambda _, context: reported.append(context["exception"])  # noqa: E731
    asyncio.get_running_loop().set_exception_handler(handler)
    async with store_at(tmp_path) as store:
        one, other = open_log(store, Durability.FSYNC), open_log(store, Durability.FSYNC, "other")
        told = asyncio.Event()

        def fail():
            raise OverflowError("a bug")

        one.on_commit(fail)
        one.on_commit(told.set)
        for _ in range(2):
            told.clear()
            put(one, b"a")
            put(other, b"a")
            await told.wait()
        await committed(one, 2)
        await committed(other, 2)
    assert [str(error) for error in reported] == ["a bug", "a bug"]


async def test_a_large_batch_is_left_to_a_thread(tmp_path):
    async with store_at(tmp_path, tail_cache_bytes_max=1000) as store:
        log = open_log(store, Durability.OS)
        put(log, b"small" * 500)
        put(log, b"large" * 300_000)
        put(log, b"small" * 500)
        await get(log, 0)  # the file is open now, and its bytes are in the page cache
        assert log.read(0, 100)[0].base_offset == 0
        assert log.read(1, 100) is None
        assert (await log.fetch(1, 100))[0].base_offset == 1
        assert log.read(2, 100)[0].base_offset == 2


@pytest.mark.parametrize("encrypted", [False, True])
async def test_each_reign_begins_a_file_whose_batches_say_its_epoch(tmp_path, encrypted):
    def keyring():
        return encrypted_keyring(RealFileSystem(), tmp_path) if encrypted else None

    for epoch in (3, 4):
        async with store_at(tmp_path, epoch=epoch, keyring=keyring()) as store:
            log = open_log(store)
            put(log, b"one")
            log.settle([(0, 1)])
            log.write_settlements()
            put(log, b"two")
            directory = log.directory
    assert epochs_in(directory) == [[3, 3, 3, 3], [4, 4, 4, 4]]


def epochs_in(directory):
    """Epochs of the batches in each file of a log."""
    return [
        [each.batch.leader_epoch for each in dump_segment(RealFileSystem(), path)]
        for path in sorted(directory.glob("*.log"))
    ]


async def seal_for_age(store, log):
    store._services.clock.now_ms += AGE_MS_MAX
    log.check_retention()
    await eventually(lambda: len(log.segments) > 1)


async def begin_with_a_key(_, log):
    log.use_key(DataKey(5, bytes(32)))


async def go_on(_, log):
    pass


@pytest.mark.parametrize(
    ("roll", "segment_bytes_max", "flush_has_failed"),
    [
        (go_on, 1000, False),
        (go_on, 100, False),
        (go_on, 1000, True),
        (seal_for_age, 1000, False),
        (begin_with_a_key, 1000, False),
    ],
)
async def test_a_node_that_is_alone_goes_on_in_the_last_reigns_epoch(
    tmp_path, roll, segment_bytes_max, flush_has_failed
):
    async with store_at(tmp_path, epoch=7) as store:
        log = open_log(store)
        put(log, b"one")
        (segment,) = log.segments
    if flush_has_failed:
        segment.mark_suspect(RealFileSystem())
    for _ in range(2):
        async with store_at(tmp_path, segment_bytes_max=segment_bytes_max) as store:
            log = open_log(store, retention=Retention(age_ms_max=AGE_MS_MAX))
            await roll(store, log)
            put(log, b"more")
    found = epochs_in(log.directory)
    assert {epoch for epochs in found for epoch in epochs} == {7}
    assert (len(found) == 1) is (
        roll is go_on and segment_bytes_max == 1000 and not flush_has_failed
    )


async def test_nothing_is_written_where_the_last_reigns_epoch_cannot_be_read(tmp_path, monkeypatch):
    async with store_at(tmp_path, epoch=7) as store:
        log = open_log(store)
        put(log, b"one")
    log.segments[0].mark_suspect(RealFileSystem())
    async with store_at(tmp_path) as store:
        log = open_log(store)
        with monkeypatch.context() as patch:
            patch.setattr(store._files, "open", failing_open)
            with pytest.raises(StorageError, match="epoch"):
                put(log, b"two")
        assert len(log.segments) == 1
        put(log, b"two")
    assert epochs_in(log.directory)[1] == [7, 7]


def failing_open(path, *, create=False):
    raise OSError(errno.EIO, "an error of the device")


async def test_the_epoch_is_that_of_the_newest_file_which_has_a_sound_batch(tmp_path):
    for epoch in (3, 4):
        async with store_at(tmp_path, epoch=epoch) as store:
            log = open_log(store)
            put(log, b"one")
    files, (older, newer) = RealFileSystem(), log.segments
    assert last_epoch(files, [older, newer]) == newest_epoch(files, tmp_path / "topics") == 4
    whole = newer.path.read_bytes()
    for broken in (b"", bytes(len(whole)), whole[:60], whole[:29] + b"x" + whole[30:]):
        newer.path.write_bytes(broken)
        assert last_epoch(files, [older, newer]) == newest_epoch(files, tmp_path / "topics") == 3
    assert last_epoch(files, [newer]) == last_epoch(files, []) == 0


@pytest.mark.parametrize("committed", [True, False])
async def test_a_part_of_an_earlier_run_waits_for_its_outcome(tmp_path, committed):
    store = make_store(tmp_path)
    log = open_log(store)
    put(log, b"before")
    part = BatchBuilder()
    part.add(1, 1_700_000_000_000, b"x", b"key", b"header", b"part")
    log.prepare(7, part, [(0, 1)], lambda error: None)
    put(log, b"behind")
    abandon(store)
    store = make_store(tmp_path)
    store._tell_outcomes = lambda log: None  # nobody knows it yet
    log, told = open_log(store), []
    log.on_commit(lambda: told.append(log.committed))
    assert (log.unresolved, log.committed, log.end) == ([7], 1, 3)
    assert await bodies(log) == {0: b"before"}
    put(log, b"more")
    assert log.committed == 1
    assert not log.settled
    log.resolve(7, committed=committed)
    assert told == [4]
    assert list(log.settled) == ([(0, 1)] if committed else [(1, 2)])
    assert (await bodies(log))[2] == b"behind"
    abandon(store)
