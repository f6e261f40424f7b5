"""Each call to the file system fails once: nothing confirmed is lost, nothing is invented."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from leveret.errors import DiskFullError, StorageError
from leveret.ports import Durability
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import (
    abandon,
    bodies,
    committed,
    make_flushes_quick,
    make_store,
    open_log,
    put,
    store_at,
)
from tests.support.waiting import eventually

DATA = Path("/data")
LIMITS = {"segment_bytes_max": 1500, "tail_cache_bytes_max": 2000}


class Witness:
    """Record of what a test has seen, which must hold afterwards."""

    def __init__(self) -> None:
        self.appended: dict[int, set[bytes]] = {}
        self.confirmed: dict[int, bytes] = {}
        self.settled: set[int] = set()
        self.settled_for_sure: set[int] = set()
        self.settled_in_file: set[int] = set()

    def confirm(self, log, sent: dict[int, bytes]) -> None:
        for offset, body in sent.items():
            if offset < log.committed:
                self.confirmed[offset] = body
                # What was written before was flushed with it.
                self.settled_for_sure = self.settled_for_sure | self.settled_in_file

    async def check(self, log) -> None:
        settled = {offset for first, stop in log.settled for offset in range(first, stop)}
        assert settled <= self.settled
        assert settled >= self.settled_for_sure
        self.settled = self.settled_in_file = settled  # the others are delivered again
        for offset in range(log.end):
            if offset in settled:
                continue
            body = (await bodies(log, offset, offset + 1))[offset]
            assert body in self.appended[offset]
            if offset in self.confirmed:
                assert body == self.confirmed[offset]
        for offset in self.confirmed:
            assert offset < log.end


async def work(log, witness: Witness, rounds: int, *, may_block: bool) -> None:
    """Append, wait, settle, flush; errors are what the fault may bring about."""
    for number in range(rounds):
        base = log.end
        sent = {base + i: b"%d-%d" % (number, i) * 20 for i in range(3)}
        for offset, body in sent.items():
            witness.appended.setdefault(offset, set()).add(body)
        try:
            put(log, *sent.values(), may_block=may_block)
        except StorageError:
            assert log.end == base
            continue
        await eventually(lambda: log.committed == log.end)
        witness.confirm(log, sent)
        if number % 3 == 2 and log.committed == base + 3:
            witness.settled = witness.settled | {base, base + 1}
            log.settle([(base, base + 2)])
            try:
                log.write_settlements()
            except StorageError:
                continue
            witness.settled_in_file = set(witness.settled)


async def run_with_fault(
    durability, fail_at: int, error: int, *, close: bool, may_block: bool
) -> str:
    """One life with one fault, an abrupt or proper end, and a healthy life to look at it."""
    files = FaultyFileSystem()
    files.fail_at, files.error = fail_at, error
    witness = Witness()
    try:
        store = make_store(DATA, files, **LIMITS)
    except StorageError:
        return files.failed
    make_flushes_quick(store)
    log = open_log(store, durability)
    await work(log, witness, 12, may_block=may_block)
    if close:
        await store.close()
        assert not files.handles
    else:
        abandon(store)
    after = files.lose_machine(7) if durability is Durability.FSYNC else files.lose_process()
    async with store_at(DATA, after, **LIMITS) as store:
        log = open_log(store, durability)
        await witness.check(log)
        await work(log, witness, 2, may_block=may_block)
        await witness.check(log)
    return files.failed


async def sweep(durability, error: int, step: int, **how: bool) -> set[str]:
    """Fail call after call until a run needs fewer calls than that."""
    failed = set()
    fail_at = 1
    while True:
        name = await run_with_fault(durability, fail_at, error, **how)
        if not name:
            return failed
        failed.add(name)
        fail_at += step


FLUSHED_BY = [  # durability, and whether an append may wait for the disk
    (Durability.FSYNC, False),
    (Durability.FSYNC, True),
    (Durability.OS, False),
]


@pytest.mark.parametrize(("durability", "may_block"), FLUSHED_BY)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, 0])
async def test_every_other_call_fails_once(durability, may_block, error):
    failed = await sweep(durability, error, 2, close=False, may_block=may_block)
    assert "pwrite" in failed


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize(("durability", "may_block"), FLUSHED_BY)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, 0])
async def test_each_call_fails_once(durability, may_block, error, close):
    failed = await sweep(durability, error, 1, close=close, may_block=may_block)
    assert "pwrite" in failed


async def test_a_full_disk_refuses_appends_until_there_is_room():
    files = FaultyFileSystem()
    async with store_at(DATA, files) as store:
        log = open_log(store)
        put(log, b"a")
        files.fail_at, files.error = files.calls + 1, errno.ENOSPC
        with pytest.raises(DiskFullError, match="free space"):
            put(log, b"lost")
        assert log.end == 1
        assert len(log.builder) == 0
        assert put(log, b"b") == 1
        assert await bodies(log) == {0: b"a", 1: b"b"}


@pytest.mark.parametrize("may_block", [False, True])
async def test_a_failed_flush_is_not_repeated_but_written_anew(may_block):
    files = FaultyFileSystem()
    store = make_store(DATA, files)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a")
    await committed(log, 1)
    make_flushes_quick(store)
    files.fail_at = files.calls + 2  # the write, then the flush
    put(log, b"b", may_block=may_block)
    assert (log.committed, log.is_flushing) == (1, True)
    await committed(log, 2)
    abandon(store)
    async with store_at(DATA, files.lose_machine()) as store:
        log = open_log(store, Durability.FSYNC)
        assert await bodies(log) == {0: b"a", 1: b"b"}


async def test_a_files_name_is_durable_before_an_append_flushes_by_itself():
    files = FaultyFileSystem()
    store = make_store(DATA, files, segment_bytes_max=600)
    make_flushes_quick(store)
    log = open_log(store, Durability.FSYNC)
    for number in range(12):  # some begin a segment
        put(log, b"%d" % number * 100, may_block=True)
        await committed(log, number + 1)
        after = files.lose_machine()
        async with store_at(DATA, after) as second:
            assert open_log(second, Durability.FSYNC).end == number + 1
    abandon(store)


@pytest.mark.parametrize("may_block", [False, True])
async def test_records_that_cannot_be_flushed_are_cut_off_and_reported(may_block):
    files = FaultyFileSystem()
    store = make_store(DATA, files)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a")
    await committed(log, 1)
    failures = []
    log.on_failure(failures.append)
    flush = files.fdatasync
    files.fdatasync = lambda handle: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))
    make_flushes_quick(store)
    put(log, b"b", b"c", may_block=may_block)
    assert (failures, log.end) == ([], 3)
    await eventually(lambda: failures)
    assert isinstance(failures[0], StorageError)
    assert (log.committed, log.end) == (1, 1)
    files.fdatasync = flush
    assert put(log, b"d") == 1
    await committed(log, 2)
    abandon(store)
    async with store_at(DATA, files.lose_machine()) as store:
        assert await bodies(open_log(store, Durability.FSYNC)) == {0: b"a", 1: b"d"}


async def test_a_transient_queue_refuses_what_neither_memory_nor_disk_can_hold():
    files = FaultyFileSystem()
    async with store_at(DATA, files, tail_cache_bytes_max=1000) as store:
        log = open_log(store, Durability.NONE)
        put(log, b"a" * 600)
        files.fail_at, files.error = files.calls + 1, errno.ENOSPC
        put(log, b"b" * 600)  # goes over the bound: the oldest could not be written down
        files.fail_at = files.calls + 1
        with pytest.raises(DiskFullError):
            put(log, b"c")
        assert put(log, b"d") == 2
        assert await bodies(log) == {0: b"a" * 600, 1: b"b" * 600, 2: b"d"}


async def test_a_cold_page_cache_is_waited_for_in_a_thread():
    files = FaultyFileSystem()
    async with store_at(DATA, files, tail_cache_bytes_max=0, segment_bytes_max=1000) as store:
        log = open_log(store)
        for i in range(50):
            put(log, b"%d" % i * 30)
        files.cold = True
        assert log.read(0, 100) is None
        assert (await log.fetch(0, 100))[0].base_offset == 0
        assert await bodies(log) == {i: b"%d" % i * 30 for i in range(50)}


async def test_many_power_cuts_in_a_row():
    """Random lives and power cuts in a row, each keeping some of what was not flushed."""
    chance = random.Random(7)
    files = FaultyFileSystem()
    witness = Witness()
    for _ in range(25):
        store = make_store(DATA, files, **LIMITS)
        log = open_log(store, Durability.FSYNC)
        await witness.check(log)
        make_flushes_quick(store)
        await work(log, witness, chance.randrange(6), may_block=chance.random() < 0.5)
        for offset in (log.end, log.end + 1):
            witness.appended.setdefault(offset, set()).add(b"unconfirmed")
        put(log, b"unconfirmed", b"unconfirmed")
        await asyncio.sleep(chance.choice([0, 0, 0.002]))
        witness.confirm(log, {log.end - 2: b"unconfirmed", log.end - 1: b"unconfirmed"})
        abandon(store)
        files = files.lose_machine(chance.randrange(200))


async def test_settlements_after_a_lost_flush_are_written_to_a_new_segment():
    files = FaultyFileSystem()
    store = make_store(DATA, files)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a", b"b")
    await committed(log, 2)
    failures = []
    log.on_failure(failures.append)
    flush = files.fdatasync
    files.fdatasync = lambda handle: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))
    put(log, b"c")
    await eventually(lambda: failures)
    files.fdatasync = flush
    log.settle([(0, 1)])
    log.write_settlements()
    abandon(store)
    async with store_at(DATA, files.lose_process()) as store:
        log = open_log(store, Durability.FSYNC)
        assert (list(log.settled), log.end) == ([(0, 1)], 2)
