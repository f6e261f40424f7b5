"""Records packed as columns: parsed back they are what a decoder of single records sees."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.errors import CorruptBatchError
from leveret.features.range_reads.columns import COLUMNS, ColumnPacker
from leveret.ports.contents import decode_properties, encode_properties, open_header
from leveret.ports.records import Batch, BatchBuilder, RecordFlag
from leveret.range_reader import chunk as reader
from leveret.range_reader import parse_chunk

KEY = "x-partition-key"
HUGE = 100_000  # from 32 KB on, values are not copied

values = st.one_of(
    st.text(max_size=10),
    st.binary(max_size=10).map(bytearray),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.lists(st.integers(0, 9), max_size=2),
)
headers = st.none() | st.dictionaries(
    st.sampled_from([KEY, "BCC", "CC", "x-tags", "other", "x-partition-keys", ""]),
    values,
    max_size=4,
)
bodies = st.one_of(
    st.binary(max_size=40),
    st.just(b""),
    st.integers(32_760, HUGE).map(lambda size: b"%d" % size + bytes(size)),
)
records = st.tuples(
    st.integers(0, 65535),  # flags; headers and BCC are set as the broker would
    st.integers(0, 1000),  # ms since the record before
    st.binary(max_size=20),
    st.binary(max_size=255),
    headers,
    bodies,
)


def batch_of(rows, base=0, time_ms=1_700_000_000_000):
    """A batch of records drawn by the strategy above."""
    builder = BatchBuilder()
    for drawn, later_ms, exchange, key, table, body in rows:
        time_ms += later_ms
        flags = drawn & ~(RecordFlag.HAS_HEADERS | RecordFlag.BLIND_COPIED)
        if table is not None:
            flags |= RecordFlag.HAS_HEADERS
            if "BCC" in table:
                flags |= RecordFlag.BLIND_COPIED
        header = encode_properties({"headers": table, "priority": 3}, len(body))
        builder.add(flags, time_ms, exchange, key, header, body)
    return builder.seal(base)


def packed(batches, columns=COLUMNS, rows_max=1 << 20, bytes_max=1 << 30):
    packer = ColumnPacker(sorted(COLUMNS.index(name) for name in columns))
    for batch in batches:
        offset = batch.base_offset
        while offset < batch.stop_offset:
            reached = packer.add(batch, offset, batch.stop_offset, rows_max, bytes_max)
            assert reached > offset
            offset = reached
    return finished(packer)


def finished(packer, **told):
    values = {"offset": 0, "next_offset": 0, "first": 0, "end": 0, "missing": 0}
    values |= {"log": 0, "partition": 0, "flags": 0}
    parts = packer.finish(**{**values, **told})
    return b"".join(parts)


def expected(batches):
    """Return values by column, as a decoder of single records sees them."""
    seen = {name: [] for name in COLUMNS}
    for batch in batches:
        for offset, flags, ms, exchange, routing_key, header, body in batch.records():
            row = {"offset": offset, "timestamp": ms, "flags": flags, "exchange": exchange}
            row |= {"routing_key": routing_key, "value": body}
            row["header"] = open_header(header) if flags & RecordFlag.BLIND_COPIED else header
            row["key"] = key_of(header, routing_key)
            for name, value in row.items():
                seen[name].append(value)
    return seen


def key_of(header, routing_key):
    key = (decode_properties(header).get("headers") or {}).get(KEY)
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    return routing_key


@given(
    st.lists(st.lists(records, min_size=1, max_size=6), min_size=1, max_size=4),
    st.sets(st.sampled_from(COLUMNS), min_size=1),
    st.integers(1, 5),
    st.sampled_from([1, 50, 1 << 30]),
)
def test_columns_are_what_single_records_are(drawn, columns, rows_max, bytes_max):
    batches, base = [], 7
    for rows in drawn:
        batches.append(batch_of(rows, base))
        base = batches[-1].stop_offset
    chunk = parse_chunk(packed(batches, columns, rows_max, bytes_max))
    wanted = expected(batches)
    assert set(chunk.columns) == columns
    for name in columns:
        column = chunk.columns[name]
        assert [column[row] for row in range(len(column))] == wanted[name]
    assert chunk.rows == len(wanted["offset"])


def test_bcc_is_not_shown():
    batch = batch_of([(0, 0, b"", b"k", {"BCC": "hidden", "CC": "seen"}, b"body")])
    data = packed([batch])
    assert b"hidden" not in data
    assert b"seen" in data


def test_limits_let_one_record_pass():
    batch = batch_of([(0, 0, b"", b"k", None, b"x" * 1000)] * 5)
    packer = ColumnPacker([COLUMNS.index("value")])
    assert packer.add(batch, 1, 5, 1, 1 << 20) == 2
    assert packer.add(batch, 2, 5, 10, 1) == 3
    assert packer.add(batch, 3, 5, 10, 1 << 20) == 5
    assert packer.add(batch, 5, 5, 10, 1 << 20) == 5
    assert packer.rows == 4
    assert packer.stored_bytes > 4000


def test_what_is_not_in_the_batch_is_refused():
    batch = batch_of([(0, 0, b"", b"k", None, b"")] * 3, base=10)
    packer = ColumnPacker([0])
    for first, stop in ((9, 11), (13, 14), (11, 14)):
        with pytest.raises(IndexError):
            packer.add(batch, first, stop, 10, 10)


def test_a_record_of_impossible_size_is_found():
    batch = batch_of([(0, 0, b"", b"k", None, b"body")])
    broken = bytearray(batch)
    struct.pack_into("<I", broken, 64, 19)
    with pytest.raises(CorruptBatchError):
        ColumnPacker([7]).add(Batch.parse(bytes(broken)), 0, 1, 1, 1)


def test_an_empty_chunk():
    for columns in (range(8), [0], [7]):
        chunk = parse_chunk(finished(ColumnPacker(columns), offset=5, next_offset=9, end=9))
        assert (chunk.rows, chunk.offset, chunk.next_offset, chunk.end) == (0, 5, 9, 9)
        assert all(len(column) == 0 for column in chunk.columns.values())


@given(st.lists(records, min_size=1, max_size=5))
def test_buffers_are_aligned_and_add_up(drawn):
    data = packed([batch_of(drawn)])
    chunk = parse_chunk(data)
    head = reader.HEAD.unpack_from(data)
    assert head[5] == len(data)
    assert len(data) % 8 == 0
    for number in range(head[-1]):
        place = reader.ColumnPlace(*reader.PLACE.unpack_from(data, reader.HEAD.size + number * 32))
        assert place.at % 8 == place.blob_at % 8 == 0
    for column in chunk.columns.values():
        if column.table is not None:
            assert list(column.table) == sorted(column.table)
            assert column.table[chunk.rows] == len(column.values)


def test_large_values_are_not_copied():
    batch = batch_of([(0, 0, b"", b"k", None, b"a"), (0, 0, b"", b"k", None, bytes(HUGE))])
    packer = ColumnPacker([7])
    packer.add(batch, 0, 2, 10, 1 << 20)
    parts = packer.finish(
        offset=0, next_offset=2, first=0, end=2, missing=0, log=0, partition=0, flags=0
    )
    assert any(part.obj is batch for part in parts)
    del batch
    assert parse_chunk(b"".join(parts)).columns["value"][1] == bytes(HUGE)
