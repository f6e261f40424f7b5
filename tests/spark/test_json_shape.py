"""The outer shape of JSON bodies: which may be parsed in a block, and how deep they are."""

from __future__ import annotations

import json
import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.spark.json_shape import nesting, plain_objects

DEPTH_MAX = 4


def table_of(bodies):
    ends = [0, *accumulate(map(len, bodies))]
    return memoryview(struct.pack(f"={len(ends)}i", *ends)).cast("i")


def plain(*bodies):
    found = plain_objects(b"".join(bodies), table_of(bodies), len(bodies), DEPTH_MAX)
    return [bool(each) for each in found]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' \t\r\n{"a": [1, -2.5e+3, true, false, null]}\n',
        b'{"a": "}{][\\"", "b": "\\\\"}',
        '{"häse": "☃"}'.encode(),
        b'{"a": [[[]]]}',
        b'{"a" 1,,}',  # no JSON, which the parser finds out
    ],
)
def test_plain_bodies(body):
    assert plain(body) == [True]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"null",
        b"[{}]",
        b"1",
        b'"{}"',
        b"{}{}",
        b"{} null",
        b"{} null {}",
        b"null {}",
        b"{",
        b"}",
        b"}{",
        b'{"a": "}',
        b'{"a": "b\\',
        b'{"a": "b\n"}',
        b"{}\0",
        b'{"a": NaN}',
        b'{"a": -Inf}',
        b"{'a': 1}",
        b"\xef\xbb\xbf{}",
        b'{"a": [[[[]]]]}',
    ],
)
def test_other_bodies(body):
    assert plain(body) == [False]


def test_bodies_are_told_from_each_other():
    bodies = [b"{}", b"", b"{", b"}", b'{"a": "', b'"}', b"{}"]
    assert plain(*bodies) == [True, False, False, False, False, False, True]


def test_bodies_outside_of_the_values_are_refused():
    with pytest.raises(ValueError, match="body 1 is not within"):
        plain_objects(b"{}", memoryview(struct.pack("=3i", 0, 2, 3)).cast("i"), 2, 1)
    with pytest.raises(ValueError, match="body 0 is not within"):
        plain_objects(b"{}", memoryview(struct.pack("=2i", 2, 1)).cast("i"), 1, 1)
    with pytest.raises(ValueError, match="fewer bodies"):
        plain_objects(b"{}", memoryview(struct.pack("=2i", 0, 2)).cast("i"), 2, 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3),
    max_leaves=8,
)


def depth_of(value):
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, parts), default=0) if isinstance(value, dict | list) else 0


@given(VALUES)
def test_what_is_plain_is_one_object_that_is_not_too_deep(value):
    body = json.dumps(value).encode()
    depth = depth_of(value)
    assert nesting(body) == depth
    assert plain(body) == [isinstance(value, dict) and depth <= DEPTH_MAX]
    assert plain(body + b"{}") == [False]


@given(VALUES.map(lambda value: json.dumps(value).encode()), st.data())
def test_a_plain_body_is_an_object_or_no_json(body, data):
    at = data.draw(st.integers(0, len(body)))
    inserted = data.draw(st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"\\", b" null ", b"{}"]))
    mutated = body[:at] + inserted + body[at:]
    if not plain(mutated)[0]:
        return
    try:
        found = json.loads(mutated)
    except json.JSONDecodeError:
        return
    assert isinstance(found, dict)
