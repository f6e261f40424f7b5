"""Compaction of logs by key: what is written anew, when, and what is left alone."""

import asyncio
import errno
import logging
import threading
import time

import pytest

from leveret.core.logs.log_scan import LogScan
from leveret.errors import CorruptBatchError
from leveret.ports import Compaction, Durability, Retention
from leveret.ports.records import BatchBuilder
from leveret.storage.compaction import is_clean, is_due
from leveret.storage.damage import survey
from leveret.storage.dump import dump_segment
from leveret.storage.recovery import recover
from leveret.storage.rewriting import StoppedError, Throttle, next_revision
from leveret.storage.segment import list_segments
from tests.storage.compaction_harness import COMPACTS, DATA, DELAY_MS, HOUR_MS, CompactedLog
from tests.storage.harness import PERSISTENT, keyed
from tests.support.waiting import LIMIT_SECONDS, eventually

VALUE = b"v" * 90


@pytest.fixture
def it():
    it = CompactedLog(checks=False)
    yield it
    it.close()


@pytest.fixture
def checked():
    it = CompactedLog()
    yield it
    it.close()


def fill(it, count: int, keys: int = 3) -> None:
    for number in range(count):
        it.put((b"%d" % (number % keys), b"%d." % number + VALUE))


def files_of(it) -> list[str]:
    return it.files.list_names(it.log.directory)


def logs_of(it):
    return {
        path: bytes(it.files.files[path].cached) for path in it.files.files if path.suffix == ".log"
    }


def test_sealed_segments_keep_the_latest_of_each_key(it):
    it.put((None, b"no key"), (b"rare", b"1"))
    fill(it, 40)
    active = it.log.segments[-1].base
    it.compact()
    found = it.read()
    assert [offset for offset in found if offset < active - 3] == [0, 1]
    assert found == {offset: found[offset] for offset in sorted(found)}
    assert set(range(active, it.log.end)) <= set(found)
    assert it.log.end == 42
    assert it.removed == set(range(42)) - set(found)


def test_what_stays_keeps_the_epoch_in_which_it_was_written(it):
    written = {}
    for epoch in (1, 3):
        it.epoch = epoch
        it.restart()
        written |= dict.fromkeys(range(it.log.end, it.log.end + 20), epoch)
        fill(it, 20)
    it.compact()
    assert len(it.removed) > 20
    for segment in it.log.segments:
        batches = [each.batch for each in dump_segment(it.files, segment.path)]
        epochs = [batch.leader_epoch for batch in batches]
        assert epochs == sorted(epochs)
        for batch in batches:
            assert batch.is_control or batch.leader_epoch == written[batch.base_offset]


def test_what_a_group_has_not_read_stays(it):
    fill(it, 40)
    read = 12
    it.log.retention_waits_at = lambda: read
    it.compact()
    assert set(range(12, 40)) <= set(it.read())
    assert 0 < len(it.removed) <= 12
    read = 40
    it.compact()
    assert len(it.removed) > 20


def test_a_group_is_waited_for_no_longer_than_it_may_be():
    waits = Retention(compaction=Compaction(DELAY_MS), waits_ms_max=HOUR_MS)
    it = CompactedLog(waits, checks=False)
    try:
        it.log.retention_waits_at = lambda: 0
        fill(it, 40)
        it.compact()
        assert not it.removed
        it.clock.now_ms += 2 * HOUR_MS
        it.compact()
        assert len(it.removed) > 20
    finally:
        it.close()


def test_the_log_line_has_the_figures(it, caplog):
    with caplog.at_level(logging.INFO):
        fill(it, 40)
        it.compact()
    [line] = [record.message for record in caplog.records if record.message.startswith("compacted")]
    assert "compacted queue 'orders' in vhost '/': " in line
    assert "segments written anew" in line
    figures = it.store.compactor.figures
    assert figures.removed == len(it.removed) > 20
    assert figures.freed_bytes > 2000
    assert figures.passes == 1
    assert figures.failures == 0


