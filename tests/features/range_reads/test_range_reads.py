"""Reading partitions by offset: what is seen, what is passed over, and who waits."""

import random

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.features.range_reads import range_read, range_reads
from leveret.features.range_reads.columns import COLUMNS
from leveret.features.range_reads.range_reads import BusyError, OffsetRangeError
from leveret.features.range_reads.rules import BYTES_MAX, RangeRequest
from leveret.features.range_reads.waiting import GATHER_MS
from leveret.ports import Durability
from leveret.range_reader import parse_chunk
from tests.support.client import Client
from tests.support.stage import Stage

STREAM = {"x-queue-type": "stream"}
KEEPING = {"x-retention": "1d"}
KINDS = {"stream": STREAM, "classic": KEEPING, "quorum": {"x-queue-type": "quorum"} | KEEPING}


class Reading:
    """A stage with a queue that is read by ranges."""

    def __init__(self, arguments, **options):
        self.stage = Stage(**options)
        self.client = Client(self.stage).open()
        self.client.declare("q", durable=True, arguments=arguments)
        self.queue.open()
        self.reads = self.stage.broker.range_reads

    @property
    def queue(self):
        return self.stage.queue("q")

    @property
    def log(self):
        return self.queue.log

    def publish(self, *bodies):
        self.client.publish("q", *bodies)

    def result(self, work):
        """Run a coroutine of the broker's to its end."""
        found = []

        async def run():
            try:
                found.append(await work)
            except Exception as error:  # noqa: BLE001
                found.append(error)

        self.stage.spawn(run())
        for _ in range(10_000):  # it lets others run in between
            if not found:
                self.stage.run()
        (answer,) = found
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read(self, offset=0, **options):
        request = RangeRequest(offset, **options)
        chunk = self.result(self.reads.read(self.queue, request))
        parsed = parse_chunk(b"".join(chunk.parts))
        assert (parsed.rows, parsed.next_offset) == (chunk.rows, chunk.next_offset)
        assert parsed.has_more == chunk.has_more
        return parsed

    def wait(self, offset=0, wait_ms=1000):
        woken = []
        request = RangeRequest(offset, wait_ms=wait_ms)
        reader = self.reads.wait(self.queue, request, lambda: woken.append(self.stage.now))
        return reader, woken


@pytest.fixture(params=KINDS)
def reading(request):
    reading = Reading(KINDS[request.param])
    yield reading
    assert reading.stage.reported == []


def bodies(chunk):
    return [chunk.columns["value"][row] for row in range(chunk.rows)]


def offsets(chunk):
    return list(chunk.columns["offset"].values)


def numbered(first, stop):
    return [b"%d" % number for number in range(first, stop)]


def settle_all(reading):
    """Consume and acknowledge everything, if the queue is of a kind that forgets it then."""
    if not reading.queue.settings.is_stream:
        reading.client.consume("q", "c")
        reading.client.deliveries()
        reading.client.send(commands.Basic.Ack(0, multiple=True))
        reading.stage.run()
        assert reading.queue.message_count == reading.queue.leased_count == 0


def test_all_is_read_whatever_was_acknowledged(reading):
    reading.publish(*numbered(0, 5))
    reading.publish(*numbered(5, 8))
    settle_all(reading)
    chunk = reading.read()
    assert bodies(chunk) == numbered(0, 8)
    assert offsets(chunk) == list(range(8))
    assert (chunk.first, chunk.end, chunk.next_offset, chunk.missing) == (0, 8, 8, 0)
    assert not chunk.has_more


def test_limits_of_rows_and_bytes(reading):
    reading.publish(*numbered(0, 10))
    chunk = reading.read(2, rows_max=3)
    assert (bodies(chunk), chunk.next_offset, chunk.has_more) == (numbered(2, 5), 5, True)
    chunk = reading.read(5, bytes_max=1)
    assert (bodies(chunk), chunk.next_offset) == (numbered(5, 6), 6)
    chunk = reading.read(10)
    assert (chunk.rows, chunk.next_offset, chunk.has_more) == (0, 10, False)


def test_nothing_is_read_that_is_not_committed():
    reading = Reading(STREAM, durability=Durability.FSYNC)
    reading.publish(b"0")
    assert reading.read().rows == 0
    reading.log.commit()
    reading.stage.run()
    assert bodies(reading.read()) == [b"0"]


def test_outside_of_the_log(reading):
    reading.publish(*numbered(0, 4))
    with pytest.raises(OffsetRangeError) as caught:
        reading.read(5)
    assert caught.value.bounds == (0, 4)
    assert "behind the end" in str(caught.value)


