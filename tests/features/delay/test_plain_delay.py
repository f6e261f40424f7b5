"""The short way of a plain delay says what the long way would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.errors import ChannelError
from leveret.features.delay.plain_delay import plain_delay
from leveret.features.delay.rules import kept_headers, read_schedule
from leveret.ports.contents import headers_table, with_properties
from leveret.ports.tables import RawValue, decode_raw_table, encode_table

NOW = 1_700_000_000_123
NAMES = (
    *("x-delay", "x-delays", "x-delay-level", "x-deliver-at", "x-repeat-every", "x-repeat-count"),
    *("x-cron", "x-schedule-id", "x-schedule-owner", "x-retry-delays", "x-tags", "a", "ä", ""),
)
INTEGERS = [
    b"I\0\0\0\5", b"I\0\1\0\0", b"i\x7f\xff\xff\xff", b"s\x13\x88", b"u\x13\x88", b"u\xff\xff",
    b"b\5", b"B\xff", b"l\0\0\0\0\0\0\0\1", b"L\0\0\0\0\x7f\xff\xff\xff",
]  # fmt: skip
OTHERS = [
    b"I\0\0\0\0", b"I\xff\xff\xff\xff", b"i\xff\xff\xff\xff", b"s\xff\xff", b"b\xff",
    b"l\0\0\0\1\0\0\0\0", b"l\0\0\0\0\xff\xff\xff\xff", b"l\xff\xff\xff\xff\xff\xff\xff\xff",
    b"S\0\0\0\0015", b"d\x40\x14\0\0\0\0\0\0", b"t\1", b"V", b"F\0\0\0\0", b"A\0\0\0\0",
    b"T\0\0\0\0\0\0\0\1",
]  # fmt: skip
VALUES = st.sampled_from([RawValue(value) for value in INTEGERS + OTHERS])


def content(table: dict[str, object]) -> bytes:
    properties = commands.Basic.Properties(delivery_mode=2, app_id="test", message_type="kind")
    plain = header.ContentHeader(0, 5, properties).marshal()
    return with_properties(plain, table=encode_table(table))


def long_way(stored: bytes) -> tuple[int, bytes] | None:
    headers = decode_raw_table(headers_table(stored))
    schedule = read_schedule(headers, NOW)
    table = encode_table(kept_headers(headers, schedule, "user"))
    assert schedule.delay_ms is not None
    assert (schedule.due_ms, schedule.id, schedule.repetition) == (
        NOW + schedule.delay_ms,
        None,
        None,
    )
    return schedule.delay_ms, with_properties(stored, table=table)


@given(
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5),
    st.sampled_from([*INTEGERS, b""]),
)
def test_it_says_what_the_long_way_says(table, delay):
    stored = content({**table, **({"x-delay": RawValue(delay)} if delay else {})})
    found = plain_delay(stored)
    assert found is None or found == long_way(stored)


@pytest.mark.parametrize("delay", INTEGERS)
@pytest.mark.parametrize("others", [{}, {"a": "text"}, {"x-tags": "t", "x-kind": 1.5, "": None}])
def test_a_plain_delay_takes_the_short_way(delay, others):
    for table in ({"x-delay": RawValue(delay), **others}, {**others, "x-delay": RawValue(delay)}):
        stored = content(table)
        assert plain_delay(stored) == long_way(stored)


@pytest.mark.parametrize("delay", OTHERS)
def test_what_is_no_plain_delay_takes_the_long_way(delay):
    assert plain_delay(content({"x-delay": RawValue(delay)})) is None


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"a": 1},
        {"x-delay": 5, "x-schedule-id": "one"},
        {"x-delay": 5, "x-repeat-every": 50},
        {"x-delay": 5, "nested": {"a": 1}},
        {"x-delay": 5, "ä": 1},
        {"x-delay": 5, **{f"h{i}": i for i in range(64)}},
        {"x-delay": 5, "long": "x" * 4096},
    ],
)
def test_more_than_a_plain_delay_takes_the_long_way(table):
    assert plain_delay(content(table)) is None


def test_a_delay_that_is_stated_twice_takes_the_long_way():
    once = encode_table({"x-delay": 5})[4:]
    twice = len(once * 2).to_bytes(4, "big") + once * 2
    assert plain_delay(with_properties(content({}), table=twice)) is None


@given(st.data())
def test_no_bytes_harm_it(data):
    stored = bytearray(content({"x-delay": 5, "a": "text", "b": 1.5}))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(stored[: data.draw(st.integers(0, len(stored)))])
    for damaged in (bytes(stored), cut):
        found = plain_delay(damaged)
        if found is not None:
            delay_ms, kept = found
            # The short way keeps both of two headers with the same name.
            table = encode_table(decode_raw_table(headers_table(kept)))
            try:
                assert (delay_ms, with_properties(kept, table=table)) == long_way(damaged)
            except (ChannelError, UnicodeDecodeError) as error:
                pytest.fail(f"the long way refuses {damaged!r}: {error}")