def test_a_segment_of_which_nothing_is_left_goes(it):
    fill(it, 60, keys=1)
    it.compact()
    it.settle_down()
    it.put((b"0", VALUE))
    it.roll()
    it.settle_down()
    assert len([name for name in files_of(it) if name.endswith(".log")]) <= 4
    it.die()
    assert it.log.end == 61
    assert it.store.losses.unacknowledged == []


def test_opening_reads_no_compacted_segment(it):
    it.put((b"a", b"1"))
    fill(it, 40)
    it.compact()
    settled = list(it.log.settled)
    it.restart()
    assert list(it.log.settled) == settled
    assert it.log._stated.count < it.log.settled.count
    sealed = it.log.segments[:-1]
    assert sealed
    assert all(is_clean(it.log, segment) for segment in sealed)
    assert all(segment.index is None for segment in sealed)


def test_a_pass_waits_until_it_pays(it):
    fill(it, 200, keys=60)
    it.compact()
    assert not is_due(it.log, it.clock.now_ms)
    fill(it, 12)
    it.roll()
    assert not all(is_clean(it.log, segment) for segment in it.log.compactable())
    assert not is_due(it.log, it.clock.now_ms)
    it.clock.now_ms += DELAY_MS
    assert is_due(it.log, it.clock.now_ms)
    it.clock.now_ms -= DELAY_MS
    fill(it, 60)
    assert is_due(it.log, it.clock.now_ms)


def test_sealing_begins_a_pass_that_pays(checked):
    fill(checked, 20)
    assert checked.worker.waiting
    checked.worker.drain()
    assert len(checked.read()) < 20


def test_the_segment_that_is_written_is_sealed_after_a_day(checked):
    it = checked
    it.put((b"a", b"1"), (b"a", b"2"))
    it.clock.now_ms += 25 * HOUR_MS
    it.store._check_retention()
    it.settle_down()
    it.worker.drain()
    it.settle_down()
    assert it.read() == {1: b"2"}


def test_tombstones_go_without_anything_new(checked):
    it = checked
    it.put((b"a", b"1"), (b"a", b""), (b"b", b"2"))
    it.roll()
    it.compact()
    assert it.read() == {1: b"", 2: b"2"}
    it.restart()
    it.clock.now_ms += DELAY_MS - 1
    it.log.check_retention()
    it.worker.drain()
    assert it.read() == {1: b"", 2: b"2"}
    it.clock.now_ms += 1
    it.log.check_retention()
    it.worker.drain()
    assert it.read() == {2: b"2"}


def test_a_tombstone_is_there_for_a_day_after_what_it_deletes_went(it):
    it.put((b"a", b"1"))
    it.put((b"a", b""))
    it.clock.now_ms += 10 * DELAY_MS  # it is old, and nobody has compacted
    it.roll()
    it.compact()
    assert it.read() == {1: b""}


def test_undecided_transactions_hold_compaction_up(it):
    it.put((b"a", b"1"), (b"a", b"2"))
    builder = BatchBuilder()
    builder.add(PERSISTENT, it.clock.now_ms, b"", b"", keyed(b"a"), b"3")
    it.log.prepare(7, builder, [], lambda error: None)
    it.committer.drain()
    it.put((b"a", b"4"))
    it.roll()
    it.roll()
    it.compact()
    assert it.log.compactable() == []
    it.log.resolve(7, committed=False)
    it.compact()
    assert it.read() == {3: b"4"}
    it.die()
    assert it.read() == {3: b"4"}
    assert not it.log.undone
    assert not list(it.log._unresolved)


def test_what_a_reader_needs_is_left_alone(it):
    fill(it, 40)
    it.log.keep_from("window", 5)
    it.compact()
    assert it.read().keys() >= set(range(5, 40))
    it.log.keep_from("window", None)
    it.compact()
    assert len(it.read()) < 20


