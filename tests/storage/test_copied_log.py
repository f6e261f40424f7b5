"""A log that is copied to other nodes: nothing takes effect before the copies have it."""

import asyncio
import errno
import os
from functools import partial

import pytest

from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports import Durability
from leveret.ports.records import BatchBuilder
from leveret.ports.replication import LogPlace, PlaceGoneError
from tests.storage.compaction_harness import CompactedLog
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import PERSISTENT, abandon, bodies, make_flushes_quick, put
from tests.storage.test_replica_machine import Copies, Leader


class Failing(Copies):
    def __init__(self):
        super().__init__()
        self.failures: list[Exception] = []
        self.replaced_files: list[tuple[int, int, int]] = []

    def replaced(self, base, revision, by):
        self.replaced_files.append((base, revision, by))

    def failed(self, error):
        self.failures.append(error)


class Copied:
    """A log with a sink; `copied` says that the copies have everything."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.files = FaultyFileSystem()
        self.leader = Leader(self.loop, self.files, Durability.FSYNC, encrypted=False)
        self.store, self.log = self.leader.store, self.leader.log
        self.committer = self.leader.threads.committer
        self.sink = Failing()
        self.log.copy_to(self.sink)

    def put_blocking(self, *bodies_):
        """Put records in the only turn that has something to do, on a quick disk."""
        put(self.log, b"first")
        self.committer.drain()
        self.copied()
        make_flushes_quick(self.store)
        put(self.log, *bodies_, may_block=True)

    def copied(self):
        self.log.replicated(self.log.place, self.log.end)

    def close(self):
        abandon(self.store)
        self.loop.close()


@pytest.fixture
def it():
    it = Copied()
    yield it
    it.close()


def part(*bodies_):
    records = BatchBuilder()
    for body in bodies_:
        records.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", b"header", body)
    return records


@pytest.mark.parametrize("copies_first", [True, False])
def test_a_record_is_committed_when_flushed_here_and_there(it, copies_first):
    told = []
    it.log.on_commit(lambda: told.append(it.log.committed))
    put(it.log, b"one", b"two")
    for step in (
        (it.copied, it.committer.drain) if copies_first else (it.committer.drain, it.copied)
    ):
        assert it.log.committed == 0
        assert told == []
        step()
    assert it.log.committed == 2
    assert told == [2]


@pytest.mark.parametrize("copies_first", [True, False])
def test_a_flush_on_the_loop_begins_once_the_records_are_sent(it, copies_first):
    it.put_blocking(b"two")
    told = []
    it.log.on_commit(lambda: told.append(it.log.committed))
    assert not it.log.is_flushing
    assert it.log.flushed == 1
    steps = [it.log.sent_to_copies, it.copied]
    first, second = reversed(steps) if copies_first else steps
    first()
    assert (it.log.committed, told) == (1, [])
    second()
    assert not it.committer.waiting
    assert (it.log.committed, it.log.flushed, told) == (2, 2, [2])
    it.log.sent_to_copies()
    assert told == [2]


def test_a_flush_that_waits_for_nothing_but_sending_is_a_threads_where_the_disk_is_slow(it):
    it.put_blocking(b"two")
    it.store.flushes.ended(1_000_000, 0, failed=False)
    it.log.sent_to_copies()
    assert (it.log.is_flushing, it.log.flushed) == (True, 1)
    it.committer.drain()
    it.copied()
    assert it.log.committed == 2


def test_a_flush_of_the_same_turn_covers_what_is_sent_later(it):
    it.put_blocking(b"two")
    put(it.log, b"three")
    assert it.log.is_flushing
    it.committer.drain()
    it.log.sent_to_copies()
    assert (it.log.is_flushing, it.log.flushed) == (False, 3)


def test_a_flush_that_fails_on_the_loop_is_told_to_the_sink(it):
    it.put_blocking(b"two")
    it.files.fail_at, it.files.error = it.files.calls + 1, errno.EIO
    it.log.sent_to_copies()
    it.loop.run_until_complete(asyncio.sleep(0))
    assert len(it.sink.failures) == 1
    it.copied()
    assert it.log.committed == 1


def test_what_is_committed_stays_so_though_another_copy_counts(it):
    put(it.log, b"one", b"two")
    it.committer.drain()
    it.copied()
    it.log.replicated(LogPlace(), 0)
    put(it.log, b"three")
    it.committer.drain()
    assert it.log.committed == 2
    assert it.loop.run_until_complete(bodies(it.log)) == {0: b"one", 1: b"two"}


def test_a_part_is_prepared_once_it_is_copied(it):
    told = []
    it.log.prepare(7, part(b"part"), [], told.append)
    it.committer.drain()
    assert told == []
    it.copied()
    assert told == [None]
    it.log.resolve(7, committed=True)
    assert it.log.committed == 1


def test_each_flush_ends_only_what_it_has_covered(it):
    told = []
    it.log.prepare(7, part(b"one"), [], lambda error: told.append((7, error)))
    first = it.log.place
    it.committer.drain()
    it.log.prepare(8, part(b"two"), [], lambda error: told.append((8, error)))
    it.committer.drain()
    it.log.replicated(first, 1)
    assert told == [(7, None)]
    it.copied()
    assert told == [(7, None), (8, None)]


FEW = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("is_aborted_first", [True, False])
def test_a_part_that_lacks_copies_fails_at_once_and_counts_until_aborted(
    it, is_flushed, is_aborted_first
):
    told = []
    it.log.prepare(7, part(b"part"), [], told.append)
    if is_flushed:
        it.committer.drain()
    it.log.refuse(FEW)
    it.log.refuse(FEW)
    assert told == [FEW]
    it.committer.drain()
    steps = [partial(it.log.resolve, 7, committed=False), partial(it.log.refuse, None), it.copied]
    for step in steps if is_aborted_first else [*steps[1:], steps[0]]:
        assert (it.log.unresolved, it.log.committed) == ([7], 0)
        step()
    assert told == [FEW]
    assert (it.log.unresolved, it.log.committed) == ([], 1)
    assert list(it.log.undone) == [(0, 1)]
    put(it.log, b"later")
    it.committer.drain()
    it.copied()
    assert it.loop.run_until_complete(bodies(it.log, 1)) == {1: b"later"}


def test_a_part_that_is_prepared_commits_though_copies_are_missing_meanwhile(it):
    told = []
    it.log.prepare(7, part(b"part"), [], told.append)
    it.committer.drain()
    it.copied()
    it.log.refuse(FEW)
    it.log.resolve(7, committed=True)
    assert told == [None]
    assert (it.log.committed, list(it.log.undone)) == (1, [])


def test_a_log_that_lacks_copies_takes_no_part_though_it_only_settles(it):
    put(it.log, b"one")
    it.committer.drain()
    it.copied()
    it.log.refuse(FEW)
    place, told = it.log.place, []
    with pytest.raises(NotEnoughCopiesError):
        it.log.prepare(7, part(), [(0, 1)], told.append)
    assert (it.log.place, it.log.unresolved, told) == (place, [], [])


def test_a_part_that_lacks_copies_is_not_told_again_as_the_log_is_deleted(it):
    told = []
    it.log.prepare(7, part(b"part"), [], told.append)
    it.committer.drain()
    it.log.refuse(FEW)
    it.loop.run_until_complete(it.log.delete())
    assert told == [FEW]


def test_an_outcome_is_remembered_once_it_is_copied(it):
    decided = []
    it.log.prepare(7, part(b"part"), [], lambda error: None)
    it.committer.drain()
    it.copied()
    it.store.decide({7: [it.log]}, decided.append)
    it.committer.drain()
    assert decided == [None]
    it.log.resolve(7, committed=True)
    it.log.write_settlements()
    it.log.flush()
    it.committer.drain()
    assert 7 in it.store._decisions
    it.copied()
    assert 7 not in it.store._decisions


def test_a_file_is_removed_once_what_settles_it_is_copied(it):
    for number in range(20):
        put(it.log, b"%d" % number + b"x" * 100)
        it.committer.drain()
        it.copied()
    assert len(it.log.segments) > 2
    it.log.settle([(0, 18)])
    it.log.write_settlements()
    it.committer.drain()
    assert it.log.segments[0].base == 0
    assert it.sink.removed_files == []
    it.copied()
    it.committer.drain()
    it.copied()
    it.committer.drain()
    assert it.log.segments[0].base > 0
    assert it.sink.removed_files[0] == (0, 0)
    with pytest.raises(PlaceGoneError):
        it.log.read_raw(LogPlace(0, 0, 0), 0, 100)


def test_settlements_are_safe_once_they_are_copied(it):
    async def settle():
        put(it.log, b"one")
        it.committer.drain()
        it.copied()
        it.log.settle([(0, 1)])
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(it.log.settlements_safe()) for _ in range(2)]
            for _ in range(5):
                await asyncio.sleep(0)
                it.committer.drain()
            assert not any(each.done() for each in waiting)
            waiting.pop().cancel()
            await asyncio.sleep(0)
            it.copied()

    it.loop.run_until_complete(settle())


def test_nobody_waits_for_copies_of_a_log_that_is_deleted(it):
    async def settle():
        put(it.log, b"one")
        it.committer.drain()
        it.copied()
        it.log.settle([(0, 1)])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(it.log.settlements_safe())
            for _ in range(5):
                await asyncio.sleep(0)
                it.committer.drain()
            assert not waiting.done()
            await it.log.delete()

    it.loop.run_until_complete(settle())


def test_whoever_raises_keeps_nobody_else_from_what_is_copied(it):
    reported, told = [], []
    it.loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def bug(error):
        raise RuntimeError("a bug")

    it.log.prepare(7, part(b"one"), [], bug)
    it.committer.drain()
    it.log.prepare(8, part(b"two"), [], told.append)
    it.committer.drain()
    it.copied()
    assert told == [None]
    assert [str(error) for error in reported] == ["a bug"]


def test_a_compacted_file_is_told(it):
    compacted = CompactedLog(checks=False)
    try:
        for number in range(40):
            compacted.put((b"%d" % (number % 3), b"v" * 90))
        compacted.settle_down()
        sink = Failing()
        compacted.log.copy_to(sink)
        compacted.compact()
        assert sink.replaced_files[0] == (0, 0, 4096)
        with pytest.raises(PlaceGoneError):
            compacted.log.read_raw(LogPlace(0, 0, 0), 0, 100)
        assert compacted.log.read_raw(LogPlace(0, 4096, 0), 0, 100) is None
    finally:
        compacted.close()


def test_a_file_compacted_while_it_was_read_is_followed_by_the_next_one():
    compacted = CompactedLog(checks=False)
    try:
        for number in range(40):
            compacted.put((b"%d" % (number % 3), b"v" * 90))
        compacted.settle_down()
        first, second, *_ = compacted.log.segments
        compacted.log.copy_to(Failing())
        compacted.compact()
        assert first not in compacted.log.segments
        assert compacted.log._segments.after(first).base == second.base
    finally:
        compacted.close()


def test_a_file_that_cannot_be_ended_takes_no_other_behind_it(it):
    put(it.log, b"x" * 880)
    it.committer.drain()
    it.copied()
    put(it.log, b"grows the file ahead")
    it.log._segments._file_bytes = it.log._segments.position + 1
    it.files.fail_at, it.files.error = it.files.calls + 1, errno.EIO
    end = it.log.end
    with pytest.raises(StorageError, match="cannot truncate"):
        it.log._segments.roll(end)
    assert it.files.failed == "truncate"
    put(it.log, b"goes on")
    assert it.log.end == end + 1


def test_followers_keep_a_log_whose_deletion_fails():
    told = []
    store, key = make_copied(told)
    with pytest.raises(StorageError, match="cannot remove"):
        store._log_deleted(store.directory / key, key.encode())
    assert told == []


def make_copied(told):
    """Return a store of which no directory can be renamed, and the key of a log."""
    it = Copied()
    put(it.log, b"one")
    it.close()
    it.store._led_logs = Telling(told)
    key = it.log.key.decode()
    it.files.fail_at, it.files.error = None, errno.EIO

    def refuse(*_):
        raise OSError(errno.EIO, "no")

    it.files.rename = refuse
    return it.store, key


class Telling:
    """Copies of a store's logs, which note what was deleted."""

    def __init__(self, told):
        self.deleted = told.append


