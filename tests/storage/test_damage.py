"""Damage inside a segment that is read: all else is served, the damaged bytes are kept."""

import errno
import os
from pathlib import Path

import pytest

from leveret.errors import CorruptBatchError, StorageError
from leveret.ports import Durability
from leveret.storage.damage import survey
from leveret.storage.dump import dump_segment
from leveret.storage.files import RealFileSystem
from leveret.storage.scan import scan
from leveret.storage.state import MemoryStateStore
from tests.storage.faulty_files import Content, FaultyFileSystem
from tests.storage.harness import abandon, get, make_store, open_log, put, store_at

DATA = Path("/data")
LIMITS = {"segment_bytes_max": 2000, "tail_cache_bytes_max": 0}


async def closed_log(files=None) -> tuple[FaultyFileSystem, MemoryStateStore, list[Path]]:
    """A cleanly closed log over several segments, two records in each batch."""
    files, state = files or FaultyFileSystem(), MemoryStateStore()
    async with store_at(DATA, files, state, **LIMITS) as store:
        log = open_log(store)
        for i in range(0, 60, 2):
            put(log, b"%03d" % i * 20, b"%03d" % (i + 1) * 20)
            if i == 30:
                log.settle([(20, 22)])
                log.write_settlements()
    return files, state, sorted(path for path in files.files if path.suffix == ".log")


def body(offset: int) -> bytes:
    return b"%03d" % offset * 20