def test_damage_holds_compaction_up_and_nothing_is_lost(it, caplog):
    fill(it, 60)
    path = it.log.segments[1].path
    it.files.files[path].cached[700] ^= 1
    before = logs_of(it)
    it.compact()
    assert logs_of(it) == before
    assert "is not compacted further" in caplog.text
    it.compact()
    assert caplog.text.count("is not compacted further") == 1
    assert it.store.compactor.figures.failures >= 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_the_old_file(it, error, caplog):
    it.put((b"rare", b"1"))
    fill(it, 40)
    it.settle_down()
    found, before = it.read(), logs_of(it)
    for call in range(1, 4):
        it.files.fail_at, it.files.error = it.files.calls + call, error
        it.begin()
        it.worker.drain()
        it.settle_down()
        assert it.files.failed
        it.files.fail_at = None
        assert it.read() == found
        assert logs_of(it) == before
        assert not [name for name in files_of(it) if name.endswith(".new")]
    assert "is not compacted further" in caplog.text
    it.compact()
    assert len(it.read()) < len(found)


def test_retention_holds_too():
    it = CompactedLog(Retention(records_max=20, compaction=Compaction(DELAY_MS)))
    it.put((b"rare", b"1"))
    fill(it, 80)
    it.compact()
    assert it.log.first > 0
    assert 0 not in it.read()
    it.close()


def test_a_log_can_be_compacted_from_now_on_and_no_more(it):
    it.log.retention = Retention()
    fill(it, 40)
    it.compact()
    assert len(it.read()) == 40
    it.log.retention = COMPACTS
    it.worker.drain()
    it.compact()
    left = len(it.read())
    assert left < 20
    it.log.retention = Retention()
    it.compact()
    fill(it, 40)
    it.compact()
    assert len(it.read()) == left + 40


@pytest.mark.parametrize("encrypted", [False, True])
def test_compacted_files_are_sound(encrypted):
    it = CompactedLog(encrypted=encrypted, checks=False)
    it.put((b"rare", b"SECRET 1"), (b"0", b"SECRET 0"))
    fill(it, 40)
    it.compact()
    for segment in it.log.segments[:-1]:
        handle = it.files.open(segment.path)
        stop = segment.read_index(it.files).stop
        found = survey(it.files, handle, segment.base, stop, segment.size, gapless=True)
        it.files.close(handle)
        assert not found.damaged
        assert all(entry.damage == "" for entry in dump_segment(it.files, segment.path))
    assert it.read()[0] == b"SECRET 1"
    is_clear = any(b"SECRET" in content for content in logs_of(it).values())
    assert is_clear != encrypted
    it.close()


