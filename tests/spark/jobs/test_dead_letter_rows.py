"""Rows of dead letters: what the broker wrote counts, what is forged or malformed does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.ports.contents import encode_properties, with_properties
from leveret.ports.records import RecordFlag
from leveret.ports.tables import Timestamp, encode_table
from leveret.spark.jobs.dead_letter_rows import DeadLetterRow, row_of_listed, row_of_record

DEAD = int(RecordFlag.DEAD_LETTERED | RecordFlag.HAS_HEADERS)
DEATH = {
    "count": 2,
    "reason": "rejected",
    "queue": b"work",
    "time": Timestamp(1_767_605_400),
    "exchange": b"orders",
    "routing-keys": [b"a", b"b"],
}
EARLIER = DEATH | {"reason": "expired", "queue": b"before"}
ROW = DeadLetterRow("rejected", "work", "orders", "a", 1_767_605_400_000)


def header(table):
    return with_properties(encode_properties({"headers": {"x": 1}}, 0), table=encode_table(table))


def test_the_latest_death_counts():
    assert row_of_record(DEAD, header({"n": 1, "x-death": [DEATH, EARLIER]})) == ROW


def test_what_a_publisher_wrote_is_no_death():
    assert row_of_record(int(RecordFlag.HAS_HEADERS), header({"x-death": [DEATH]})) == (
        DeadLetterRow()
    )


@pytest.mark.parametrize(
    "entries", [None, [], "rejected", 5, ["rejected"], {"reason": "rejected"}, [[DEATH]]]
)
def test_other_histories_are_malformed(entries):
    assert row_of_record(DEAD, header({"x-death": entries})).is_malformed


def test_missing_and_odd_fields_are_unknown():
    odd = {"reason": 5, "queue": b"\xff", "time": "noon", "routing-keys": []}
    assert row_of_record(DEAD, header({"x-death": [odd]})) == DeadLetterRow()
    late = {"x-death": [DEATH | {"time": Timestamp(1 << 62)}]}
    assert row_of_record(DEAD, header(late)).died_at_ms is None


@given(st.binary(max_size=60))
def test_any_header_is_a_row(data):
    assert isinstance(row_of_record(DEAD, data), DeadLetterRow)


@given(st.data())
def test_damaged_headers_are_rows(data):
    whole = bytearray(header({"x-death": [DEATH]}))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    row = row_of_record(DEAD, bytes(whole))
    assert all(value is None or isinstance(value, (str, int)) for value in row)


def test_listed_letters_are_the_same_rows():
    listed = {
        "reason": "rejected",
        "queue": "work",
        "exchange": "orders",
        "routing_keys": ["a", "b"],
        "died_at": 1_767_605_400_000,
    }
    assert row_of_listed(listed) == ROW
    assert row_of_listed({"routing_keys": []}) == DeadLetterRow()
