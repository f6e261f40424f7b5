"""Some headers of many, against the reading of all."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from leveret.ports.contents import decode_properties
from leveret.ports.picking import HeaderNames, without_headers
from leveret.ports.tables import MalformedFieldError
from tests.support.contents import encode_properties

NAMES = st.sampled_from(["", "a", "ab", "b", "é", "x" * 200])
TABLES = st.dictionaries(NAMES, st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5))


def content_header(headers, **properties):
    return encode_properties(commands.Basic.Properties(headers=headers, **properties), 0)


@given(TABLES, st.sets(NAMES))
def test_what_is_asked_for_is_read_as_ever(headers, names):
    header = content_header(headers, content_type="text/plain", message_id="m")
    every = decode_properties(header).get("headers", {})
    assert HeaderNames(names).pick(header) == {n: v for n, v in every.items() if n in names}
    rest = {name: v for name, v in decode_properties(header).items() if name != "headers"}
    assert decode_properties(without_headers(header)) == rest


@given(st.binary(max_size=60), st.data())
def test_headers_that_make_no_sense_do_no_harm(damage, data):
    header = content_header({"a": "x", "b": 1})
    at = data.draw(st.integers(0, len(header)))
    broken = header[:at] + damage
    for read in (HeaderNames(["a", "b"]).pick, without_headers):
        with suppress(MalformedFieldError):
            read(broken)


def test_a_name_that_no_header_can_have_is_never_found():
    assert HeaderNames(["y" * 256]).pick(content_header({"a": 1})) == {}
    with pytest.raises(MalformedFieldError):
        HeaderNames(["a"]).pick(b"")
