"""Contract of every TopicStore: logs of an earlier run are recovered, opened and deleted."""

import errno
from pathlib import Path

import pytest

from leveret.errors import StorageError
from leveret.ports import Durability, LogName
from leveret.storage.state import MemoryStateStore
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import put, store_at
from tests.support.memory_log import MemoryTopicStore

PLACE = "/", "leveret.delayed", "i1", 0
NAME = LogName(*PLACE, Durability.OS)


class MemoryRuns:
    """Runs of a store in memory."""

    def __init__(self):
        self.store = MemoryTopicStore()

    async def next(self):
        self.store.end_run()
        return self.store

    def refuse(self, refusal):
        self.store.recover_error = refusal and StorageError(refusal)

    async def close(self):
        pass


class RefusingFiles(FaultyFileSystem):
    """Files of which one topic's cannot be listed while there is a `refusal`."""

    refusal = None

    def list_names(self, path):
        if self.refusal is not None and path.parent.name.startswith("leveret.delayed"):
            raise OSError(errno.EIO, self.refusal)
        return super().list_names(path)


class FileRuns:
    """Runs of a store in files."""

    def __init__(self):
        self.state = MemoryStateStore()
        self.files = RefusingFiles()
        self.run = None

    async def next(self):
        await self.close()
        self.run = store_at(Path("/data"), self.files, self.state)
        return await self.run.__aenter__()

    def refuse(self, refusal):
        self.files.refusal = refusal

    async def close(self):
        if self.run is not None:
            await self.run.__aexit__(None, None, None)
            self.run = None


@pytest.fixture(params=["memory", "files"])
async def runs(request):
    runs = MemoryRuns() if request.param == "memory" else FileRuns()
    yield runs
    await runs.close()


@pytest.fixture
async def left(runs):
    """Return a store to which an earlier run has left a log."""
    store = await runs.next()
    put(store.open(*PLACE, Durability.OS), b"1", b"2")
    return await runs.next()


async def test_a_new_log_needs_no_recovery(runs):
    store = await runs.next()
    assert not store.must_recover(*PLACE)
    await store.recover([NAME])
    assert not store.exists(*PLACE)
    assert store.open(*PLACE, Durability.OS).end == 0
    assert not store.must_recover(*PLACE)


async def test_a_log_that_was_left_is_recovered_before_it_is_opened(left):
    assert left.must_recover(*PLACE)
    with pytest.raises(ValueError, match="was not recovered"):
        left.open(*PLACE, Durability.OS)
    await left.recover([NAME, NAME])
    assert not left.must_recover(*PLACE)
    assert left.open(*PLACE, Durability.OS).end == 2


async def test_a_recovery_that_fails_can_be_tried_again(runs, left):
    runs.refuse("Input/output error")
    with pytest.raises(StorageError, match="Input/output error"):
        await left.recover([NAME])
    assert left.must_recover(*PLACE)
    runs.refuse(None)
    await left.recover([NAME])
    assert left.open(*PLACE, Durability.OS).end == 2


async def test_a_log_that_nobody_opened_can_be_deleted(runs, left):
    await left.delete(*PLACE)
    assert not left.exists(*PLACE)
    assert not left.must_recover(*PLACE)
    await left.delete(*PLACE)
    again = await runs.next()
    assert not again.exists(*PLACE)
    assert again.open(*PLACE, Durability.OS).end == 0


async def test_nothing_is_left_of_what_was_recovered_and_deleted(left):
    await left.recover([NAME])
    await left.delete(*PLACE)
    assert left.open(*PLACE, Durability.OS).end == 0
