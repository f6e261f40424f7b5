"""Field tables as JSON and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.json_fields import InvalidFieldError, field_of, plain, table_of

KEYS = st.sampled_from(["a", "$base64", "$$base64", "$$$base64", "base64"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=4) | st.binary(max_size=4).filter(bool),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=6,
)


def as_read(value):
    """A value as it comes from the wire: octets that are UTF-8 are text."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case list():
            return [as_read(inner) for inner in value]
        case dict():
            return {key: as_read(inner) for key, inner in value.items()}
    return value


@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_nothing_is_lost_on_the_way_to_json_and_back(table):
    table = as_read(table)
    assert table_of(json.loads(json.dumps(plain(table)))) == table


def test_octets_that_are_no_text_are_base64():
    assert plain({"a": b"\xff\x00", "b": b"text"}) == {"a": {"$base64": "/wA="}, "b": "text"}


def test_a_table_that_looks_like_octets_is_told_from_them():
    assert plain({"a": {"$base64": "x"}}) == {"a": {"$$base64": "x"}}
    assert field_of({"a": {"$$base64": "x"}}) == {"a": {"$base64": "x"}}
    assert field_of({"a": {"$base64": "/w==", "b": 1}}) == {"a": {"$base64": "/w==", "b": 1}}


@pytest.mark.parametrize("wrong", ["/", "é", 1, None, ["/w=="]])
def test_octets_that_are_no_base64_are_refused(wrong):
    with pytest.raises(InvalidFieldError, match="not base64") as refused:
        field_of({"a": {"$base64": wrong}})
    assert refused.value.path == ".a.$base64"


def test_octets_are_no_table():
    with pytest.raises(InvalidFieldError, match="octets are no table"):
        table_of({"$base64": "/w=="})
