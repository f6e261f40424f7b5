"""Content headers as columns: every property and type of header, and bytes that are none."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.spark.property_columns import PRIORITY, STRINGS, PropertyColumns

NAMES = [*STRINGS, PRIORITY]


def column_of(headers):
    """Return content headers as a column of a chunk has them: bytes, and a table."""
    table = [0]
    for header in headers:
        table.append(table[-1] + len(header))
    return memoryview(b"".join(headers)), memoryview(struct.pack(f"={len(table)}i", *table)).cast(
        "i"
    )


def header_of(**properties):
    if "type" in properties:
        properties["message_type"] = properties.pop("type")
    frame = ContentHeader(body_size=3, properties=commands.Basic.Properties(**properties))
    return frame.marshal()


def numbers(buffer, letter="i"):
    return list(memoryview(bytes(buffer)).cast(letter))


def is_valid(buffer, row):
    return bool(bytes(buffer)[row // 8] >> row % 8 & 1)


def values(column):
    """Return a column of strings or bytes as Python has it."""
    valid, offsets, data = column.buffers
    edges, text = numbers(offsets), bytes(data)
    found = [
        text[edges[row] : edges[row + 1]] if is_valid(valid, row) else None
        for row in range(column.rows)
    ]
    assert column.nulls == found.count(None)
    return found


def unpacked(headers, names=NAMES, *, has_headers=True):
    columns = PropertyColumns(names, has_headers)
    columns.add(*column_of(headers), 0, len(headers))
    return columns


def headers_of(columns):
    ends = numbers(columns.ends)
    pairs = list(zip(values(columns.keys), values(columns.values), strict=True))
    return [pairs[first:stop] for first, stop in pairwise(ends)]


TEXTS = {name: name.upper() for name in STRINGS}


def test_properties():
    columns = unpacked([header_of(**TEXTS, priority=9), header_of(), header_of(type="t")])
    for name in STRINGS:
        expected = [name.upper().encode(), None, b"t" if name == "type" else None]
        assert values(columns.strings[name]) == expected
    valid, data = columns.priorities.buffers
    assert [is_valid(valid, row) for row in range(3)] == [True, False, False]
    assert numbers(data)[0] == 9
    assert columns.priorities.nulls == 2


def test_only_what_is_wanted():
    columns = unpacked([header_of(type="t", headers={"a": "b"})], ["type"], has_headers=False)
    assert list(columns.strings) == ["type"]
    assert columns.priorities is None
    assert columns.keys.rows == 0


FIELDS = {
    "s": (b"S\0\0\0\x02hi", b"hi"),
    "bytes": (b"x\0\0\0\x02\xff\0", b"\xff\0"),
    "t": (b"t\x01", b"true"),
    "f": (b"t\0", b"false"),
    "b": (b"b\xff", b"-1"),
    "B": (b"B\xff", b"255"),
    "short": (b"s\xff\xfe", b"-2"),
    "u": (b"u\xff\xfe", b"65534"),
    "I": (b"I\xff\xff\xff\xfd", b"-3"),
    "i": (b"i\xff\xff\xff\xff", b"4294967295"),
    "l": (b"l" + b"\xff" * 8, b"-1"),
    "L": (b"L" + b"\xff" * 8, b"-1"),
    "T": (b"T" + (1 << 33).to_bytes(8, "big"), b"8589934592"),
    "V": (b"V", None),
    "real": (b"d" + struct.pack(">d", 2.5), b"2.5"),
    "float": (b"f" + struct.pack(">f", 0.5), b"0.5"),
    "D": (b"D\x01\0\0\0\x0f", b'"1.5"'),
    "A": (b"A\0\0\0\x08t\x01S\0\0\0\x01a", b'[true, "a"]'),
    "F": (b"F\0\0\0\x04\x01kt\0", b'{"k": false}'),
}


def with_fields(fields):
    size = len(fields).to_bytes(4, "big")
    return struct.pack(">HHQH", 60, 0, 0, 1 << 13) + size + fields


def field(name, value):
    return bytes((len(name),)) + name.encode() + value


def test_every_type_of_header():
    fields = b"".join(field(name, value) for name, (value, _) in FIELDS.items())
    (found,) = headers_of(unpacked([with_fields(fields)]))
    assert dict(found) == {name.encode(): text for name, (_, text) in FIELDS.items()}
    assert [name for name, _ in found] == [name.encode() for name in FIELDS]


def test_text_that_is_no_utf8_is_made_valid():
    header = struct.pack(">HHQH", 60, 0, 0, 1 << 5) + b"\x03a\xff\xfe"
    columns = unpacked([header, with_fields(field("", b"t\x01").replace(b"\0t", b"\x01\xfft", 1))])
    (text, _) = values(columns.strings["type"])
    assert text.decode() == "a\ufffd\ufffd"
    assert [key.decode() for key in values(columns.keys)] == ["\ufffd"]


def test_rows_of_several_chunks_follow_each_other():
    columns = PropertyColumns(["type"], True)
    for number in range(3):
        headers = [header_of(type=f"{number}{row}", headers={"n": f"{row}"}) for row in range(10)]
        columns.add(*column_of(headers), 2, 7)
    expected = [f"{number}{row}".encode() for number in range(3) for row in range(2, 7)]
    assert values(columns.strings["type"]) == expected
    assert [found[0][1] for found in headers_of(columns)] == [t[1:] for t in expected]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_are_rows(headers):
    columns = unpacked(headers)
    assert len(headers_of(columns)) == len(headers)
    for name in STRINGS:
        assert len(values(columns.strings[name])) == len(headers)
    for text in (*values(columns.keys), *(t for c in columns.strings.values() for t in values(c))):
        if text is not None:
            text.decode()


@given(st.binary(max_size=80))
def test_any_table_is_read_as_far_as_it_goes(fields):
    columns = unpacked([with_fields(fields)])
    (found,) = headers_of(columns)
    assert len(found) == columns.keys.rows == columns.values.rows


@pytest.mark.parametrize("table", [[0, 9], [0, -1], [5, 3], [4, 2]])
def test_tables_that_lie_outside_are_refused(table):
    packed = memoryview(struct.pack("=2i", *table)).cast("i")
    with pytest.raises(ValueError, match="outside of its column"):
        PropertyColumns([], True).add(memoryview(b"12345678"), packed, 0, 1)


def test_rows_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="rows 0 to 2 of 1"):
        PropertyColumns([], True).add(*column_of([b""]), 0, 2)
