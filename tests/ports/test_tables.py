"""Field tables: every letter, every limit, and pamqp as the independent oracle."""

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from leveret.ports import tables
from leveret.ports.fields import WireInteger
from leveret.ports.tables import (
    MalformedFieldError,
    MalformedTextError,
    RawValue,
    TableLimitError,
    Timestamp,
    decode_fields,
    decode_table,
    encode_fields,
    encode_table,
)


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


LETTERS = [
    (b"t\x01", True),
    (b"t\x00", False),
    (b"t\x02", True),
    (b"b\xff", WireInteger(-1, "byte")),
    (b"B\xff", WireInteger(255, "unsignedbyte")),
    (b"s\xff\xfe", WireInteger(-2, "short")),
    (b"u\xff\xfe", WireInteger(65534, "unsignedshort")),
    (b"I\xff\xff\xff\xff", -1),
    (b"i\xff\xff\xff\xff", WireInteger(2**32 - 1, "unsignedint")),
    (b"l" + b"\xff" * 8, WireInteger(-1, "long")),
    (b"L" + b"\xff" * 8, WireInteger(-1, "long")),
    (b"l\xff\xff\xff\xff" + bytes(4), -(2**32)),
    (b"f\x3f\x80\x00\x00", 1.0),
    (b"d\x3f\xf8" + b"\x00" * 6, 1.5),
    (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
    (b"D\x01\xff\xff\xff\xff", Decimal("-0.1")),
    (b"S\x00\x00\x00\x02\xc3\xa9", "é"),
    (b"S\x00\x00\x00\x01\xff", b"\xff"),
    (b"x\x00\x00\x00\x01\xff", bytearray(b"\xff")),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1)),
    (b"V", None),
    (b"A" + sized(b"Vt\x01A\x00\x00\x00\x00"), [None, True, []]),
    (b"F" + sized(b"\x01aV"), {"a": None}),
]


@pytest.mark.covers("B-016")
@pytest.mark.parametrize(("wire", "value"), LETTERS, ids=lambda part: repr(part)[:30])
def test_every_letter_reads_as_its_value(wire, value):
    decoded = decode_table(sized(b"\x01k" + wire))["k"]
    assert decoded == value
    assert type(decoded) is type(value)
    assert getattr(decoded, "wire_type", None) == getattr(value, "wire_type", None)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, width=32)
    | st.text(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.integers(0, 2**32 - 1).map(Timestamp)
    | st.decimals(-2000, 2000, places=3)
)
names = st.text(max_size=30)
table_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)
field_tables = st.dictionaries(names, table_values, max_size=6)


