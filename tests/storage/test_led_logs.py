"""Logs of the node that leads, while they are deleted, and while its disk refuses."""

import asyncio
import errno
import os

import pytest

from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports import Durability
from leveret.ports.replication import START, LogPlace
from leveret.storage.led_logs import LedLogs
from leveret.storage.replica_files import find_end
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import bodies, put
from tests.storage.test_copied_log import part
from tests.storage.test_replica_machine import DATA, Leader


class Deleting(FaultyFileSystem):
    """Calls `before_size` each time before a size is read."""

    def __init__(self):
        super().__init__()
        self.before_size = lambda: None

    def size(self, path):
        self.before_size()
        return super().size(path)


class Untold:
    """`LogEvents` that nobody hears, but for where a log ends."""

    end = None

    def dropped(self, log):
        pass

    def wrote(self, log, before, end):
        self.end = end

    def removed(self, log, base, revision):
        pass


class Led:
    """Logs that a node leads: one log, not opened, and what a follower says that it has of it."""

    def __init__(self, loop):
        self.files = Deleting()
        self.leader = Leader(loop, self.files, Durability.FSYNC, encrypted=False)
        self.log = self.leader.log
        self.key, self.directory = self.log.key.decode(), self.log.directory
        put(self.log, b"1")
        self.leader.drain()
        self.events = Untold()
        self.logs = LedLogs(DATA, self.files, loop, self.leader.threads, self.events)
        self.theirs = find_end(self.files, self.directory).describe(self.files, self.key)

    @property
    def other(self):
        """Description of a log whose last batch is not the leader's."""
        return self.theirs._replace(checksum=self.theirs.checksum + 1)

    def delete(self):
        self.files.before_size = lambda: None
        self.leader.store._log_deleted(self.directory, self.log.key)
        self.logs.deleted(self.key)

    def lead(self):
        """Open the log, which needs two nodes in sync; three are."""
        self.log.require_copies(2)
        self.logs.set_in_sync_counts(3, 3)
        self.logs.opened(self.key, self.log)

    def lack_copies(self):
        self.logs.set_in_sync_counts(1, 3)
        assert self.log.is_refusing

    async def replicate(self):
        """Have all nodes that are in sync flush everything."""
        for _ in range(5):
            await asyncio.sleep(0)
            self.leader.drain()
            if self.events.end is not None:
                self.logs.replicated(self.key, *self.events.end)

    async def read(self):
        return await self.logs.fetch_raw(self.key, START, 0, 1000)


@pytest.fixture
async def it():
    it = Led(asyncio.get_running_loop())
    yield it
    it.leader.threads.pool.shutdown()


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_last_batch_is_compared_where_both_have_its_file(it, is_open):
    if is_open:
        it.logs.opened(it.key, it.log)
    assert it.logs.has_last(it.theirs)
    assert not it.logs.has_last(it.other)
    assert it.logs.has_last(it.theirs._replace(last=LogPlace(7, 0, 0)))  # removed or compacted


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_log_that_was_deleted_differs_in_nothing(it, is_open):
    if is_open:
        it.logs.opened(it.key, it.log)
    it.delete()
    assert it.logs.has_last(it.other)


async def test_a_log_that_is_deleted_while_it_is_compared_differs_in_nothing(it):
    it.files.before_size = it.delete
    assert it.logs.has_last(it.other)


async def test_nothing_is_read_of_a_log_that_is_deleted_meanwhile(it):
    assert (await it.read()).data
    it.files.before_size = it.delete
    assert not (await it.read()).data


async def test_what_the_system_refuses_is_an_error_of_the_disk(it):
    def refuse():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    it.files.before_size = refuse
    with pytest.raises(StorageError, match="cannot list"):
        it.logs.has_last(it.theirs)
    with pytest.raises(StorageError, match="cannot list"):
        await it.read()


async def test_the_logs_tell_how_many_copies_there_may_be_unless_there_may_be_all(it):
    assert it.logs.in_sync_count is None  # nothing is known yet
    it.lead()
    assert it.logs.in_sync_count is None
    it.lack_copies()
    assert it.logs.in_sync_count == 1


async def test_settlements_are_safe_though_records_lack_copies(it):
    it.lead()
    put(it.log, b"2")
    await it.replicate()
    it.lack_copies()
    it.log.settle([(0, 2)])
    waiting = asyncio.get_running_loop().create_task(it.log.settlements_safe())
    await it.replicate()
    assert waiting.done()


async def test_files_are_removed_though_records_lack_copies(it):
    it.lead()
    for number in range(20):
        put(it.log, b"%d" % number + b"x" * 100)
        await it.replicate()
    it.lack_copies()
    it.log.settle([(0, it.log.end)])
    it.log.write_settlements()
    await it.replicate()
    assert it.log.segments[0].base > 0


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_no_more_is_committed_until_enough_nodes_have_it(it, is_flushed):
    it.lead()
    put(it.log, b"2")
    if is_flushed:
        it.leader.drain()
    it.lack_copies()
    it.log.settle([(0, 1)])
    it.log.write_settlements()
    await it.replicate()
    assert (it.log.committed, it.log.acknowledged) == (1, 1)
    it.logs.set_in_sync_counts(2, 3)
    assert it.log.committed == 2
    assert await bodies(it.log, 1) == {1: b"2"}


async def test_what_enough_nodes_have_is_committed_though_they_are_gone(it):
    told = []
    it.lead()
    it.log.prepare(7, part(b"part"), [], told.append)
    await it.replicate()
    it.lack_copies()
    it.log.settle([(0, 1)])
    it.log.write_settlements()
    await it.replicate()
    assert (it.log.committed, told) == (1, [None])
    it.log.resolve(7, committed=True)
    assert it.log.committed == 2


async def test_a_part_that_is_aborted_for_lack_of_copies_keeps_its_file(it):
    told = []
    it.lead()
    await it.replicate()
    it.log.prepare(7, part(*[b"x" * 100] * 5), [], told.append)
    it.log.prepare(8, part(*[b"x" * 100] * 5), [], told.append)
    it.lack_copies()
    assert [type(error) for error in told] == [NotEnoughCopiesError] * 2
    for transaction in (7, 8):
        it.log.resolve(transaction, committed=False)
    it.log.settle([(0, 1)])
    for _ in range(3):
        await it.replicate()
        it.log.write_settlements()
    assert it.log.first <= it.log.committed == 1
    assert list(it.log.undone) == [(1, 11)]
    it.logs.set_in_sync_counts(2, 3)
    await it.replicate()
    assert (it.log.committed, it.log.unresolved) == (11, [])
