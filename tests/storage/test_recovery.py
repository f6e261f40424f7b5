"""Damage at every byte of a log's end: what stood before is there, nothing else is."""

from pathlib import Path

import pytest

from leveret.errors import CorruptBatchError
from leveret.ports import Durability
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch
from leveret.storage.checkpoint import settlement_payload
from leveret.storage.dump import dump_segment
from leveret.storage.files import RealFileSystem
from leveret.storage.marks import LogMark, MarkedState
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


@pytest.mark.parametrize("zeros", [0, 3, 200])  # behind what was written
async def test_the_last_segment_cut_at_every_byte(zeros):
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    raw = bytes(files.files[path].cached)
    for cut in range(len(raw)):
        left = raw[:cut] + bytes(zeros)
        rest = raw[cut:][:zeros]
        ends_with = len(rest) - len(rest.lstrip(b"\0"))  # a batch may end with zeros itself
        end, settled = expected(files, path, cut + ends_with)
        after = damaged_copy(files, path, left)
        found = recover(after, directory, None)
        assert (found.end, list(found.settled), found.unclean) == (end, settled, True)
        kept = bytes(after.files[path].cached)
        aside = after.files.get(path.with_name(path.name + ".damaged-1"))
        found_bytes = kept + bytes(aside.cached if aside else b"")
        assert left.startswith(found_bytes)
        assert not any(left[len(found_bytes) :])
        assert bool(found.findings) is bool(aside)


@pytest.mark.parametrize("zeros", [0, 200])
async def test_the_last_segment_with_every_byte_flipped(zeros):
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    raw = bytes(files.files[path].cached)
    starts = [entry.position for entry in dump_segment(files, path)] + [len(raw)]
    for position in range(len(raw)):
        broken = bytearray(raw)
        broken[position] ^= 0xFF
        begin = max(start for start in starts if start <= position)
        end, settled = expected(files, path, begin)
        found = recover(damaged_copy(files, path, broken + bytes(zeros)), directory, None)
        assert (found.end, list(found.settled)) == (end, settled)
        assert "quarantined" in found.findings[0]


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
        assert (log.end, log.unclean) == (2, True)
        assert list(log.settled) == [(0, 2)]
        assert [loss.count for loss in store.losses.unacknowledged] == [2]
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
    batch.set_checksum()
    files.files[path].cached.extend(bytes(batch))
    found = recover(files, directory, None)
    assert (found.end, list(found.settled)) == (9, [(0, 2), (3, 4), (5, 9)])


@pytest.mark.parametrize("loses_name", [False, True])
async def test_what_a_kill_has_left_survives_the_machine_once_it_is_recovered(loses_name):
    """Consumers get it, and groups and other logs build on it."""
    files, directory = await written_log()
    if loses_name:  # it died before the first flush of the file
        files.durable.clear()
    assert recover(files.lose_machine(), directory, None).end == 0
    found = recover(files, directory, None, flushes=True)
    again = recover(files.lose_machine(), directory, None)
    assert (again.end, list(again.settled)) == (9, list(found.settled))


async def test_what_was_not_written_to_since_its_close_is_not_flushed_again():
    """The node has thousands of queues, and a flush of each takes longer than to read its end."""
    files, state = FaultyFileSystem(), MemoryStateStore()
    flushed = []
    for ends in (True, False, False):
        store = make_store(DATA, files, state)
        before = files.calls
        log = open_log(store, Durability.FSYNC)
        flushed.append(files.calls - before)
        if ends:
            put(log, b"m")
            await store.close()
        else:
            abandon(store)
            files = files.lose_process()
    assert flushed == [0, 0, 0]
    store = make_store(DATA, files, state)
    put(open_log(store, Durability.FSYNC), b"n")
    abandon(store)
    files = files.lose_process()
    store = make_store(DATA, files, state)
    before = files.calls
    open_log(store, Durability.FSYNC)
    assert files.calls > before
    abandon(store)


SAME_BOOT = MarkedState(same_boot=True)


def reached(mark_committed: int) -> MarkedState:
    """Return what is known when the last run has marked so many records, and died in this boot."""
    mark = LogMark(1, False, 0, 0, 0, mark_committed, 0)
    return MarkedState(mark, same_boot=True, same_run=True)


