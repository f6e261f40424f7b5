"""Range reads with filters: rows that match, and everything else as without a filter."""

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.range_reads import range_read
from leveret.features.range_reads.columns import COLUMNS, ColumnPacker
from leveret.features.range_reads.range_read import RangeRead, SliceClock
from leveret.features.range_reads.rules import parse_request
from leveret.ports.contents import encode_properties
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.range_reader import parse_chunk
from tests.features.filters.test_sql import HEADERS, conditions
from tests.features.filters.test_tags import TAGS, expressions
from tests.features.range_reads.test_range_reads import (
    KEEPING,
    KINDS,
    STREAM,
    Reading,
    bodies,
    offsets,
    settle_all,
    transaction,
)

tables = st.tuples(st.none() | st.lists(st.sampled_from(TAGS), max_size=3), HEADERS)


def headers_of(tags, headers):
    carried = {name: value for name, value in headers.items() if not isinstance(value, bytes)}
    return carried if tags is None else {**carried, "x-tags": tags}


def filter_of(is_over=lambda: False, **texts):
    return parse_request({"offset": "0", **texts}, is_over).filter


def batch_of(tables, base=0, body=b""):
    builder = BatchBuilder()
    for table in tables:
        header = encode_properties({"headers": table}, len(body))
        builder.add(RecordFlag.HAS_HEADERS, 1, b"", b"k", header, body)
    return builder.seal(base)


def store(reading, batch):
    """Make a batch the only one of a log."""
    log = reading.log
    log.batches = [batch]
    log.end = log.committed = log.durable = batch.stop_offset


def looked_at(packer, batch, rows_max=1000, bytes_max=1 << 20):
    """Where each call has come to, up to the end of the batch."""
    places, offset = [], batch.base_offset
    while offset < batch.stop_offset:
        offset = packer.add(batch, offset, batch.stop_offset, rows_max, bytes_max)
        places.append(offset)
    return places


def packed_offsets(packer):
    told = {"offset": 0, "next_offset": 0, "first": 0, "end": 0, "missing": 0}
    chunk = parse_chunk(b"".join(packer.finish(**told, log=0, partition=0, flags=0)))
    return offsets(chunk)


@pytest.fixture(params=KINDS)
def reading(request):
    reading = Reading(KINDS[request.param])
    yield reading
    assert reading.stage.reported == []


def publish(reading, count, *, batches=1):
    """Publish numbers, tagged `even` or `odd`, and `three` if that divides them."""
    for number in range(count):
        tags = ["odd" if number % 2 else "even"] + ["three"] * (number % 3 == 0)
        reading.client.publish("q", b"%d" % number, headers={"n": number, "x-tags": tags})
        if number % batches == 0:
            reading.stage.run()
    reading.stage.run()


def read(reading, offset=0, **options):
    texts = {name: options.pop(name) for name in ("tags", "filter") if name in options}
    found = filter_of(reading.reads.clock.is_over, **texts)
    return reading.read(offset, filter=found, **options)


# -- what is packed


@given(
    st.lists(st.lists(tables, min_size=1, max_size=6), min_size=1, max_size=4),
    st.none() | expressions(),
    st.none() | conditions(),
    st.integers(1, 5),
    st.sampled_from([1, 100, 1 << 20]),
)
def test_packed_is_what_both_conditions_hold_for(drawn, tags, sql, rows_max, bytes_max):
    texts = {"tags": tags, "filter": sql}
    wanted = filter_of(**{name: made[0] for name, made in texts.items() if made is not None})
    packer, base, expected = ColumnPacker([0], wanted), 3, []
    for part in drawn:
        batch = batch_of([headers_of(*each) for each in part], base)
        looked_at(packer, batch, rows_max, bytes_max)
        expected += [
            base + at
            for at, (carried, headers) in enumerate(part)
            if (tags is None or tags[1](set(carried or ())))
            and (sql is None or sql[1](headers_of(carried, headers)) is True)
        ]
        base = batch.stop_offset
    assert packer.rows == len(expected)
    assert packed_offsets(packer) == expected


def test_the_limit_of_rows_is_of_those_that_match():
    batch = batch_of([{"x-tags": ["a" if number % 4 == 3 else "b"]} for number in range(20)])
    packer = ColumnPacker([0], filter_of(tags="a"))
    assert looked_at(packer, batch, rows_max=2) == [8, 16, 20]
    assert packed_offsets(packer) == [3, 7, 11, 15, 19]


def test_a_batch_without_a_match_is_passed_over_as_a_whole():
    packer = ColumnPacker([0], filter_of(tags="a"))
    assert looked_at(packer, batch_of([{"x-tags": ["b"]}] * 5000)) == [5000]


def test_what_is_looked_at_in_one_call_is_bounded():
    headers = {"x-tags": ["b"], "n": "x" * 1000}
    batch = batch_of([*[headers] * 200, {"x-tags": ["a"]}])
    packer = ColumnPacker([0], filter_of(tags="a"))
    places = looked_at(packer, batch)
    assert len(places) == 4
    assert all(stop - start <= 64 for start, stop in pairwise(places))
    assert packed_offsets(packer) == [200]


