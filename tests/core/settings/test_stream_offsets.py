"""Values of x-stream-offset."""

import pytest

from leveret.core.settings.stream_offsets import (
    FromAge,
    FromOffset,
    FromTime,
    Place,
    interval_ms,
    parse_start,
)
from leveret.ports.fields import WireInteger
from leveret.ports.tables import Timestamp

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1s", 1000),
        ("90m", 5_400_000),
        ("12h", DAY_MS // 2),
        ("7D", 7 * DAY_MS),
        ("2M", 60 * DAY_MS),
        ("1Y", 365 * DAY_MS),
        ("0s", 0),
        ("007D", 7 * DAY_MS),
    ],
)
def test_intervals(text, ms):
    assert interval_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "s", "1", "1d", "-1s", "1.5h", " 1h", "1h\n", "9" * 5000 + "s"]
)
def test_what_is_no_interval(text):
    assert interval_ms(text) is None
    assert parse_start(text) is None


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("first", Place.FIRST),
        ("last", Place.LAST),
        ("next", Place.NEXT),
        ("1h", FromAge(3_600_000)),
        (0, FromOffset(0)),
        (2**62, FromOffset(2**62)),
        (WireInteger(5, "long"), FromOffset(5)),
        (Timestamp(1_700_000_000), FromTime(1_700_000_000_000)),
    ],
)
def test_places_to_begin(value, start):
    assert parse_start(value) == start


@pytest.mark.parametrize("value", [-1, True, 1.5, None, b"\xff", ["first"], {}, "First"])
def test_what_is_no_place_to_begin(value):
    assert parse_start(value) is None