def test_a_failed_flush_is_not_repaired(it):
    put(it.log, b"one")
    before = {path: bytes(each.cached) for path, each in it.files.files.items()}
    it.committer.step(OSError(errno.EIO, os.strerror(errno.EIO)))
    (failure,) = it.sink.failures
    assert str(failure).startswith(f"cannot flush the log in {it.log.directory}: Input/output")
    put(it.log, b"two")
    it.committer.drain()
    it.copied()
    assert it.log.committed == 0
    [doubtful] = it.files.files.keys() - before.keys()
    assert doubtful.name == "00000000000000000000.doubtful"  # whoever opens it writes it again
    for path, raw in before.items():
        assert bytes(it.files.files[path].cached).startswith(raw.rstrip(b"\0"))


def test_a_log_without_files_has_nothing_to_be_read(it):
    nothing = it.log.read_raw(LogPlace(), 0, 100)
    assert (bytes(nothing.data), nothing.stop, nothing.offset) == (b"", LogPlace(), 0)
    assert it.loop.run_until_complete(it.log.fetch_raw(LogPlace(), 0, 100)) == nothing


async def copied_sizes(log):
    """Return the sizes of what copies get of a log, as little at a time as can be."""
    place, offset, sizes = LogPlace(), 0, []
    while place != log.place:
        found = await log.fetch_raw(place, offset, 1)
        place, offset = found.stop, found.offset
        sizes.append(len(found.data))
    return sizes