def test_a_condition_that_needs_python_ends_with_its_time():
    batch = batch_of([{"n": number} for number in range(10)])
    packer = ColumnPacker([0], filter_of(lambda: True, filter="n >= 8"))
    assert looked_at(packer, batch) == list(range(1, 11))
    assert packed_offsets(packer) == [8, 9]


def test_tags_end_with_their_time_too():
    batch = batch_of([{"x-tags": ["a"]}] * 100)
    packer = ColumnPacker([0], filter_of(lambda: True, tags="a && !b"))
    assert looked_at(packer, batch) == [32, 64, 96, 100]
    assert packer.rows == 100


def test_an_offset_outside_of_the_batch_is_refused_whatever_the_filter():
    batch = batch_of([{"x-tags": ["b"]}] * 3, base=10)
    packer = ColumnPacker([0], filter_of(tags="a"))
    for first, stop in ((9, 11), (13, 14), (11, 14)):
        with pytest.raises(IndexError):
            packer.add(batch, first, stop, 10, 10)


# -- what a reader sees


def test_by_tags_and_by_sql(reading):
    publish(reading, 12)
    chunk = read(reading, tags="even && !three")
    assert offsets(chunk) == [2, 4, 8, 10]
    assert bodies(chunk) == [b"2", b"4", b"8", b"10"]
    assert (chunk.next_offset, chunk.missing, chunk.has_more) == (12, 0, False)
    assert offsets(read(reading, filter="n BETWEEN 3 AND 5")) == [3, 4, 5]
    assert offsets(read(reading, tags="three", filter="n > 5")) == [6, 9]
    assert offsets(read(reading, 7, tags="odd", rows_max=2)) == [7, 9]


def test_what_is_excluded_is_passed_over_and_not_missing(reading):
    publish(reading, 10)
    chunk = read(reading, tags="other")
    assert (chunk.rows, chunk.next_offset, chunk.missing, chunk.has_more) == (0, 10, 0, False)
    assert set(chunk.columns) == set(COLUMNS)


def test_what_was_acknowledged_is_read(reading):
    publish(reading, 6)
    settle_all(reading)
    assert offsets(read(reading, tags="odd")) == [1, 3, 5]


def test_only_what_was_removed_is_missing():
    reading = Reading(KEEPING)
    publish(reading, 12)
    settle_all(reading)
    reading.log.remove(2, 5)
    for texts in ({"tags": "three"}, {"tags": "odd"}, {"filter": "n < 0"}, {"tags": "none"}):
        assert read(reading, **texts).missing == 3
    assert read(reading, 5, tags="none").missing == 0


def test_rolled_back_transactions_are_not_missing(reading):
    transaction(reading, b"0", commit=True)
    transaction(reading, b"1", commit=True)
    transaction(reading, b"2", commit=True)
    reading.log.undone.add(1, 2)  # another queue's part of the transaction could not be stored
    reading.log.settle([(1, 2)])
    chunk = read(reading, tags="none")
    assert (chunk.rows, chunk.next_offset, chunk.missing) == (0, 3, 0)
    assert bodies(read(reading, tags="!none")) == [b"0", b"2"]
    reading.log.damaged.add(2)
    assert read(reading, tags="none").missing == 1
    reading.stage.reported.clear()


def test_damage_is_missing(reading):
    publish(reading, 6)
    reading.log.damaged.add(2)
    chunk = read(reading, tags="even")
    assert (offsets(chunk), chunk.missing) == ([0, 4], 1)
    assert read(reading, tags="odd").missing == 1
    reading.stage.reported.clear()


def test_a_device_is_waited_for(reading):
    publish(reading, 6)
    reading.log.at_hand = False
    assert offsets(read(reading, tags="odd")) == [1, 3, 5]


def test_rows_that_match_are_counted(reading):
    publish(reading, 10)
    read(reading, tags="three")
    assert reading.queue.counters.counted()["get_no_ack"] == 4
    assert reading.queue.total_usage().messages_out == 4
    read(reading, tags="none")
    assert reading.queue.counters.counted()["get_no_ack"] == 4


def test_one_answer_reads_so_much_and_no_more(monkeypatch):
    reading = Reading(STREAM)
    publish(reading, 400)
    monkeypatch.setattr(range_read, "READ_BYTES_MAX", 4000)
    monkeypatch.setattr(range_read, "READ_BYTES_TOTAL_MAX", 10_000)
    chunk = read(reading, tags="none")
    assert (chunk.rows, chunk.missing, chunk.has_more) == (0, 0, True)
    assert 50 < chunk.next_offset < 200
    assert chunk.next_offset == read(reading).next_offset  # and it is as much as without a filter


# -- how long others wait


class Sliced:
    """A read of a partition, and how much each slice has looked at."""

    def __init__(self, reading, request, clock):
        self.read = RangeRead(reading.queue, request, reading.reads, clock)
        self.looks = []
        self.chunk = reading.result(self.read.run(self))

    async def __aenter__(self):
        self.looks.append(-self.read._looks)

    async def __aexit__(self, *_):
        self.looks[-1] += self.read._looks