def test_damage_in_a_compacted_segment_costs_what_it_hits(it):
    for number in range(10):
        it.put((b"rare %d" % number, b"%d" % number + VALUE), (b"often", VALUE))
    it.roll()
    it.compact()
    it.put((b"often", VALUE))
    segment = it.log.segments[0]
    sound = it.read()
    it.files.files[segment.path].cached[segment.size // 2] ^= 1
    hit = {}

    async def set_aside():
        for first, stop in list(it.log.settled.gaps(0, segment.stop)):
            try:
                await it.log.fetch(first, 1)
            except CorruptBatchError:
                hit[first] = stop
        return await it.log.set_aside(min(hit))

    damage = it.loop.run_until_complete(set_aside())
    assert damage.lost.count >= 1
    assert all(offset in sound for first, stop in damage.lost for offset in range(first, stop))
    assert damage.lost.count < len(sound) // 2
    it.log.settle(list(damage.lost))
    it.settle_down()
    assert it.read() == {
        offset: body for offset, body in sound.items() if offset not in damage.lost
    }
    it.die()
    assert it.read() == {
        offset: body for offset, body in sound.items() if offset not in damage.lost
    }


def test_who_did_not_know_of_compaction_learns_of_it(it):
    it.put((b"rare", b"1"))
    fill(it, 40)
    scan = LogScan(it.log, print, print)  # it has seen what is unsettled
    kept = LogScan(it.log, print, print, all_from=0)  # it reads all that there is
    it.compact()

    async def read(scan):
        found = {}
        while batches := await scan.read():
            found |= {record[0]: record[6] for batch in batches for record in batch.records()}
        return found

    for each in (scan, kept, LogScan(it.log, print, print, all_from=0)):
        found = it.loop.run_until_complete(asyncio.wait_for(read(each), LIMIT_SECONDS))
        assert found.items() >= it.read().items()
    assert it.store.losses.unacknowledged == []


def test_a_file_that_was_replaced_and_not_removed_goes_later(it):
    it.put((b"rare", b"1"))
    fill(it, 40)
    it.settle_down()
    it.begin()
    it.worker.drain()
    it.die()  # before any of the old files was removed
    assert len({segment.base for segment in list_segments(it.files, it.log.directory)}) < len(
        list_segments(it.files, it.log.directory)
    )
    assert it.read()[0] == b"1"
    fill(it, 40)
    it.roll()
    it.settle_down()
    it.roll()
    it.settle_down()
    bases = [segment.base for segment in list_segments(it.files, it.log.directory)]
    assert len(bases) == len(set(bases))
    found = recover(it.files, it.log.directory)
    assert found.losses == []
    assert DATA in it.log.directory.parents


def test_a_read_that_is_under_way_ends_well(it):
    it.put((b"rare", b"1"))
    fill(it, 40)
    it.settle_down()
    segment = it.log.segments[0]
    segment.pins += 1  # a thread reads it
    it.begin()
    it.worker.drain()
    it.committer.drain()
    assert it.log.segments[0] is not segment
    assert segment.path in it.files.files
    it.log._segments.unpin(segment)

    async def removed():
        await eventually(lambda: it.committer.drain() or segment.path not in it.files.files)

    it.loop.run_until_complete(removed())


def test_more_keys_than_the_map_has_room_for_take_more_passes():
    it = CompactedLog(compaction_map_bytes_max=0, durability=Durability.OS)
    for _ in range(2):
        for key in range(40):
            it.put((b"%d" % key, VALUE))
    it.roll()
    for _ in range(20):
        it.compact()
    assert it.read().keys() == set(range(40, 80))
    it.close()


def test_the_rate_is_kept():
    throttle = Throttle(1_000_000, threading.Event())
    began = time.monotonic()
    for _ in range(100):
        throttle.passed(2000)
    assert time.monotonic() - began >= 0.15


def test_a_stopping_node_does_not_wait():
    stop = threading.Event()
    throttle = Throttle(1, stop)
    stop.set()
    with pytest.raises(StoppedError):
        throttle.passed(1_000_000)


def test_the_end_of_a_compacted_segment_is_part_of_it_without_its_index(it):
    for number in range(40):  # the last record of a segment stays in one of them
        it.put((b"%d" % number if number % 2 else b"same", VALUE))
    it.settle_down()
    it.compact()
    sizes = {each.path: each.size for each in it.log.segments if each.revision}
    assert sizes
    it.die(without=".index")
    assert sizes.items() <= {each.path: each.size for each in it.log.segments}.items()


def test_index_files_that_compaction_has_written_are_durable(it):
    for number in range(40):
        it.put((b"%d" % number if number % 8 else b"same", VALUE))
    it.settle_down()
    before = {each.index_path: bytes(it.files.files[each.index_path].cached) for each in sealed(it)}
    it.compact()
    files = it.files.lose_machine(keeps_names=True)
    written = [each for each in sealed(it) if each.compacted_stop]
    assert any(each.revision for each in written)
    assert any(each.index_path in before for each in written)
    for segment in written:
        content = bytes(files.files[segment.index_path].cached)
        assert (
            content == it.files.files[segment.index_path].cached != before.get(segment.index_path)
        )


def sealed(it):
    return it.log.segments[:-1]


@pytest.mark.parametrize(
    ("revision", "epoch", "following"),
    [
        (0, 0, 1),
        (7, 0, 8),
        (0, 1, 4096),
        (4096, 1, 4097),
        (8191, 1, None),
        (5, 3, 3 * 4096),
        (2 * 4096 + 7, 3, 3 * 4096),
        (3 * 4096, 2, None),
        (0, 2**20, None),
        (2**32 - 1, 0, None),
    ],
)
def test_leaders_number_the_files_that_they_compact_each_for_itself(revision, epoch, following):
    assert next_revision(revision, epoch) == following
