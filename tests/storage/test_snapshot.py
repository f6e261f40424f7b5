"""Snapshots of logs that are opened, or written to, while the snapshot is taken."""

import asyncio
import json
import shutil

from leveret.storage.held_files import HeldFiles
from leveret.storage.snapshot import LENGTHS, SNAPSHOT, Snapshots
from leveret.storage.state import MemoryStateStore
from tests.storage.harness import bodies, make_store, open_log, put, store_at

LIMITS = {"segment_bytes_max": 600}


class InterruptedSnapshots(Snapshots):
    """Runs `meanwhile` on the event loop after all logs were cut, before any file is linked."""

    meanwhile = None

    def _link(self, written):
        asyncio.run_coroutine_threadsafe(self.meanwhile(), self.loop).result()
        super()._link(written)


async def restored(data, target):
    """The bodies in the logs of a snapshot, as a crash at its instant would have left them."""
    source = data / SNAPSHOT
    shutil.copytree(source / "topics", target / "topics")
    for name, size in json.loads((source / LENGTHS).read_text()).items():
        with (target / name).open("r+b") as file:
            file.truncate(size)
    found = {}
    async with store_at(target, **LIMITS) as store:
        for topic in ("orders", "new"):
            if store.exists("/", topic, "i1", 0):
                found[topic] = list((await bodies(open_log(store, topic=topic))).values())
    return found


async def snapshot(data, *, during=None, after=None):
    """Take a snapshot beside a log that is not open, of two segments."""
    state = MemoryStateStore()
    async with store_at(data, state=state, **LIMITS) as store:
        log = open_log(store)
        for number in range(4):
            put(log, b"%d" % number * 100)
    files = HeldFiles()
    store = make_store(data, files, state, **LIMITS)
    snapshots = InterruptedSnapshots(data, store, files)
    snapshots.loop = asyncio.get_running_loop()

    async def nothing():
        pass

    async def act(action):
        await (nothing() if action is None else action(store))

    snapshots.meanwhile = lambda: act(during)
    await snapshots.take()
    await act(after)
    await store.close()


async def write_to_both(store):
    for topic in ("orders", "new"):
        log = open_log(store, topic=topic)
        for _ in range(4):
            put(log, b"later")


EARLIER = [b"%d" % number * 100 for number in range(4)]


async def test_a_log_that_is_not_open_is_in_the_snapshot(tmp_path):
    await snapshot(tmp_path / "data")
    assert await restored(tmp_path / "data", tmp_path / "copy") == {"orders": EARLIER}


async def test_a_log_that_is_opened_meanwhile_is_in_the_snapshot_as_it_was(tmp_path):
    await snapshot(tmp_path / "data", during=write_to_both)
    assert await restored(tmp_path / "data", tmp_path / "copy") == {"orders": EARLIER}


async def test_what_is_written_before_the_files_are_copied_is_not_in_the_snapshot(tmp_path):
    await snapshot(tmp_path / "data", after=write_to_both)
    assert await restored(tmp_path / "data", tmp_path / "copy") == {"orders": EARLIER}
