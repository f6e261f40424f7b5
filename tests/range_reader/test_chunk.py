"""Chunks as their reader sees them, and what is none."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.range_reads import columns as packing
from leveret.features.range_reads.columns import ColumnPacker
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.range_reader import MalformedChunkError, parse_chunk
from leveret.range_reader import chunk as reading
from leveret.range_reader.chunk import FRONT_BYTES, chunk_bytes

DOCUMENT = Path(__file__).parents[2] / "docs" / "range-reads.md"


def vector():
    """The chunk of the test vector: two records, three columns."""
    builder = BatchBuilder()
    head = b"\0\x3c" + bytes(10) + b"\x10\0\x02"
    builder.add(RecordFlag.PERSISTENT, 1_700_000_000_000, b"", b"k1", head, b"one")
    builder.add(RecordFlag.PERSISTENT, 1_700_000_000_250, b"x", b"k2", head, b"")
    packer = ColumnPacker([0, 5, 7])
    packer.add(builder.seal(41), 41, 43, 10, 1000)
    parts = packer.finish(
        offset=40, next_offset=43, first=40, end=50, missing=1, log=0x0123456789ABCDEF,
        partition=2, flags=1,
    )  # fmt: skip
    return b"".join(parts)


def test_the_document_has_the_vector():
    (block,) = re.findall(r"```hex\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    told = "".join(line.partition("#")[0] for line in block.splitlines())
    assert bytes.fromhex("".join(told.split())) == vector()


def test_the_vector_is_understood():
    chunk = parse_chunk(vector())
    assert (chunk.rows, chunk.offset, chunk.next_offset) == (2, 40, 43)
    assert (chunk.first, chunk.end, chunk.missing, chunk.partition) == (40, 50, 1, 2)
    assert (chunk.log, chunk.has_more) == (0x0123456789ABCDEF, True)
    assert {name: [column[0], column[1]] for name, column in chunk.columns.items()} == {
        "offset": [41, 42],
        "key": [b"k1", b"k2"],
        "value": [b"one", b""],
    }


def test_both_sides_have_the_same_constants():
    assert packing.COLUMNS == reading.COLUMNS
    assert (packing.MAGIC, packing.VERSION, packing.MORE) == (
        reading.MAGIC,
        reading.VERSION,
        reading.MORE,
    )


def test_columns_that_are_not_known_are_left_out():
    data = bytearray(vector())
    data[reading.HEAD.size + 64] = 99
    assert set(parse_chunk(data).columns) == {"offset", "key"}


@pytest.mark.parametrize(
    ("at", "value"), [(0, 0), (4, 2), (6, 79), (6, 0xFF), (12, 3), (16, 0), (76, 99)]
)
def test_what_is_no_chunk(at, value):
    data = bytearray(vector())
    data[at] = value
    with pytest.raises(MalformedChunkError):
        parse_chunk(data)


@given(st.integers(0, len(vector()) - 1), st.integers(0, 255), st.integers(0, len(vector())))
def test_damage_is_refused_or_harmless(at, value, size):
    data = bytearray(vector())[:size]
    if at < len(data):
        data[at] = value
    try:
        chunk = parse_chunk(data)
    except MalformedChunkError:
        return
    for column in chunk.columns.values():
        assert len(column) == chunk.rows


@given(st.binary(max_size=200))
def test_any_bytes(data):
    with pytest.raises(MalformedChunkError):
        parse_chunk(data)
    with pytest.raises(MalformedChunkError):
        chunk_bytes(data[:FRONT_BYTES])


def test_arrow_wraps_columns_without_copying_them():
    arrow = pytest.importorskip("pyarrow")
    chunk = parse_chunk(vector())
    value, offset = chunk.columns["value"], chunk.columns["offset"]
    buffers = [None, arrow.py_buffer(value.table), arrow.py_buffer(value.values)]
    assert arrow.Array.from_buffers(arrow.binary(), chunk.rows, buffers).to_pylist() == [
        b"one",
        b"",
    ]
    numbers = [None, arrow.py_buffer(offset.values)]
    array = arrow.Array.from_buffers(arrow.int64(), chunk.rows, numbers)
    assert array.to_pylist() == [41, 42]
    assert array.buffers()[1].address == arrow.py_buffer(offset.values).address
