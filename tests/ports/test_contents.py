"""Content headers written anew, with pamqp as the judge."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.ports.contents import headers_table, open_header, with_properties
from leveret.ports.tables import decode_table, encode_table

short = st.text(
    alphabet=st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=9
)
values = {
    "content_type": short,
    "content_encoding": short,
    "headers": st.dictionaries(short, short, min_size=1, max_size=3),
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(1, 9),
    "correlation_id": short,
    "reply_to": short,
    "expiration": st.integers(1, 99).map(str),
    "message_id": short,
    "timestamp": st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    "message_type": short,
    "user_id": short,
    "app_id": short,
}
properties = st.fixed_dictionaries({}, optional=values)


def written(chosen):
    return header.ContentHeader(0, 77, commands.Basic.Properties(**chosen)).marshal()


def read(content_header):
    found = header.ContentHeader()
    found.unmarshal(content_header)
    assert found.body_size == 77
    return {name: value for name, value in found.properties if value not in (None, {}, "")}


@given(properties)
def test_nothing_changes_unless_it_is_told(chosen):
    assert with_properties(written(chosen)) == written(chosen)


@given(properties, st.booleans(), st.booleans(), st.booleans())
def test_only_what_is_told_changes(chosen, has_table, has_reply_to, expires):
    table = encode_table({"x": "y"}) if has_table else None
    changed = with_properties(
        written(chosen), table=table, reply_to=b"to" if has_reply_to else None, expires=expires
    )
    wanted = dict(chosen)
    wanted |= {"headers": {"x": "y"}} if has_table else {}
    wanted |= {"reply_to": "to"} if has_reply_to else {}
    if not expires:
        wanted.pop("expiration", None)
    assert read(changed) == read(written(wanted))


@given(properties, st.sampled_from(["BCC", "CC", "B"]))
def test_only_the_blind_copies_are_taken_out(chosen, name):
    headers = {**chosen.get("headers", {}), name: ["k"], "zz": 1}
    header = with_properties(written(chosen), table=encode_table(headers))
    kept = {key: value for key, value in headers.items() if key != "BCC"}
    assert open_header(header) == with_properties(written(chosen), table=encode_table(kept))
    assert open_header(written(chosen)) == written(chosen)


@given(properties)
def test_the_headers_are_found(chosen):
    assert decode_table(headers_table(written(chosen))) == chosen.get("headers", {})


@pytest.mark.parametrize(
    "broken", [b"", b"\0" * 13, written({"app_id": "x"})[:-1], b"\0" * 13 + b"\1"]
)
def test_what_is_no_content_header_is_refused(broken):
    with pytest.raises(ValueError, match="no content header"):
        with_properties(broken)
    with pytest.raises(ValueError, match="no content header"):
        headers_table(broken)
    with pytest.raises(ValueError, match="no content header"):
        open_header(broken)
