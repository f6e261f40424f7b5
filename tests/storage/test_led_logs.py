"""Logs of the node that leads, while they are deleted, and while its disk refuses."""

import asyncio
import errno
import os

import pytest

from leveret.errors import StorageError
from leveret.ports import Durability
from leveret.ports.replication import START, LogPlace
from leveret.storage.led_logs import LedLogs
from leveret.storage.replica_files import find_end
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import put
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
    """`LogEvents` that nobody hears."""

    def dropped(self, log):
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
        self.logs = LedLogs(DATA, self.files, loop, self.leader.threads, Untold())
        self.theirs = find_end(self.files, self.directory).describe(self.files, self.key)

    @property
    def other(self):
        """Description of a log whose last batch is not the leader's."""
        return self.theirs._replace(checksum=self.theirs.checksum + 1)

    def delete(self):
        self.files.before_size = lambda: None
        self.leader.store._log_deleted(self.directory, self.log.key)
        self.logs.deleted(self.key)

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