@pytest.mark.parametrize("tags", ["even", "none", "!none", "once"])
def test_a_slice_looks_at_so_many_rows(tags):
    reading = Reading(STREAM)
    tables = [{"x-tags": ["even"]}, {"x-tags": ["odd"]}] * 10_000
    store(reading, batch_of([*tables, {"x-tags": ["once"]}]))
    request = parse_request({"offset": "0", "rows": "1000000", "tags": tags})
    sliced = Sliced(reading, request, SliceClock(lambda: 0))
    assert sum(sliced.looks) == sliced.chunk.next_offset == 20_001
    assert max(sliced.looks) == range_read.SLICE_ROWS


def test_a_slice_looks_at_so_many_bytes():
    reading = Reading(STREAM)
    tables = [{"x-tags": ["odd"], "n": "x" * 1000}] * 1000
    store(reading, batch_of([*tables, {"x-tags": ["once"]}]))
    request = parse_request({"offset": "0", "tags": "once"})
    sliced = Sliced(reading, request, SliceClock(lambda: 0))
    assert (sliced.chunk.rows, sum(sliced.looks)) == (1, 1001)
    assert max(sliced.looks) < 70


@pytest.mark.parametrize("batches", [1, 50])
def test_a_slice_of_slow_conditions_is_short(batches):
    reading = Reading(STREAM)
    publish(reading, 60, batches=batches)
    now = random.Random(1)
    place = SimpleNamespace(ns=0)

    def later():
        place.ns += now.randrange(range_read.SLICE_NS_MAX // 4, range_read.SLICE_NS_MAX)
        return place.ns

    clock = SliceClock(later)
    request = parse_request({"offset": "0", "filter": "n % 7 = 3"}, clock.is_over)
    sliced = Sliced(reading, request, clock)
    assert sliced.chunk.rows == 9
    assert sum(sliced.looks) == sliced.chunk.next_offset == 60
    assert max(sliced.looks) <= 4
    assert len(sliced.looks) >= 15


def test_a_chunk_with_a_filter_ends_in_time_but_comes_further():
    reading = Reading(STREAM)
    publish(reading, 10)
    place = SimpleNamespace(ns=0)

    def later():
        place.ns += range_read.FILTERED_NS_MAX
        return place.ns

    reading.reads.clock = SliceClock(later)
    reading.log.at_hand = False
    assert read(reading).rows == 10  # without a filter
    offset, found, count = 0, [], 0
    while offset < 10:
        chunk = read(reading, offset, filter="n % 3 = 0")
        assert chunk.next_offset > offset
        found += offsets(chunk)
        offset, count = chunk.next_offset, count + 1
    assert found == [0, 3, 6, 9]
    assert count == 10


# -- all of it at random


@given(
    st.lists(tables, min_size=1, max_size=25),
    st.none() | expressions(),
    st.none() | conditions(),
    st.randoms(use_true_random=False),
)
def test_a_filtered_read_is_an_unfiltered_one_of_which_some_is_left_out(drawn, tags, sql, rng):
    reading = Reading(rng.choice(list(KINDS.values())))
    for at, each in enumerate(drawn):
        reading.client.publish("q", b"%d" % at, headers=headers_of(*each))
        if rng.random() < 0.5:
            reading.stage.run()
    reading.stage.run()
    hide(reading, rng)
    model = {
        at
        for at, (carried, headers) in enumerate(drawn)
        if (tags is None or tags[1](set(carried or ())))
        and (sql is None or sql[1](headers_of(carried, headers)) is True)
    }
    texts = {"tags": tags, "filter": sql}
    texts = {name: made[0] for name, made in texts.items() if made is not None}
    everything = read_all(reading, rng, {})
    some = read_all(reading, rng, texts)
    assert some.rows == {at: body for at, body in everything.rows.items() if at in model}
    assert some.missing == everything.missing
    assert reading.stage.reported == []


def hide(reading, rng):
    """Remove some, and make others undone; not at the beginning, which readers may ask for."""
    log = reading.log
    for _ in range(rng.randint(0, 3)):
        first = rng.randint(1, log.end)
        stop = min(first + rng.randint(1, 4), log.end)
        if first < stop:
            (log.erased if rng.random() < 0.5 else log.removed).add(first, stop)
            log.settle([(first, stop)])


def read_all(reading, rng, texts):
    seen = SimpleNamespace(rows={}, missing=0)
    offset = 0
    while offset < reading.log.committed:
        limits = {"rows_max": rng.randint(1, 6), "bytes_max": rng.choice([1, 200, 1 << 20])}
        chunk = read(reading, offset, **limits, **texts)
        assert offset < chunk.next_offset
        assert chunk.rows <= limits["rows_max"]
        assert all(offset <= each < chunk.next_offset for each in offsets(chunk))
        seen.rows |= dict(zip(offsets(chunk), bodies(chunk), strict=True))
        seen.missing += chunk.missing
        offset = chunk.next_offset
    return seen