async def test_sound_batches_behind_damage_are_kept_where_the_machine_has_not_died():
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    raw = bytes(files.files[path].cached)
    entries = [entry for entry in dump_segment(files, path) if entry.batch is not None]
    for position in range(len(raw)):
        broken = bytearray(raw)
        broken[position] ^= 0xFF
        hit = [each for each in entries if each.position <= position][-1]
        after = damaged_copy(files, path, bytes(broken))
        found = recover(after, directory, reached(9))
        assert found.end == 9
        there = {
            offset for first, stop in found.settled.gaps(0, 9) for offset in range(first, stop)
        }
        lost = sum(loss.count for loss in found.losses)
        held = (
            set(range(hit.batch.base_offset, hit.batch.stop_offset)) if hit.batch.count else set()
        )
        settled = {0, 1, 3}
        # Damage in a control batch loses no record: what it settled is there again at most.
        assert there | held >= set(range(9)) - settled
        assert not there & held
        assert lost >= len(held - settled)
        kept = [path for path in after.files if ".damaged-" in path.name]
        assert len(kept) == 1


async def test_batches_behind_damage_are_lost_with_the_machine():
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    entries = [entry for entry in dump_segment(files, path) if entry.batch is not None]
    second = [entry for entry in entries if entry.batch.count][1]
    broken = bytearray(files.files[path].cached)
    broken[second.position + 70] ^= 1
    # They were not flushed, as far as anybody knows: pages are written in any order.
    found = recover(damaged_copy(files, path, bytes(broken)), directory, MarkedState())
    assert (found.end, found.losses) == (2, [])
    flushed = MarkedState(LogMark(1, False, 0, 0, 0, 8, 8), same_run=True)
    found = recover(damaged_copy(files, path, bytes(broken)), directory, flushed)
    assert (found.end, [loss.count for loss in found.losses]) == (9, [1])


@pytest.mark.parametrize("zeros", [0, 200])
async def test_what_looks_like_a_batch_within_a_torn_one_is_a_message(zeros):
    files, directory = await written_log()
    (path,) = [path for path in files.files if path.suffix == ".log"]
    whole = len(files.files[path].cached)
    forged = Batch.control(9, settlement_payload(RangeSet([(4, 8)])), 0)
    forged.set_checksum()
    async with store_at(DATA, files) as store:
        log = open_log(store)
        put(log, bytes(forged) * 3, b"x" * 100)
        abandon(store)
    torn = damaged_copy(files, path, bytes(files.files[path].cached)[:-50] + bytes(zeros))
    found = recover(torn, directory, SAME_BOOT)
    assert (found.end, list(found.settled)) == (9, [(0, 2), (3, 4)])
    assert len(torn.files[path].cached) == whole


async def test_a_file_that_was_grown_ahead_ends_where_its_content_does(tmp_path):
    state = MemoryStateStore()
    store = make_store(tmp_path, state=state)
    log = open_log(store, Durability.FSYNC)
    put(log, b"a")
    put(log, bytes(200))
    await log.settlements_safe()
    segment, position = log.written
    abandon(store)
    assert segment.path.stat().st_size > position
    assert [entry.damage for entry in dump_segment(RealFileSystem(), segment.path)] == [""] * 3
    found = recover(RealFileSystem(), log.directory, None)
    assert (found.end, found.findings, found.losses) == (2, [], [])
    assert segment.path.stat().st_size == position
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store, Durability.FSYNC)
        assert await bodies(log) == {0: b"a", 1: bytes(200)}
        put(log, b"b")
        position = log.written[1]
    assert segment.path.stat().st_size == position
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        assert (log.end, log.unclean) == (3, False)


async def test_a_log_goes_on_behind_damage_that_was_passed_over(tmp_path):
    state = MemoryStateStore()
    store = make_store(tmp_path, state=state)
    log = open_log(store)
    for number in range(10):
        put(log, b"%d" % number * 100)
    abandon(store)
    (path,) = tmp_path.rglob("*.log")
    entries = [entry for entry in dump_segment(RealFileSystem(), path) if entry.batch.count]
    raw = bytearray(path.read_bytes())
    raw[entries[4].position + 90] ^= 1
    path.write_bytes(raw)
    for _ in range(2):
        store = make_store(tmp_path, state=state)
        log = open_log(store)
        assert list(log.settled) == [(4, 5)]
        assert [loss.count for loss in store.losses.unacknowledged] == [1]
        assert log.end == 10
        log.write_settlements()
        abandon(store)
    async with store_at(tmp_path, state=state) as store:
        log = open_log(store)
        assert put(log, b"anew") == 10
        assert sorted({**(await bodies(log, 0, 4)), **(await bodies(log, 5))}) == [
            *range(4),
            *range(5, 11),
        ]
    assert path.read_bytes() == raw