def test_what_gathers_while_nothing_can_be_written_becomes_several_batches(it):
    it.log.gathered_bytes_max = 1000
    gathered = [b"%d" % number + b"x" * 100 for number in range(40)]
    gathered[7] += b"y" * 5000  # longer than a batch of several is
    put(it.log, *gathered)
    it.committer.drain()
    it.copied()
    assert it.loop.run_until_complete(bodies(it.log)) == dict(enumerate(gathered))
    sizes = it.loop.run_until_complete(copied_sizes(it.log))
    assert sum(size > 1000 for size in sizes) == 1
    assert sum(size > 800 for size in sizes) > 4


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_batches_in_front_of_one_that_cannot_be_written_stay(durability):
    loop, files = asyncio.new_event_loop(), FaultyFileSystem()
    leader = Leader(loop, files, durability, encrypted=False)
    log, told = leader.log, []
    put(log, b"first")
    leader.drain()
    log.on_commit(lambda: told.append(log.committed))
    log.gathered_bytes_max = 300
    pwrite, written = files.pwrite, []

    def fill_up(*arguments):
        written.append(arguments)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "the disk is full")
        return pwrite(*arguments)

    files.pwrite = fill_up
    with pytest.raises(StorageError):
        put(log, *(b"%d" % number + b"x" * 100 for number in range(6)))
    files.pwrite = pwrite
    leader.drain()
    assert (log.end, log.committed, log.builder.count) == (2, 2, 0)
    put(log, b"later")
    leader.drain()
    assert loop.run_until_complete(bodies(log))[2] == b"later"
    abandon(leader.store)
    loop.close()


def test_a_part_that_no_other_node_could_take_is_refused(it):
    it.log.batch_bytes_max = 1000
    told = []
    with pytest.raises(StorageError, match="more than the 1000 that can be copied"):
        it.log.prepare(7, part(*[b"x" * 100] * 10), [], told.append)
    assert (it.log.end, it.log.unresolved, told) == (0, [], [])
    it.log.prepare(8, part(b"x" * 100), [], told.append)
    it.committer.drain()
    it.copied()
    assert told == [None]


def test_one_long_batch_is_read_though_it_has_more_bytes(it):
    put(it.log, b"one")
    put(it.log, b"b" * 5000)
    it.files.cold = True
    assert it.log.read_raw(LogPlace(), 0, 1000) is None
    it.files.cold = False
    place, offset, sizes = LogPlace(), 0, []
    while place != it.log.place:
        found = it.log.read_raw(place, offset, 1000)
        place, offset = found.stop, found.offset
        sizes.append(len(found.data))
    assert offset == 2
    assert max(sizes) > 5000
    assert sum(sizes) == sum(segment.size for segment in it.log.segments)
