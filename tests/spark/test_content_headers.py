"""Content headers packed from columns: what any other codec reads in them, and columns that lie."""

from __future__ import annotations

import struct
from itertools import pairwise

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.spark.content_headers import HeaderPacker, ListColumn, NumberColumn, TextColumn
from leveret.spark.property_columns import STRINGS

STRING_NAMES = list(STRINGS)


def bitmap(values, first):
    """Return Arrow's bitmap of a column whose row 0 is bit `first`, None if nothing is null."""
    if None not in values:
        return None
    bits = sum(1 << (first + n) for n, value in enumerate(values) if value is not None)
    return bits.to_bytes((first + len(values)) // 8 + 1, "little")


def ints(numbers, letter="i"):
    return memoryview(struct.pack(f"={len(numbers)}{letter}", *numbers)).cast(letter)


def texts(values, first=0):
    given = [b"before"] * first + [value or b"" for value in values]
    edges = [0]
    for value in given:
        edges.append(edges[-1] + len(value))
    return TextColumn(first, bitmap(values, first), ints(edges), b"".join(given))


def numbers(values, first=0):
    given = [99] * first + [value or 0 for value in values]
    return NumberColumn(first, bitmap(values, first), ints(given, "q"))


def lists(values, first=0):
    """Return a column of lists, or of dictionaries."""
    given = [[]] * first + [value or [] for value in values]
    edges = [0]
    for value in given:
        edges.append(edges[-1] + len(value))
    flat = [entry for value in given for entry in value]
    names = None
    if any(isinstance(value, dict) for value in given):
        flat = [entry for value in given if value for entry in value.values()]
        names = texts([name for value in given for name in value])
    return ListColumn(first, bitmap(values, first), ints(edges), texts(flat), names)


def packed(columns, rows=1, *, persistent=True, start=0):
    """Return the content headers of rows `start` to `rows`."""
    packer = HeaderPacker(columns, persistent=persistent)
    packer.pack(start, rows)
    edges = list(memoryview(bytes(packer.table)).cast("i"))
    data = bytes(packer.values)
    assert (edges[0], edges[-1]) == (0, len(data))
    return [data[a:b] for a, b in pairwise(edges)]


def properties(header):
    """Return what pika reads in a content header."""
    assert struct.unpack(">HHQ", header[:12]) == (60, 0, 0)
    found = vars(pika.BasicProperties().decode(header[12:]))
    return {name: value for name, value in found.items() if value is not None}


short = st.none() | st.text(max_size=60).map(str.encode)
long = st.none() | st.text(max_size=300).map(str.encode)
headers = st.none() | st.dictionaries(st.text(max_size=20).map(str.encode), long, max_size=4)


@st.composite
def tables(draw):
    """Draw columns by name, and their number of rows."""
    rows = draw(st.integers(1, 9))
    kinds = dict.fromkeys(STRING_NAMES, short) | {
        "priority": st.none() | st.integers(0, 255),
        "key": long,
        "delay": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "deliver_at": st.none() | st.integers(0, 1 << 50),
        "tags": st.none() | st.lists(st.text(max_size=20).map(str.encode), max_size=3),
        "headers": headers,
    }
    names = draw(st.sets(st.sampled_from(sorted(kinds))))
    table = {
        name: draw(st.lists(kinds[name], min_size=rows, max_size=rows)) for name in sorted(names)
    }
    return table, rows, draw(st.integers(0, 9))


def column(name, values, first):
    if name in {"priority", "delay", "deliver_at"}:
        return numbers(values, first)
    if name == "headers":
        return lists([{} if value is None else value for value in values], first)
    return lists(values, first) if name == "tags" else texts(values, first)


def text(value):
    return value.decode()


def expected(row):
    """Return the properties that a row shall become."""
    found = {name: text(row[name]) for name in STRING_NAMES if row.get(name) is not None}
    if row.get("priority") is not None:
        found["priority"] = row["priority"]
    table = {}
    for name, value in (row.get("headers") or {}).items():
        table[text(name)] = None if value is None else text(value)
    if row.get("key") is not None:
        table["x-partition-key"] = text(row["key"])
    if row.get("tags"):
        table["x-tags"] = [text(tag) for tag in row["tags"]]
    for name, header in (("delay", "x-delay"), ("deliver_at", "x-deliver-at")):
        if row.get(name) is not None:
            table[header] = row[name]
    if table:
        found["headers"] = table
    return found


@given(tables(), st.booleans())
def test_another_codec_reads_what_was_packed(drawn, persistent):
    table, rows, first = drawn
    columns = {name: column(name, values, first) for name, values in table.items()}
    found = packed(columns, rows, persistent=persistent)
    for n, header in enumerate(found):
        wanted = expected({name: values[n] for name, values in table.items()})
        mode = 2 if persistent else 1
        assert properties(header) == {**wanted, "delivery_mode": mode}


def test_rows_of_the_middle():
    columns = {"key": texts([b"a", b"b", b"c", b"d"])}
    found = [properties(header)["headers"] for header in packed(columns, 3, start=1)]
    assert found == [{"x-partition-key": "b"}, {"x-partition-key": "c"}]


def test_a_column_holds_before_a_header_of_its_name():
    names = [b"x-partition-key", b"x-tags", b"x-delay", b"x-deliver-at", b"x-tag"]
    entries = dict.fromkeys(names, b"no")
    columns = {
        "headers": lists([entries, entries]),
        "key": texts([b"k", None]),
        "tags": lists([[b"t"], None]),
        "delay": numbers([5, None]),
        "deliver_at": numbers([6, None]),
    }
    first, second = (properties(header)["headers"] for header in packed(columns, 2))
    assert first == {
        "x-tag": "no",
        "x-partition-key": "k",
        "x-tags": ["t"],
        "x-delay": 5,
        "x-deliver-at": 6,
    }
    assert second == {name.decode(): "no" for name in names}


def test_letters_are_those_of_amqp():
    columns = {"delay": numbers([-2]), "headers": lists([{b"n": None, b"s": b"\xff"}])}
    [header] = packed(columns)
    assert b"\x01nV" in header
    assert b"\x01sS\0\0\0\x01\xff" in header
    assert b"\x07x-delayl" + struct.pack(">q", -2) in header


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"message_id": texts([b"", b"x" * 256])}, "'message_id' of row 1 has 256 bytes"),
        ({"priority": numbers([0, 256])}, "'priority' of row 1 is 256"),
        ({"priority": numbers([0, -1])}, "'priority' of row 1 is -1"),
        ({"tags": lists([[], [b"a", None]])}, "'tags' of row 1 has a null"),
        ({"headers": lists([{}, {b"x" * 256: b""}])}, "'headers' of row 1 has 256 bytes"),
        (
            {"headers": ListColumn(0, None, ints([0, 0, 1]), texts([b"v"]), texts([None]))},
            "'headers' of row 1 has an entry without a key",
        ),
    ],
)
def test_what_amqp_has_no_room_for_is_told(columns, message):
    with pytest.raises(ValueError, match=message):
        packed(columns, 2)


@pytest.mark.parametrize(
    "lying",
    [
        {"key": TextColumn(0, None, ints([0, 9, 9]), b"short")},
        {"key": TextColumn(0, None, ints([3, 1, 1]), b"short")},
        {"key": TextColumn(0, None, ints([-1, 1, 1]), b"short")},
        {"key": TextColumn(0, None, ints([0, 1]), b"short")},
        {"key": TextColumn(7, b"\xff", ints([0] * 10), b"")},
        {"key": TextColumn(0, None, ints([]), b"")},
        {"delay": NumberColumn(1, None, ints([1, 2], "q"))},
        {"tags": ListColumn(0, None, ints([0, 1, 9]), texts([b"a"]))},
        {"tags": ListColumn(0, None, ints([2, 1, 1]), texts([b"a"]))},
        {"tags": ListColumn(0, None, ints([0, 1]), texts([b"a"]))},
    ],
)
def test_a_column_that_is_shorter_than_it_says_is_refused(lying):
    with pytest.raises(ValueError, match=r"offsets|bitmap|numbers"):
        packed(lying, 2)
