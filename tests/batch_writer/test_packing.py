"""Chunks as their writer packs them: what is read from one is what was put in."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.batch_writer import PERSISTENT_HEADER, RowBytes, pack_chunk, repeated, row_bytes
from leveret.features.staged_batches.chunk_rows import ChunkRows
from leveret.range_reader import parse_chunk

NAMES = ("exchange", "routing_key", "header", "value")
CELLS = st.binary(max_size=30)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=10))
def test_columns_come_back(rows):
    columns = {
        name: row_bytes(values)
        for name, values in zip(NAMES, zip(*rows, strict=True) if rows else [()] * 4, strict=True)
    }
    data = pack_chunk(len(rows), **columns)
    assert ChunkRows(data).rows == len(rows)
    chunk = parse_chunk(data)
    assert chunk.rows == len(rows)
    found = [tuple(chunk.columns[name][row] for name in NAMES) for row in range(len(rows))]
    assert found == rows


@given(st.binary(max_size=5), st.integers(0, 9))
def test_a_repeated_value(value, rows):
    table, values = repeated(value, rows)
    assert memoryview(table).tobytes() == memoryview(row_bytes([value] * rows).table).tobytes()
    assert values == value * rows


def test_a_slice_of_a_longer_column():
    part = RowBytes(array("i", [3, 5, 5, 9, 11]), b"...abcdefghijk")
    columns = {name: repeated(b"", 3) for name in NAMES} | {"value": part}
    chunk = parse_chunk(pack_chunk(3, **columns))
    assert [chunk.columns["value"][row] for row in range(3)] == [b"ab", b"", b"cdef"]


@pytest.mark.parametrize(
    "column",
    [
        RowBytes(array("i", [0, 1]), b"ab"),
        RowBytes(array("i", [0, 1, 3]), b"ab"),
        RowBytes(array("i", [-1, 1, 2]), b"ab"),
        RowBytes(array("i", [2, 1, 1]), b"ab"),
    ],
)
def test_columns_that_do_not_fit(column):
    columns = {name: repeated(b"", 2) for name in NAMES}
    with pytest.raises(ValueError, match="table of column value"):
        pack_chunk(2, **columns | {"value": column})


def test_too_many_rows():
    with pytest.raises(ValueError, match="at most 1000000 rows"):
        pack_chunk(1_000_001, **{name: repeated(b"", 0) for name in NAMES})


def test_the_persistent_header():
    expected = bytes.fromhex("003c0000 0000000000000000 1000 02")
    assert expected == PERSISTENT_HEADER
