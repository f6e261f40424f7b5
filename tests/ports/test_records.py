"""Batches: what goes in comes out, and no bytes whatever do harm."""

import gc
import struct
from functools import reduce
from operator import or_

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.errors import CorruptBatchError
from leveret.ports.records import (
    CHECKSUM_FROM,
    HEADER_BYTES,
    MAGIC,
    Batch,
    BatchAttribute,
    BatchBuilder,
    RecordFlag,
)
from tests.support.examples import examples

NAMES = st.binary(max_size=255)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 63),
        st.integers(0, 2**31),
        NAMES,
        NAMES,
        st.binary(max_size=300),
        st.binary(max_size=2000),
    ),
    min_size=1,
    max_size=20,
)


def seal(records, base_offset=0) -> Batch:
    builder = BatchBuilder()
    for flags, now, exchange, routing_key, header, body in records:
        builder.add(flags, now, exchange, routing_key, header, body)
    batch = builder.seal(base_offset)
    batch.set_checksum()
    return batch


@given(RECORDS, st.integers(0, 2**62))
def test_round_trip(records, base_offset):
    records.sort(key=lambda record: record[1])  # time does not go back within a batch
    sealed = seal(records, base_offset)
    batch = Batch.parse(b"before" + bytes(sealed) + b"behind", 6)
    assert batch.checksum == crc32c(batch.checked)
    assert [record[1:] for record in batch.records()] == records
    assert [record[0] for record in batch.records()] == list(
        range(base_offset, base_offset + len(records))
    )
    assert (batch.count, batch.stop_offset) == (len(records), base_offset + len(records))
    assert (batch.first_time, batch.last_time) == (records[0][1], records[-1][1])
    flags = 0
    for record in records:
        flags |= record[0]
    assert batch.features == flags
    transient = bool(batch.attributes & BatchAttribute.TRANSIENT)
    assert transient is not bool(flags & RecordFlag.PERSISTENT)


@given(RECORDS, st.data())
def test_single_records_in_any_order(records, data):
    records.sort(key=lambda record: record[1])
    batch = seal(records, 10)
    for index in data.draw(st.permutations(range(len(records)))):
        assert batch.record(10 + index) == records[index]
    for outside in (9, 10 + len(records)):
        with pytest.raises(IndexError):
            batch.record(outside)


def walk(raw, position=0) -> None:
    """Everything that reads a batch; only CorruptBatchError may come of it."""
    try:
        batch = Batch.parse(raw, position)
        if batch.count < 1000:
            for _ in batch.records():
                pass
        if batch.count and not batch.is_control:
            batch.record(batch.base_offset)
    except CorruptBatchError:
        pass


@given(st.binary(max_size=300), st.integers(0, 320))
def test_any_bytes_are_a_batch_or_corrupt(raw, position):
    walk(raw, position)


@settings(max_examples=examples(400))
@given(RECORDS, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6))
def test_changed_bytes_are_a_batch_or_corrupt(records, changes):
    raw = bytearray(bytes(seal(records)))
    for position, value in changes:
        raw[position % len(raw)] = value
    walk(raw)


@given(
    st.binary(max_size=200),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-70, 10),
)
def test_a_sound_looking_header_over_any_bytes(content, attributes, count, base_offset, off):
    length = max(0, HEADER_BYTES + len(content) + off)
    header = struct.pack(
        "<IIQIHHIIQQQQ", MAGIC, length, base_offset, 0, attributes, 0, count, 0, 0, 0, 0, 0
    )
    walk(header + content)


@given(RECORDS, st.data())
def test_every_cut_is_corrupt(records, data):
    raw = bytes(seal(records))
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CorruptBatchError):
        Batch.parse(raw[:cut])


def test_the_checksum_covers_all_but_the_place_in_the_log():
    raw = bytearray(bytes(seal([(1, 5, b"x", b"k", b"h", b"body")])))
    for position in range(CHECKSUM_FROM, len(raw)):
        raw[position] ^= 1
        try:
            batch = Batch.parse(raw)
            assert crc32c(batch.checked) != batch.checksum
        except CorruptBatchError:
            pass
        raw[position] ^= 1


def test_a_control_batch_uses_up_no_offset():
    batch = Batch.control(7, b"settled", 99)
    assert (batch.is_control, batch.base_offset, batch.count, batch.stop_offset) == (True, 7, 0, 7)
    assert bytes(batch.payload) == b"settled"
    assert list(Batch.parse(bytes(batch)).records()) == []


@given(RECORDS, st.integers(0, 4000))
def test_a_builder_is_split_into_batches_of_some_size(records, bytes_max):
    records.sort(key=lambda record: record[1])
    builder = BatchBuilder()
    for record in records:
        builder.add(*record)
    portions = builder.split(bytes_max)
    assert (builder.count, builder.was_sealed) == (0, True)
    assert all(each.size <= bytes_max or each.count == 1 for each in portions)
    batches = [each.seal(0) for each in portions]
    assert [record[1:] for batch in batches for record in batch.records()] == records
    for batch in batches:
        flags, times, *_ = zip(*(record[1:] for record in batch.records()), strict=True)
        assert (batch.first_time, batch.last_time) == (times[0], times[-1])
        assert batch.features == reduce(or_, flags)


def test_an_empty_builder_makes_no_batch():
    builder = BatchBuilder()
    with pytest.raises(ValueError, match="empty"):
        builder.seal(0)
    builder.add(0, 1, b"", b"", b"", b"")
    builder.clear()
    assert len(builder) == 0


def test_a_window_in_a_reference_cycle_is_given_back_once():
    # The collector clears a cycle's references before its objects go: a batch that told by them
    # whether its memory is its own would free the window's.
    window = bytearray(bytes(Batch.control(7, b"settled", 99)))
    cycle = [Batch.parse(window)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert Batch.parse(window).base_offset == 7
