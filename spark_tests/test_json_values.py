"""JSON bodies as Arrow values: like `from_json`, and each like it is without its neighbours."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.spark import json_values
from leveret.spark.errors import SourceError
from leveret.spark.json_rows import NESTING_MAX, JsonRowReader
from leveret.spark.json_values import JsonDecoder

POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
TIME = pa.timestamp("us", "UTC")
COPIES = 20  # of a body, more than are read one by one


@pytest.fixture(autouse=True)
def blocks_are_small(monkeypatch):
    monkeypatch.setattr(json_values, "BLOCK_ROWS_MIN", 2)


def decode(bodies, wanted, **options):
    """Return values and problems of bodies, and check that they are the same by themselves."""
    values, malformed = JsonDecoder(wanted, **options).decode(pa.array(bodies, pa.binary()))
    values.validate(full=True)
    assert values.type == wanted
    assert list(malformed) == sorted(malformed)
    return values.to_pylist(), malformed


def one(body, of, **options):
    """Return the value of a field `a`, and what is wrong; alone, in a block, and beside others."""
    wanted = pa.struct([("a", of)])
    (value,), problem = decode([body], wanted, **options)
    block, problems = decode([body] * COPIES, wanted, **options)
    assert [repr(each) for each in block] == [repr(value)] * COPIES
    assert len(problems) == COPIES * len(problem)
    beside, problems = decode([b"{}", b"{", body, b"{}"], wanted, **options)
    assert repr(beside) == repr([{"a": None}, None, value, {"a": None}])
    assert set(problems) == {1, 2} if problem else {1}
    return (None if value is None else value["a"]), problem.get(0)


@pytest.mark.parametrize(
    ("text", "of", "expected"),
    [
        ("5", pa.int8(), 5),
        ("-9223372036854775808", pa.int64(), -(1 << 63)),
        ("null", pa.int64(), None),
        ("1", pa.float64(), 1.0),
        ("0.1", pa.float32(), 0.10000000149011612),
        ("1e999", pa.float64(), float("inf")),
        ('"-INF"', pa.float64(), float("-inf")),
        ("-Infinity", pa.float64(), float("-inf")),
        ("true", pa.bool_(), True),
        (r'"\ud83d\ude00 \u0000"', pa.string(), "😀 \0"),
        (r'"\ud800"', pa.string(), "?"),
        ("1.50", pa.string(), "1.50"),
        ('{"b": [1, "ü", null, true, {}, []]}', pa.string(), '{"b":[1,"ü",null,true,{},[]]}'),
        ("1.555", pa.decimal128(10, 2), Decimal("1.56")),
        ('"1.5"', pa.decimal128(10, 2), Decimal("1.50")),
        ("99999999.99", pa.decimal128(10, 2), Decimal("99999999.99")),
        ('"2026-01-05"', pa.date32(), dt.date(2026, 1, 5)),
        ('"2026-1-5"', pa.date32(), dt.date(2026, 1, 5)),
        ('"2026"', pa.date32(), dt.date(2026, 1, 1)),
        ('"2026-01-05T01:02:03Z"', TIME, dt.datetime(2026, 1, 5, 1, 2, 3, tzinfo=dt.UTC)),
        ('"2026-01-05 01:02+02:00"', TIME, dt.datetime(2026, 1, 4, 23, 2, tzinfo=dt.UTC)),
        ('"2026-01-05"', TIME, dt.datetime(2026, 1, 5, tzinfo=dt.UTC)),
        ("5", TIME, dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)),
        (
            '"2026-01-05T01:02:03.123456789Z"',
            TIME,
            dt.datetime(2026, 1, 5, 1, 2, 3, 123456, tzinfo=dt.UTC),
        ),
        ('"2026-01-05T01:02"', pa.timestamp("us"), dt.datetime(2026, 1, 5, 1, 2)),  # noqa: DTZ001
        ('"AAE="', pa.binary(), b"\0\1"),
        ("[1, null]", pa.list_(pa.int32()), [1, None]),
        ('{"k": 1, "l": null}', pa.map_(pa.string(), pa.int32()), [("k", 1), ("l", None)]),
        ('{"x": 1, "z": [{}]}', POINT, {"x": 1, "y": None}),
    ],
)
def test_values(text, of, expected):
    value, problem = one(b'{"a": %s, "b": 1}' % text.encode(), of)
    assert (value, problem) == (expected, None)


def test_no_number():
    value, problem = one(b'{"a": NaN}', pa.float64())
    assert value != value
    assert problem is None


@pytest.mark.parametrize(
    ("text", "of", "problem"),
    [
        ("128", pa.int8(), "no integer of 8 bits"),
        ("5.0", pa.int32(), "no integer of 32 bits"),
        ("9" * 5000, pa.int64(), "no integer of 64 bits"),
        ('"5"', pa.int64(), "no integer"),
        ('"x"', pa.float64(), "no number"),
        ("1", pa.bool_(), "neither true nor false"),
        ("123456789", pa.decimal128(10, 2), "does not fit into decimal(10,2)"),
        ("1e400", pa.decimal128(10, 2), "does not fit"),
        ('"NaN"', pa.decimal128(10, 2), "no decimal"),
        ("1" * 5000, pa.decimal128(10, 2), "no decimal"),
        ("5", pa.date32(), "no date like"),
        ('"2026-02-30"', pa.date32(), "day"),
        ('"yesterday"', TIME, "no time like"),
        ('"2026-01-05T24:00:00Z"', TIME, "hour"),
        ('"2026-01-05T01:02:03+24:00"', TIME, "offset"),
        ('"2026-01-05Z"', TIME, "a date with an offset"),
        ("1e3", TIME, "no time like"),
        ('"2026-01-05 %s"' % (" " * 1_000_000 + r"\nx"), TIME, "no time like"),
        ('"2026-01-05 %s"' % (" " * 1_000_000 + r"\nx"), pa.date32(), "no date like"),
        ("9" * 18, TIME, "no time of the years"),
        ('"2026-01-05T01:02:03Z"', pa.timestamp("us"), "with an offset"),
        ('"%%"', pa.binary(), "no base64"),
        ("1", pa.binary(), "no string of base64"),
        ("{}", pa.list_(pa.int32()), "no array"),
        ('[1, "x"]', pa.list_(pa.int32()), "no integer"),
        ("[]", pa.map_(pa.string(), pa.int32()), "no object"),
        ("[]", POINT, "no object"),
    ],
)
def test_values_of_another_type_are_null_and_malformed(text, of, problem):
    value, found = one(b'{"a": %s}' % text.encode(), of)
    assert value is None
    assert found.startswith("field 'a' ")
    assert problem in found


def test_what_fits_is_read_beside_what_does_not():
    wanted = pa.struct([("a", POINT), ("b", pa.list_(POINT)), ("c", pa.int32())])
    body = b'{"a": {"x": "no", "y": 2}, "b": [{"x": 1.5, "y": 3}], "c": 4}'
    values, malformed = decode([body], wanted)
    assert values == [{"a": {"x": None, "y": 2}, "b": [{"x": None, "y": 3}], "c": 4}]
    assert malformed == {0: "field 'x' is no integer of 32 bits"}


def test_the_last_one_of_equal_names_counts():
    assert one(b'{"a": 1, "a": 2}', pa.int32()) == (2, None)
    assert one(b'{"a": 1, "a": null}', pa.int32()) == (None, None)


def test_names_have_case():
    assert one(b'{"A": 1}', pa.int32()) == (None, None)


@pytest.mark.parametrize("body", [b"", b" \r\n\t"])
def test_an_empty_body_is_null_and_not_malformed(body):
    assert one(body, pa.int32()) == (None, None)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"null", "JSON's null"),
        (b"[1]", "no object"),
        (b"5", "no object"),
        (b'{"a": 1} {"a": 2}', "Extra data"),
        (b'{"a": 1} null {"a": 2}', "Extra data"),
        (b'{"a": 1}\n{"a": 2}', "Extra data"),
        (b'{"a": 1} x', "Extra data"),
        (b'{"a": 1}\0}', "Extra data"),
        (b'{"a": 1', "delimiter"),
        (b'{"a": 1,}', "is no JSON"),
        (b"{'a': 1}", "is no JSON"),
        (b'{"b": Inf}', "is no JSON"),
        (b'{"b": "x\ny"}', "control character"),
        (b'{"b": "\xff"}', "no UTF-8 at byte 7"),
        (b"\xef\xbb\xbf{}", "is no JSON"),
        (b"{" * 10_000, "within each other"),
        (b'{"b": ' + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"}", "within each other"),
    ],
)
def test_malformed_bodies(body, problem):
    value, found = one(body, pa.int32())
    assert value is None
    assert found.startswith("the body ")
    assert problem in found


def test_depth_up_to_the_limit():
    levels = NESTING_MAX - 1
    body = b'{"a": 1, "b": ' + b"[" * levels + b"]" * levels + b"}"
    assert one(body, pa.int32()) == (1, None)
    assert one(body.replace(b'"b"', b'"a"'), pa.string()) == ("[" * levels + "]" * levels, None)


def test_long_bodies():
    text = "x" * 20_000_000
    value, problem = one_body(json.dumps({"a": text}).encode(), pa.string())
    assert (value, problem) == (text, None)


def one_body(body, of):
    (value,), malformed = decode([body], pa.struct([("a", of)]))
    return value["a"], malformed.get(0)


def test_rows_keep_their_places():
    """Two documents in a body and none in another one are as many as there are bodies."""
    bodies = [b'{"a": %d}' % n for n in range(60)]
    bodies[10] = b'{"a": 0}\n{"a": 0}'
    bodies[11] = b""
    bodies[40], bodies[41] = b'{"a": [', b"]}"
    values, malformed = decode(bodies, pa.struct([("a", pa.int64())]))
    wrong = {10, 11, 40, 41}
    assert [n if n in wrong else row["a"] for n, row in enumerate(values)] == list(range(60))
    assert set(malformed) == {10, 40, 41}


def test_slices_of_bodies():
    wanted = pa.struct([("a", pa.int64())])
    bodies = pa.array([b'{"a": %d}' % n for n in range(50)], pa.binary())
    values, _ = JsonDecoder(wanted).decode(bodies[7:43])
    assert [row["a"] for row in values.to_pylist()] == list(range(7, 43))
    values, _ = JsonDecoder(wanted).decode(bodies[:0])
    assert (values.to_pylist(), values.type) == ([], wanted)


def test_a_zone_for_times_without_one():
    body = b'{"a": "2026-07-05T12:00:00"}'
    zone = ZoneInfo("Europe/Berlin")
    assert one(body, TIME, zone=zone) == (dt.datetime(2026, 7, 5, 10, tzinfo=dt.UTC), None)
    aware = b'{"a": "2026-07-05T12:00:00Z"}'
    assert one(aware, TIME, zone=zone) == (dt.datetime(2026, 7, 5, 12, tzinfo=dt.UTC), None)


def test_other_roots():
    assert decode([b"[1, 2]", b"{}"], pa.list_(pa.int32())) == (
        [[1, 2], None],
        {1: "the body is no array"},
    )
    assert decode([b'{"k": 1}'] * 3, pa.map_(pa.string(), pa.int32()))[0] == [[("k", 1)]] * 3
    assert decode([b"{}"] * 3, pa.struct([]))[0] == [{}] * 3


def test_types_that_json_does_not_have_are_refused():
    with pytest.raises(SourceError, match="'duration"):
        JsonDecoder(pa.struct([("a", pa.duration("us"))]))
    with pytest.raises(SourceError, match="keys are no strings"):
        JsonDecoder(pa.map_(pa.int32(), pa.int32()))


EVERYTHING = pa.struct(
    [
        ("a", pa.int32()),
        ("b", pa.string()),
        ("c", pa.float64()),
        ("d", pa.decimal128(10, 2)),
        ("e", pa.timestamp("us")),
        ("f", pa.list_(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]))),
        ("g", POINT),
        ("h", pa.bool_()),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-130, 130)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["2026-01-05T01:02:03", "2026-01-05T01:02:03Z", "1.25", "1e5", "NaN"])
)
PARTS = st.recursive(
    SCALARS,
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(st.sampled_from("abcdefghxyz"), part, max_size=4)
    ),
    max_leaves=6,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-5, 5) | st.none(),
        "b": st.text(max_size=8),
        "c": st.floats(allow_nan=False),
        "d": st.sampled_from([1, 2.25, "3.5", "-.5"]),
        "e": st.sampled_from(["2026-01-05T01:02:03", "2026-01-05"]),
        "f": st.lists(st.fixed_dictionaries({}, optional={"a": st.integers(0, 9)}), max_size=3),
        "g": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9)}),
        "h": st.booleans(),
        "more": PARTS,
    },
)
DOCUMENTS = FITTING | st.dictionaries(st.sampled_from("abcdefgh"), PARTS, max_size=4) | PARTS
FRAGMENTS = (b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b" null ", b"\n", b"\0", b"\xff")


@st.composite
def bodies_of_all_kinds(draw):
    """Draw JSON as it is written, or with a few bytes changed."""
    document = draw(DOCUMENTS)
    text = json.dumps(
        document, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))
    )
    body = text.encode("utf-8", "replace")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        at = draw(st.integers(0, len(body)))
        inserted = draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=2))
        body = body[:at] + inserted + body[at + draw(st.integers(0, 2)) :]
    return body


@settings(max_examples=200, deadline=None)
@given(st.lists(bodies_of_all_kinds(), min_size=1, max_size=8), st.integers(0, 3))
def test_bodies_are_as_each_is_read_alone(bodies, spread):
    """The oracle reads one body at a time; copies make blocks, and neighbours are good ones."""
    reader = JsonRowReader(EVERYTHING, dt.UTC)
    good = b'{"a": 7}'
    for arranged in (
        [body for body in bodies for _ in range(4)],
        [each for body in bodies for each in (*[good] * spread, body)],
    ):
        values, malformed = JsonDecoder(EVERYTHING).decode(pa.array(arranged, pa.binary()))
        values.validate(full=True)
        expected = [reader.read(body) for body in arranged]
        same = pa.array([row.value for row in expected], EVERYTHING)
        assert repr(values.to_pylist()) == repr(same.to_pylist())
        assert malformed == {n: row.problem for n, row in enumerate(expected) if row.problem}