def for_pamqp(value):
    """pamqp makes moments of timestamps."""
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value, tz=UTC)
    if isinstance(value, dict):
        return {name: for_pamqp(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [for_pamqp(inner) for inner in value]
    return value


@given(field_tables)
def test_reading_back_what_was_written_gives_the_same(table):
    assert decode_table(encode_table(table)) == table


@given(field_tables)
def test_pamqp_reads_what_we_write(table):
    wire = encode_table(table)
    assert decode.field_table(wire) == (len(wire), for_pamqp(table))


@given(field_tables)
def test_we_read_what_pamqp_writes(table):
    assert decode_table(encode.field_table(for_pamqp(table))) == table


@given(st.binary(max_size=200))
def test_random_bytes_give_values_or_the_documented_error(data):
    try:
        table = decode_table(sized(data))
    except MalformedFieldError:
        return
    assert decode_table(encode_table(table)).keys() == table.keys()


@given(field_tables, st.data())
def test_cut_and_flipped_tables_give_values_or_the_documented_error(table, data):
    wire = bytearray(encode_table(table))
    position = data.draw(st.integers(0, len(wire) - 1))
    wire[position] = data.draw(st.integers(0, 255))
    wire = wire[: data.draw(st.integers(0, len(wire)))]
    try:
        decode_table(bytes(wire))
    except MalformedFieldError:
        return


@given(field_tables.filter(bool))
def test_every_cut_is_noticed(table):
    wire = encode_table(table)
    for stop in range(len(wire)):
        with pytest.raises(MalformedFieldError):
            decode_table(wire[:stop])


@given(field_tables)
def test_raw_values_return_octet_for_octet(table):
    wire = encode.field_table(for_pamqp(table))
    (raw,) = decode_fields(wire, 0, "w")
    assert all(isinstance(value, RawValue) for value in raw.values())
    assert encode_table(raw) == wire


def nested_tables(depth: int) -> bytes:
    data = b""
    for _ in range(depth - 1):
        data = b"\x01aF" + sized(data)
    return sized(data)


def nested_arrays(depth: int) -> bytes:
    data = b""
    for _ in range(depth - 1):
        data = b"A" + sized(data)
    return sized(b"\x01a" + data)


@pytest.mark.parametrize("nested", [nested_tables, nested_arrays])
def test_nesting_ends_at_the_limit(nested):
    deepest = decode_table(nested(tables.TABLE_DEPTH_MAX))
    json.dumps(deepest)
    for depth in (tables.TABLE_DEPTH_MAX + 1, 900, 20_000):
        with pytest.raises(TableLimitError, match="nested deeper than 64"):
            decode_table(nested(depth))


def test_what_we_write_is_nested_no_deeper():
    value: dict = {}
    for _ in range(tables.TABLE_DEPTH_MAX - 1):
        value = {"a": value}
    assert decode_table(encode_table(value)) == value
    with pytest.raises(ValueError, match="nested deeper"):
        encode_table({"a": value})


def test_number_of_values_is_limited_over_the_whole_table():
    most = b"V" * (tables.TABLE_VALUES_MAX - 1)
    assert len(decode_table(sized(b"\x01aA" + sized(most)))["a"]) == tables.TABLE_VALUES_MAX - 1
    with pytest.raises(TableLimitError, match="more than 65536 values"):
        decode_table(sized(b"\x01aA" + sized(most + b"V")))
    halves = b"A" + sized(b"V" * (tables.TABLE_VALUES_MAX // 2))
    with pytest.raises(TableLimitError, match="values"):
        decode_table(sized(b"\x01aA" + sized(halves * 2)))


def test_bytes_of_a_table_are_limited():
    filler = tables.TABLE_BYTES_MAX - 7
    assert decode_table(sized(b"\x01aS" + sized(b"x" * filler)))["a"] == "x" * filler
    with pytest.raises(TableLimitError, match="larger than 1048576 bytes"):
        decode_table(sized(b"\x01aS" + sized(b"x" * (filler + 1))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x01aV",
        sized(b"\x01"),
        sized(b"\x01a"),
        sized(b"\x09aI"),
        sized(b"\x01aZ"),
        sized(b"\x01a\x00"),
        sized(b"\x01aI\x00\x00"),
        sized(b"\x01aS\xff\xff\xff\xff"),
        sized(b"\x01aF\x00\x00\x00\x63"),
        sized(b"\x01aA\x00\x00\x00\x01I\x00\x00\x00\x00"),
        sized(b"\x01aF\x00\x00\x00\x02\x01b\x01cV"),
        sized(b"") + b"z",
    ],
)
def test_malformed_tables_are_refused(data):
    with pytest.raises(MalformedFieldError):
        decode_table(data)


def test_first_of_equal_names_counts():
    assert decode_table(sized(b"\x01at\x01\x01at\x00")) == {"a": True}


def test_names_that_are_not_text_survive():
    wire = sized(b"\x02\xff\xfeV")
    assert encode_table(decode_table(wire)) == wire


def test_moments_are_written_as_seconds_of_utc():
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for value in (moment, moment.replace(tzinfo=None)):
        assert decode_table(encode_table({"t": value})) == {"t": Timestamp(1767323045)}


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        Timestamp(-1),
        pytest.param(object(), id="object()"),  # each process knows a test by its name
        Decimal("NaN"),
        Decimal("1E+5"),
        Decimal(2**31),
        Decimal("1e-256"),
        {"n" * 256: 1},
    ],
    ids=repr,
)
def test_what_a_table_cannot_carry_is_our_mistake(value):
    with pytest.raises(ValueError, match=r".") as caught:
        encode_table({"a": value})
    assert not isinstance(caught.value, MalformedFieldError)


FIELDS = {
    "o": st.integers(0, 255),
    "h": st.integers(0, 2**16 - 1),
    "l": st.integers(0, 2**32 - 1),
    "q": st.integers(0, 2**64 - 1),
    "b": st.booleans(),
    "s": st.text(max_size=63),
    "r": st.binary(max_size=255).map(lambda data: data.decode(errors="surrogateescape")),
    "S": st.binary(max_size=300),
    "t": field_tables,
    "T": st.integers(0, 2**64 - 1).map(Timestamp),
}


@given(st.lists(st.sampled_from(sorted(FIELDS)), max_size=20), st.data())
def test_fields_read_back_whatever_their_order(kinds, data):
    values = [data.draw(FIELDS[kind]) for kind in kinds]
    wire = encode_fields("".join(kinds), values)
    assert decode_fields(wire, 0, "".join(kinds)) == values
    with pytest.raises(MalformedFieldError, match="behind the last field"):
        decode_fields(wire + b"\x00", 0, "".join(kinds))
    for stop in range(len(wire)):
        with pytest.raises(MalformedFieldError):
            decode_fields(wire[:stop], 0, "".join(kinds))


def test_bits_share_octets():
    assert encode_fields("b" * 9, [True] * 9) == b"\xff\x01"
    assert encode_fields("bob", [True, 7, True]) == b"\x01\x07\x01"


@pytest.mark.covers("B-016")
def test_short_strings_must_be_utf8_where_the_kind_says_so():
    with pytest.raises(MalformedTextError, match="Malformed UTF-8 in shortstr"):
        decode_fields(b"\x02\xff\xfe", 0, "s")
    assert encode_fields("r", decode_fields(b"\x02\xff\xfe", 0, "r")) == b"\x02\xff\xfe"


@pytest.mark.parametrize(
    ("kind", "value"),
    [("o", 256), ("h", -1), ("l", 2**32), ("q", 2**64), ("s", "x" * 256), ("T", -1)],
)
def test_values_too_large_for_their_field_are_our_mistake(kind, value):
    with pytest.raises(ValueError, match=r"fit|short string"):
        encode_fields(kind, [value])


def test_a_position_behind_the_end_reads_nothing():
    assert decode_fields(b"abc", 100, "") == []
    with pytest.raises(MalformedFieldError):
        decode_fields(b"abc", 100, "o")
