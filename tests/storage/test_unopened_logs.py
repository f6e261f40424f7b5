"""Logs that a store leaves unopened because nothing is in them."""

import asyncio
import shutil

import pytest

from leveret.errors import StorageError
from leveret.ports import Durability, LogName
from leveret.storage.files import RealFileSystem
from leveret.storage.state import MemoryStateStore
from tests.storage.harness import open_log, put, store_at

LOGS, USED = 2000, 20
NAME = LogName("/", "orders", "i1", 0, Durability.OS)


class CountedFiles(RealFileSystem):
    """Counts the files that are opened and the directories that are listed."""

    def __init__(self):
        self.opened = self.listed = 0

    def open(self, *arguments):
        self.opened += 1
        return super().open(*arguments)

    def list_names(self, path):
        self.listed += 1
        return super().list_names(path)


def leave(store, topic="orders"):
    return store.leave_unopened("/", topic, "i1", 0)


@pytest.fixture
def state():
    return MemoryStateStore()


@pytest.fixture
async def emptied(tmp_path, state):
    """Return the data directory of a store that has closed an empty log."""
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        put(log, b"1", b"2")
        log.settle([(0, 2)])
    return tmp_path


async def test_a_log_that_never_was_is_left(tmp_path, state):
    async with store_at(tmp_path, state=state) as store:
        assert leave(store)
        assert not store.exists("/", "orders", "i1", 0)


async def test_an_emptied_log_is_left_and_goes_on_later(emptied, state):
    for _ in range(3):  # starts between which nobody opens it
        async with store_at(emptied, state=state) as store:
            assert leave(store)
            assert store.orphans() == []
            assert store.exists("/", "orders", "i1", 0)
    async with store_at(emptied, state=state) as store:
        assert leave(store)
        log = open_log(store)
        assert (log.end, log.unclean) == (2, False)
        assert put(log, b"3") == 2
        assert not leave(store)
    async with store_at(emptied, state=state) as store:
        assert not leave(store)


async def test_an_emptied_log_is_left_after_a_crash_in_which_it_was_not_used(emptied, state):
    async with store_at(emptied, state=state) as store:
        assert leave(store)
        crashed = MemoryStateStore()
        crashed.write(state.scan(b""), durable=True)
    async with store_at(emptied, state=crashed) as store:
        assert leave(store)


async def test_a_log_with_messages_is_opened(tmp_path, state):
    async with store_at(tmp_path, state=state) as store:
        put(open_log(store), b"1")
    async with store_at(tmp_path, state=state) as store:
        assert not leave(store)


async def test_a_log_that_was_written_to_before_a_crash_is_opened(emptied, tmp_path, state):
    crashed = tmp_path / "crashed"
    async with store_at(emptied, state=state) as store:
        put(open_log(store), b"3")
        shutil.copytree(emptied / "topics", crashed / "topics")
        closed_before = MemoryStateStore()
        closed_before.write(state.scan(b""), durable=True)
    async with store_at(crashed, state=closed_before) as store:
        assert not leave(store)
        assert open_log(store).end == 3


async def test_a_log_whose_files_are_gone_is_opened(emptied, state):
    shutil.rmtree(emptied / "topics")
    async with store_at(emptied, state=state) as store:
        assert not leave(store)


async def test_a_log_without_a_mark_is_opened(emptied):
    async with store_at(emptied) as store:
        assert not leave(store)


async def test_a_deleted_log_is_forgotten(emptied, state):
    async with store_at(emptied, state=state) as store:
        assert leave(store)
        await open_log(store).delete()
        assert not store.exists("/", "orders", "i1", 0)
        assert leave(store)


async def test_many_unused_logs_cost_no_file(tmp_path, state):
    async with store_at(tmp_path, state=state) as store:
        for number in range(USED):
            put(open_log(store, topic=f"q{number}"), b"1")
    files = CountedFiles()
    async with store_at(tmp_path, files, state) as store:
        opened, listed = files.opened, files.listed
        left = [number for number in range(LOGS) if leave(store, f"q{number}")]
        assert left == list(range(USED, LOGS))
        assert (files.opened, files.listed) == (opened, listed)
        assert len(list(store.logs())) == 1  # of the decisions about transactions
        opened = files.opened
    assert files.opened <= opened + 1


async def test_a_deletion_that_a_crash_interrupts_goes_on_at_the_next_start(
    emptied, state, tmp_path
):
    crashed = tmp_path / "crashed"
    async with store_at(emptied, state=state) as store:
        assert leave(store)
        before = MemoryStateStore()
        before.write(state.scan(b""), durable=True)
        await store.delete("/", "orders", "i1", 0)
        assert not store.exists("/", "orders", "i1", 0)
        shutil.copytree(emptied / "topics", crashed / "topics")
    assert len(list((crashed / "topics" / ".deleted").iterdir())) == 1
    assert not list((emptied / "topics" / ".deleted").iterdir())
    async with store_at(crashed, state=before) as store:
        assert not store.must_recover("/", "orders", "i1", 0)
        assert store.orphans() == []
        assert store.losses.unacknowledged == []
    assert not list((crashed / "topics" / ".deleted").iterdir())


async def test_a_log_is_deleted_once_it_is_recovered(emptied, state):
    async with store_at(emptied, state=state) as store, asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(store.recover([NAME]))
        await asyncio.sleep(0)
        await store.delete(*NAME[:4])
        await recovering
        assert not store.must_recover(*NAME[:4])
        assert open_log(store).end == 0


async def test_a_store_that_closes_refuses_what_it_has_not_recovered(emptied, state):
    async with asyncio.TaskGroup() as tasks:
        async with store_at(emptied, state=state) as store:
            recovering = tasks.create_task(failure(store.recover([NAME])))
            await asyncio.sleep(0)
        assert "the node stops" in str(await recovering)
    async with store_at(emptied, state=state) as store:
        assert open_log(store).end == 2


async def failure(work):
    with pytest.raises(StorageError) as found:
        await work
    return found.value