def test_what_retention_has_removed_is_out_of_range():
    reading = Reading(STREAM)
    for number in range(4):
        reading.publish(b"%d" % number)
    reading.log.settle([(0, 2)])
    with pytest.raises(OffsetRangeError) as caught:
        reading.read(1)
    assert caught.value.bounds == (2, 4)
    assert bodies(reading.read(2)) == [b"2", b"3"]


def test_what_was_removed_in_the_middle_is_missing():
    reading = Reading(KEEPING)
    for number in range(6):
        reading.publish(b"%d" % number)
    settle_all(reading)
    reading.log.remove(2, 4)
    chunk = reading.read(0)
    assert (bodies(chunk), chunk.missing) == ([b"0", b"1", b"4", b"5"], 2)
    assert reading.read(2).missing == 2


def transaction(reading, body, *, commit):
    reading.client.call(commands.Tx.Select())
    reading.publish(body)
    reading.client.call(commands.Tx.Commit() if commit else commands.Tx.Rollback())
    reading.stage.run()


def test_transactions_that_commit(reading):
    transaction(reading, b"0", commit=True)
    transaction(reading, b"1", commit=False)
    transaction(reading, b"2", commit=True)
    assert bodies(reading.read()) == [b"0", b"2"]


def test_undone_records_are_passed_over_and_not_missing(reading):
    reading.publish(*numbered(0, 3))
    reading.publish(*numbered(3, 6))
    reading.publish(b"6")
    for first, stop in ((0, 1), (2, 4)):
        reading.log.undone.add(first, stop)
        reading.log.settle([(first, stop)])
    chunk = reading.read()
    assert (offsets(chunk), chunk.missing, chunk.first) == ([1, 4, 5, 6], 0, 0)
    chunk = reading.read(2, rows_max=1)
    assert (offsets(chunk), chunk.next_offset) == ([4], 5)


def test_nothing_but_undone_records(reading):
    reading.publish(*numbered(0, 3))
    reading.log.undone.add(0, 3)
    reading.log.settle([(0, 3)])
    chunk = reading.read()
    assert (chunk.rows, chunk.next_offset, chunk.missing) == (0, 3, 0)


def test_holes_of_many_offsets_are_passed_over_quickly():
    reading = Reading(STREAM)
    reading.publish(b"0")
    reading.log.settle([(1, 1 << 24)])
    reading.log.end = reading.log.committed = reading.log.durable = 1 << 24
    reading.publish(b"1")
    chunk = reading.read()
    assert (offsets(chunk), chunk.missing) == ([0, 1 << 24], (1 << 24) - 1)


def test_a_device_is_waited_for(reading):
    reading.publish(*numbered(0, 5))
    reading.log.at_hand = False
    assert bodies(reading.read(1)) == numbered(1, 5)


def test_damage_is_set_aside_and_missing(reading):
    for number in range(5):
        reading.publish(b"%d" % number)
    reading.log.damaged.add(2)
    chunk = reading.read()
    assert (bodies(chunk), chunk.missing) == ([b"0", b"1", b"3", b"4"], 1)
    reading.log.aside = None  # it is known now, and not surveyed again
    assert reading.read(2).missing == 1
    reading.stage.reported.clear()


def test_a_device_that_refuses(reading):
    reading.publish(b"0")
    reading.log.at_hand = False
    reading.log.fetch_error = StorageError("no device")
    with pytest.raises(StorageError):
        reading.read()


def test_large_messages_come_one_by_one(reading):
    large = [bytes([number]) * 200_000 for number in range(3)]
    reading.publish(*large)
    chunk = reading.read(bytes_max=1000)
    assert bodies(chunk) == large[:1]
    assert bodies(reading.read(chunk.next_offset)) == large[1:]


def test_reading_is_counted(reading):
    reading.publish(*numbered(0, 5))
    reading.read(columns=(0,))
    counted = reading.queue.counters.counted()
    assert counted["get_no_ack"] == 5
    assert reading.queue.total_usage().messages_out == 5
    assert reading.queue.total_usage().bytes_out > 5


def test_small_batches_are_read_in_small_portions():
    reading = Reading(STREAM)
    for number in range(200):
        reading.publish(b"%d" % number)
    portions = []
    read = reading.log.read
    reading.log.read = lambda offset, size: portions.append(size) or read(offset, size)
    assert bodies(reading.read()) == numbered(0, 200)
    assert portions[0] == range_read.READ_BYTES_MAX
    assert set(portions[1:]) <= {range_read.READ_BYTES_MIN}


# -- waiting


def test_a_waiting_reader_is_woken_by_a_commit(reading):
    reader, woken = reading.wait()
    assert reader is not None
    reading.stage.run()
    assert woken == []
    began = reading.stage.now
    reading.publish(b"0")
    assert woken == []  # more may come in this moment
    reading.stage.advance(GATHER_MS / 1000)
    assert woken == [began + GATHER_MS]
    reading.stage.advance(10)
    assert len(woken) == 1


