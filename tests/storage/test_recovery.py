"""Damage at every byte of a log's end: what stood before is there, nothing else is."""

from pathlib import Path

import pytest
from crc32c import crc32c

from leveret.errors import CorruptBatchError
from leveret.ports import Durability
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch
from leveret.storage.checkpoint import settlement_payload
from leveret.storage.dump import dump_segment
from leveret.storage.recovery import recover
from leveret.storage.state import MemoryStateStore
from tests.storage.faulty_files import Content, FaultyFileSystem
from tests.storage.harness import abandon, bodies, get, make_store, open_log, put, store_at

DATA = Path("/data")


async def written_log(**limits) -> tuple[FaultyFileSystem, Path]:
    """A log of 3 batches, a settlement, 2 batches, a settlement, 1 batch; not closed."""
    files = FaultyFileSystem()
    store = make_store(DATA, files, **limits)
    log = open_log(store)
    for i in range(3):
        put(log, b"%d" % i, b"%d+" % i)
    log.settle([(0, 2)])
    log.write_settlements()
    put(log, b"3")
    put(log, b"4")
    log.settle([(3, 4)])
    log.write_settlements()
    put(log, b"5")
    abandon(store)
    return files.lose_process(), log.directory


def damaged_copy(files: FaultyFileSystem, path: Path, raw: bytes) -> FaultyFileSystem:
    made = files.lose_process()
    made.files[path] = Content(bytearray(raw), bytearray(raw))
    return made


def expected(files: FaultyFileSystem, path: Path, sound: int) -> tuple[int, list]:
    """End and settled ranges as of the last batch that ends at or before byte `sound`."""
    end, settled = 0, []
    for entry in dump_segment(files, path):
        assert entry.batch is not None
        if entry.position + entry.batch.size > sound:
            break
        end += entry.batch.count
        if entry.settled:
            settled = [*settled, *entry.settled]
    return end, settled


async def test_the_last_segment_cut_at_every_byte():
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    raw = bytes(files.files[path].cached)
    for cut in range(len(raw)):
        end, settled = expected(files, path, cut)
        after = damaged_copy(files, path, raw[:cut])
        found = recover(after, directory, None)
        assert (found.end, list(found.settled), found.unclean) == (end, settled, True)
        kept = bytes(after.files[path].cached)
        aside = after.files.get(path.with_name(path.name + ".damaged-1"))
        assert kept + bytes(aside.cached if aside else b"") == raw[:cut]
        assert bool(found.findings) is bool(aside)


async def test_the_last_segment_with_every_byte_flipped():
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    raw = bytes(files.files[path].cached)
    starts = [entry.position for entry in dump_segment(files, path)] + [len(raw)]
    for position in range(len(raw)):
        broken = bytearray(raw)
        broken[position] ^= 0xFF
        begin = max(start for start in starts if start <= position)
        end, settled = expected(files, path, begin)
        found = recover(damaged_copy(files, path, bytes(broken)), directory, None)
        assert (found.end, list(found.settled)) == (end, settled)
        assert "set aside" in found.findings[0]


async def test_a_log_goes_on_behind_a_cut():
    files, _ = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    files.files[path].cached[-1] ^= 1
    async with store_at(DATA, files) as store:
        log = open_log(store)
        assert log.end == 8
        assert put(log, b"anew") == 8
        abandon(store)
    async with store_at(DATA, files.lose_process()) as store:
        log = open_log(store)
        assert (await bodies(log, 8)) == {8: b"anew"}