async def read_all(log) -> dict[int, bytes]:
    """Everything unsettled, as a queue reads it: lost offsets are settled and passed over."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset < log.committed:
        if offset in log.settled:
            offset += 1
            continue
        try:
            batches = await get(log, offset, 300)
        except CorruptBatchError:
            damage = await log.set_aside(offset)
            log.settle(list(damage.lost))
            if offset in damage.lost:
                continue
            batches = await get(log, offset, 300)
        for batch in batches:
            for record in batch.records():
                if record[0] not in log.settled:
                    found[record[0]] = record[6]
        offset = batches[-1].stop_offset
    return found


def kept_bytes(files) -> list[bytes]:
    return [
        bytes(content.cached)
        for path, content in sorted(files.files.items())
        if ".damaged-" in path.name
    ]


def flip(files, path, position) -> None:
    files.files[path].cached[position] ^= 0xFF


async def test_every_byte_of_a_sealed_segment_flipped():
    files, state, paths = await closed_log()
    path = paths[1]
    entries = list(dump_segment(files, path))
    raw = bytes(files.files[path].cached)
    for position in range(len(raw)):
        hit = max(entry.position for entry in entries if entry.position <= position)
        (batch,) = [entry.batch for entry in entries if entry.position == hit]
        after, marks = files.lose_process(), MemoryStateStore()
        marks.write(state.scan(b""), durable=True)
        flip(after, path, position)
        store = make_store(DATA, after, marks, **LIMITS)
        log = open_log(store)
        found = await read_all(log)
        assert all(found[offset] == body(offset) for offset in found), position
        gone = {20, 21, *range(batch.base_offset, batch.stop_offset)}
        assert set(range(60)) - set(found) == gone, position
        if not batch.is_control and batch.base_offset != 20:  # those need not be read
            damaged = bytearray(bytes(batch))
            damaged[position - hit] ^= 0xFF
            assert kept_bytes(after) == [damaged], position
        abandon(store)


async def damaged_twice():
    """The log with two stretches of damage in its second segment, and the lost offsets."""
    files, state, paths = await closed_log()
    data = [
        entry
        for entry in dump_segment(files, paths[1])
        if entry.batch is not None and not entry.batch.is_control
    ]
    lost = set()
    for entry in (data[1], data[3], data[4]):
        flip(files, paths[1], entry.position + 100)
        lost |= set(range(entry.batch.base_offset, entry.batch.stop_offset))
    return files, state, paths[1], lost


async def test_all_damage_of_a_segment_is_found_at_once_and_stays_known():
    files, state, path, lost = await damaged_twice()
    async with store_at(DATA, files, state, **LIMITS) as store:
        log = open_log(store)
        damage = await log.set_aside(min(lost))
        assert {offset for first, stop in damage.lost for offset in range(first, stop)} == lost
        assert damage.kept == [f"{path}.damaged-{number}" for number in (1, 2)]
        assert damage.is_new
        log.settle(list(damage.lost))
        assert set(await read_all(log)) == set(range(60)) - lost - {20, 21}
    kept = kept_bytes(files)
    assert len(kept) == 2
    for index in [name for name in files.files if name.suffix == ".index"]:
        files.unlink(index)
    async with store_at(DATA, files, state, **LIMITS) as store:
        log = open_log(store)
        assert not log.unclean
        assert set(await read_all(log)) == set(range(60)) - lost - {20, 21}
        again = await log.set_aside(min(lost))
        assert (again.lost.count, again.is_new) == (0, False)
    assert kept_bytes(files) == kept


async def test_the_copies_survive_a_power_cut():
    files, state, _, lost = await damaged_twice()
    store = make_store(DATA, files, state, **LIMITS)
    await open_log(store).set_aside(min(lost))
    kept = kept_bytes(files)
    abandon(store)
    assert kept_bytes(files.lose_machine()) == kept


async def test_nothing_is_lost_where_nothing_can_be_kept():
    files, state, _, lost = await damaged_twice()
    async with store_at(DATA, files, state, **LIMITS) as store:
        log = open_log(store)
        files.fail_at, files.error = files.calls + 2, errno.ENOSPC
        with pytest.raises(StorageError, match="disk is full"):
            await log.set_aside(min(lost))
        assert not kept_bytes(files)
        files.fail_at = None
        assert (await log.set_aside(min(lost))).lost.count == len(lost)


async def test_a_segment_that_ends_too_early():
    files, state, paths = await closed_log()
    raw = files.files[paths[1]].cached
    entries = [entry for entry in dump_segment(files, paths[1]) if entry.batch.count]
    at_a_batch, within = entries[-1].position, entries[-1].position + 70
    for cut, kept in ((at_a_batch, []), (within, [raw[at_a_batch:within]])):
        after, marks = files.lose_process(), MemoryStateStore()
        marks.write(state.scan(b""), durable=True)
        del after.files[paths[1]].cached[cut:]
        async with store_at(DATA, after, marks, **LIMITS) as store:
            log = open_log(store)
            found = await read_all(log)
            gone = set(range(entries[-1].batch.base_offset, entries[-1].batch.stop_offset))
            assert set(found) == set(range(60)) - gone - {20, 21}
        assert kept_bytes(after) == kept


async def test_records_written_behind_damage_in_the_last_segment_survive_a_kill():
    files, state, paths = await closed_log()
    last = next(entry for entry in dump_segment(files, paths[-1]) if entry.batch.count)
    flip(files, paths[-1], last.position + 100)
    store = make_store(DATA, files, state, **LIMITS)
    log = open_log(store, Durability.FSYNC)
    before = await read_all(log)
    assert put(log, b"behind") == 60
    await log._flush_all()
    log.write_settlements()
    abandon(store)
    async with store_at(DATA, files.lose_process(), **LIMITS) as store:
        log = open_log(store)
        assert await read_all(log) == {**before, 60: b"behind"}


async def test_what_memory_holds_is_not_lost():
    files = FaultyFileSystem()
    async with store_at(DATA, files, segment_bytes_max=2000) as store:
        log = open_log(store)
        for i in range(60):
            put(log, body(i))
        (path, *_) = sorted(path for path in files.files if path.suffix == ".log")
        flip(files, path, 200)
        assert not (await log.set_aside(0)).lost
        assert len(await read_all(log)) == 60


async def test_bad_sectors_are_damage(tmp_path):
    class BadSector(RealFileSystem):
        bad = None

        def read(self, handle, buffer, position, *, wait):
            if self.bad is not None and os.fstat(handle).st_size > 40_000:
                if self.bad <= position < self.bad + 4096:
                    raise OSError(errno.EIO, "bad sector")
                if position < self.bad < position + len(buffer):
                    before = bytearray(self.bad - position)
                    got = super().read(handle, before, position, wait=wait)
                    buffer[:got] = before[:got]
                    return got
            return super().read(handle, buffer, position, wait=wait)

    files, state = BadSector(), MemoryStateStore()
    limits = {"segment_bytes_max": 40_000, "tail_cache_bytes_max": 0}
    async with store_at(tmp_path, files, state, **limits) as store:
        log = open_log(store)
        for i in range(60):
            put(log, b"%03d" % i * 400)
        files.bad = 16384
        found = await read_all(log)
        files.bad = None
        assert all(found[offset] == b"%03d" % offset * 400 for offset in found)
    aside = sorted(tmp_path.rglob("*.damaged-*"))
    assert len(aside) == sum(1 for path in tmp_path.rglob("*.log") if path.stat().st_size > 40_000)
    assert len(aside) <= 60 - len(found) <= 5 * len(aside)
    assert all(bytes(4096) in path.read_bytes() for path in aside)


async def test_a_body_that_looks_like_a_batch_is_not_taken_for_one():
    files, state = FaultyFileSystem(), MemoryStateStore()
    async with store_at(DATA, files, state, **LIMITS) as store:
        log = open_log(store)
        for i in range(3):
            put(log, body(i))
        lure = bytes((await get(log, 2))[0])
        put(log, lure)
        for i in range(4, 40):
            put(log, body(i))
    path = min(path for path in files.files if path.suffix == ".log")
    entry = next(
        entry for entry in dump_segment(files, path) if entry.batch and entry.batch.base_offset == 3
    )
    flip(files, path, entry.position + 30)
    async with store_at(DATA, files, state, **LIMITS) as store:
        damage = await open_log(store).set_aside(3)
        assert list(damage.lost) == [(3, 4)]


async def test_looking_for_the_next_batch_has_a_bound(monkeypatch):
    monkeypatch.setattr("leveret.storage.damage.SEARCH_BYTES_MAX", 5000)
    files = FaultyFileSystem()
    path = Path("/lures")
    lure = b"LVB1" + (1000).to_bytes(4, "little") + bytes(56)
    files.files[path] = Content(bytearray(b"\xff" * 100 + lure * 50 + bytes(1000)))
    read = []
    original = files.read

    def counted(handle, buffer, position, *, wait):
        read.append(len(buffer))
        return original(handle, buffer, position, wait=wait)

    files.read = counted
    size = len(files.files[path].cached)
    found = survey(files, files.open(path), 0, 10, size, gapless=True)
    assert [(stretch.position, stretch.limit) for stretch in found.damaged] == [(0, size)]
    assert sum(read) < 5000 + 1000 + 2 * size + 200


async def test_a_transient_log_is_served_around_damage():
    files = FaultyFileSystem()
    async with store_at(DATA, files, **LIMITS) as store:
        log = open_log(store, Durability.NONE)
        for i in range(60):
            put(log, body(i))
            if i % 7 == 0:
                log.settle([(i, i + 1)])
        paths = sorted(path for path in files.files if path.suffix == ".log")
        entry = list(dump_segment(files, paths[1]))[2]
        flip(files, paths[1], entry.position + 90)
        found = await read_all(log)
        assert len(kept_bytes(files)) == 1
        lost = set(range(60)) - set(found) - set(range(0, 60, 7))
        assert lost == {entry.batch.base_offset}


async def test_a_log_that_is_closed_or_deleted_meanwhile():
    files, state, _, lost = await damaged_twice()
    async with store_at(DATA, files, state, **LIMITS) as store:
        log = open_log(store)
        await log.delete()
        with pytest.raises(StorageError, match="is closed"):
            await log.set_aside(min(lost))


async def test_a_file_shorter_than_it_was_does_not_keep_a_scan_busy():
    files = FaultyFileSystem()
    _, _, paths = await closed_log(files)
    raw = files.files[paths[0]].cached
    size = len(raw)
    del raw[-10:]
    with pytest.raises(CorruptBatchError):
        list(scan(files, files.open(paths[0]), 0, size))