def test_a_reader_that_has_read_it_is_not_woken_by_it(reading):
    _, first = reading.wait()
    reading.publish(b"0")
    reader, second = reading.wait(1)
    reading.stage.advance(0.1)
    assert (len(first), second) == (1, [])
    reading.publish(b"1")
    reading.stage.advance(0.1)
    assert len(second) == 1
    reader.wake()
    assert len(second) == 1


def test_waiting_ends(reading):
    _, woken = reading.wait(wait_ms=500)
    reading.stage.advance(0.499)
    assert woken == []
    reading.stage.advance(0.001)
    assert len(woken) == 1
    reading.publish(b"0")
    reading.stage.advance(1)
    assert len(woken) == 1


def test_nobody_waits_for_what_is_there(reading):
    reading.publish(b"0")
    assert reading.wait(0)[0] is None
    assert reading.wait(1)[0] is not None
    assert reading.wait(1, wait_ms=0)[0] is None
    with pytest.raises(OffsetRangeError):
        reading.wait(2)


def test_a_reader_that_is_gone_is_forgotten(reading):
    reader, woken = reading.wait()
    reading.reads.cancel(reader)
    reading.publish(b"0")
    reading.stage.advance(5)
    assert woken == []
    assert reading.reads._waiting == set()


def test_a_deleted_queue_wakes_its_readers(reading):
    _, woken = reading.wait()
    queue = reading.queue
    reading.client.call(commands.Queue.Delete(queue="q"))
    assert len(woken) == 1
    assert queue.deleted


def test_a_node_that_stops_wakes_all(reading):
    _, woken = reading.wait()
    reading.reads.close()
    assert len(woken) == 1
    assert reading.wait()[0] is None


def test_so_many_wait_and_no_more(reading, monkeypatch):
    monkeypatch.setattr(range_reads, "WAITING_MAX", 2)
    readers = [reading.wait()[0] for _ in range(2)]
    with pytest.raises(BusyError):
        reading.wait()
    reading.reads.cancel(readers[0])
    assert reading.wait()[0] is not None


def test_so_much_memory_and_no_more(reading):
    large = RangeRequest(0, bytes_max=BYTES_MAX)
    count = range_reads.CHUNKS_BYTES_MAX // BYTES_MAX
    for _ in range(count):
        reading.reads.reserve(large)
    with pytest.raises(BusyError):
        reading.reads.reserve(RangeRequest(0))
    reading.reads.release(large)
    reading.reads.reserve(RangeRequest(0))


# -- all of it at random


@pytest.mark.parametrize("seed", range(20))
def test_readers_see_what_a_scan_of_the_log_sees(seed):
    rng = random.Random(seed)
    arguments = rng.choice(list(KINDS.values()))
    reading = Reading(arguments)
    for _ in range(rng.randint(1, 12)):
        texts = [rng.randbytes(rng.choice([0, 3, 50, 40_000])) for _ in range(rng.randint(1, 9))]
        reading.publish(*texts)
        if rng.random() < 0.3:
            transaction(reading, b"tx", commit=rng.random() < 0.7)
            reading.client = Client(reading.stage).open()
    log, hidden = reading.log, set()
    for _ in range(rng.randint(0, 4)):
        first = rng.randrange(log.end)
        stop = min(first + rng.randint(1, 5), log.end)
        (log.erased if rng.random() < 0.5 else log.removed).add(first, stop)
        log.settle([(first, stop)])
        hidden |= set(range(first, stop))
    wanted = {
        offset: body
        for batch in log.batches
        for offset, *_, body in batch.records()
        if offset not in hidden and offset not in log.erased
    }
    log.at_hand = rng.random() < 0.7
    seen, missing = {}, 0
    offset = reading.result(_first(reading))
    while offset < log.committed:
        chunk = reading.read(
            offset, rows_max=rng.randint(1, 20), bytes_max=rng.choice([1, 500, 1 << 20])
        )
        assert offset < chunk.next_offset
        assert all(offset <= each < chunk.next_offset for each in offsets(chunk))
        seen |= dict(zip(offsets(chunk), bodies(chunk), strict=True))
        missing += chunk.missing
        offset = chunk.next_offset
    first = reading.result(_first(reading))
    assert seen == {place: body for place, body in wanted.items() if place >= first}
    lost = {place for place in hidden if place >= first and place not in log.erased}
    assert missing == len(lost)
    assert set(COLUMNS) == set(reading.read(log.committed).columns)


async def _first(reading):
    from leveret.features.range_reads.bounds import offset_rows  # noqa: PLC0415

    (row,) = await offset_rows(reading.queue, 0)
    assert row["first"] <= row["offset"] <= row["end"]
    return row["first"]