async def test_damage_in_a_sealed_segment_is_met_when_it_is_read(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=3000) as store:
        log = open_log(store)
        for i in range(60):
            put(log, b"%03d" % i * 50)
    paths = sorted(tmp_path.rglob("*.log"))
    raw = bytearray(paths[1].read_bytes())
    raw[len(raw) // 2] ^= 1
    paths[1].write_bytes(raw)
    async with store_at(tmp_path, state=state, segment_bytes_max=3000) as store:
        log = open_log(store)
        lost = []
        for offset in range(60):
            try:
                assert (await bodies(log, offset, offset + 1))[offset] == b"%03d" % offset * 50
            except CorruptBatchError:
                lost.append(offset)
        assert len(lost) == 1
        base = int(paths[1].name[:20])
        assert base < lost[0] < int(paths[2].name[:20])
        served = await get(log, base, 1 << 20)
        assert served[-1].stop_offset == lost[0]


async def test_missing_and_damaged_indexes_are_rebuilt(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state, segment_bytes_max=200_000) as store:
        log = open_log(store)
        for i in range(60):
            put(log, b"%03d" % i * 5000)
    indexes = sorted(tmp_path.rglob("*.index"))
    assert len(indexes) > 2
    indexes[0].unlink()
    indexes[1].write_bytes(b"nonsense")
    async with store_at(tmp_path, state=state, segment_bytes_max=200_000) as store:
        log = open_log(store)
        for offset in reversed(range(60)):
            assert (await bodies(log, offset, offset + 1))[offset] == b"%03d" % offset * 5000
        abandon(store)
    for index in tmp_path.rglob("*.index"):
        index.unlink()
    async with store_at(tmp_path, segment_bytes_max=200_000) as store:
        log = open_log(store)
        assert (log.end, log.unclean) == (60, True)
        assert len(await bodies(log)) == 60


async def test_a_clean_close_is_believed_only_while_its_file_fits(tmp_path):
    state = MemoryStateStore()
    async with store_at(tmp_path, state=state) as store:
        put(open_log(store), b"a", b"b")
    (path,) = tmp_path.rglob("*.log")
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        assert (log.end, log.unclean) == (0, True)
    assert list(tmp_path.rglob("*.damaged-1"))


async def test_no_room_to_set_damage_aside_leaves_the_file_whole():
    files, _ = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    files.files[path].cached[-1] ^= 1
    raw = bytes(files.files[path].cached)
    files.fail_at, files.error = 1, 28
    async with store_at(DATA, files) as store:
        log = open_log(store)
        assert log.end == 8
        assert put(log, b"anew") == 8
        assert await bodies(log, 8) == {8: b"anew"}
        assert bytes(files.files[path].cached) == raw
        abandon(store)
    async with store_at(DATA, files.lose_process()) as store:
        log = open_log(store)
        assert await bodies(log, 8) == {8: b"anew"}
        assert log.end == 9


async def test_what_a_transient_durability_change_leaves_is_not_mixed_up(tmp_path):
    async with store_at(tmp_path) as store:
        put(open_log(store, Durability.OS), b"kept")
        put(open_log(store, Durability.NONE, "other"), b"not kept")
    async with store_at(tmp_path) as store:
        assert open_log(store, Durability.OS).end == 1
        assert open_log(store, Durability.NONE, "other").end == 0


async def test_a_dump_shows_batches_settlements_and_damage(tmp_path):
    files, _ = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    files.files[path].cached[-1] ^= 1
    entries = list(dump_segment(files, path))
    assert [bool(entry.damage) for entry in entries] == [False] * 8 + [True]
    assert entries[-1].batch is not None
    assert entries[-1].batch.base_offset == 8
    assert [list(entry.settled) for entry in entries if entry.settled is not None] == [
        [],
        [(0, 2)],
        [(3, 4)],
    ]
    assert "checksum" in entries[-1].damage


async def test_a_dump_goes_on_behind_damage():
    files, _ = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    whole = list(dump_segment(files, path))
    files.files[path].cached[whole[2].position] ^= 1
    entries = list(dump_segment(files, path))
    assert [entry.position for entry in entries] == [entry.position for entry in whole]
    assert [entry.batch is None for entry in entries] == [number == 2 for number in range(9)]
    assert entries[2].damage == "no batch begins here"


@pytest.mark.parametrize("name", ["/", "", ".", "..", "ü" * 200, "a" * 255, "x%2Fy", "\0\n", "~"])
async def test_any_name_is_a_directory_of_its_own(tmp_path, name):
    async with store_at(tmp_path) as store:
        logs = [
            store.open(vhost, topic, "i1", 0, Durability.OS)
            for vhost, topic in (("v", name), (name, "q"), ("v", name + "x"), (name + "x", "q"))
        ]
        for i, log in enumerate(logs):
            put(log, b"%d" % i)
            assert log.directory.is_relative_to(tmp_path / "topics")
    assert len(list((tmp_path / "topics").glob("*/*/0/*.log"))) == 4


async def test_nothing_is_settled_before_it_is_written():
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    batch = Batch.control(9, settlement_payload(RangeSet([(5, 100)])), 0)
    batch.set_checksum(crc32c(batch.checked))
    files.files[path].cached.extend(bytes(batch))
    found = recover(files, directory, None)
    assert (found.end, list(found.settled)) == (9, [(0, 2), (3, 4), (5, 9)])
