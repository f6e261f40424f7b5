"""Start position of a stream's consumer: the consumer argument x-stream-offset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from leveret.ports.tables import Timestamp

STREAM_OFFSET = "x-stream-offset"  # the argument, and the header of each delivery

# As in RabbitMQ a month has 30 days and a year 365.
UNITS_MS = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}
# Written by people for retention: there a month in capitals would be easily mistaken for a minute.
DURATION = re.compile(r"([0-9]{1,18})([dhms])\Z", re.IGNORECASE)
# Longer numbers are invalid; Python refuses to parse very long ones anyway.
INTERVAL = re.compile(r"([0-9]{1,18})([YMDhms])\Z")


class Place(Enum):
    """Start position relative to the stream's contents."""

    FIRST = "first"  # the oldest message
    LAST = "last"  # the newest message
    NEXT = "next"  # messages published from now on


@dataclass(frozen=True, slots=True)
class FromOffset:
    """Start at this offset; messages removed by retention are skipped."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromAge:
    """Start at messages stored within this time before now."""

    age_ms: int


@dataclass(frozen=True, slots=True)
class FromTime:
    """Start at messages stored at this time or later, in ms since 1970."""

    time_ms: int


Start: TypeAlias = Place | FromOffset | FromAge | FromTime


def interval_ms(text: str) -> int | None:
    """Parse an interval such as `12h` or `30D`; None if invalid."""
    found = INTERVAL.match(text)
    return int(found[1]) * UNITS_MS[found[2]] if found else None


def duration_ms(value: Any) -> int | None:
    """Parse a duration: milliseconds, or a text such as `14d` or `12h`; None if invalid."""
    if isinstance(value, str):
        found = DURATION.match(value)
        if found is None:
            return None
        unit = found[2].lower()
        return int(found[1]) * UNITS_MS["D" if unit == "d" else unit]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


# Kafka's words, for consumer groups; consumers of streams have RabbitMQ's alone.
PLACES_OF_GROUPS = {
    **{place.value: place for place in Place},
    "earliest": Place.FIRST,
    "latest": Place.NEXT,
}


def parse_group_start(value: Any) -> Start | None:
    """Parse where a consumer group begins: as `parse_start`, or a word of Kafka."""
    if isinstance(value, str) and value in PLACES_OF_GROUPS:
        return PLACES_OF_GROUPS[value]
    return parse_start(value)


def parse_start(value: Any) -> Start | None:
    """Parse x-stream-offset; None if invalid."""
    if isinstance(value, str):
        return _parse_words(value)
    if isinstance(value, Timestamp):
        return FromTime(value * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return FromOffset(int(value))
    return None


def _parse_words(value: str) -> Start | None:
    if value in {place.value for place in Place}:
        return Place(value)
    age_ms = interval_ms(value)
    return None if age_ms is None else FromAge(age_ms)
