"""Dead letters as rows: what the header `x-death` of a message tells of its latest death.

The history is trusted only where the broker has written it, which a flag of the record says: an
`x-death` of a publisher is no death. What is malformed is counted as such. The rules are those of
the page of dead letters (leveret.features.dead_letter).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.ports.contents import headers_table
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_raw_table, decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DeadLetterRow", "row_of_listed", "row_of_record"]

DEATHS: Final = "x-death"
DEAD_LETTERED: Final = int(RecordFlag.DEAD_LETTERED)
TIME_MS_MAX: Final = 253_402_300_799_999  # the end of year 9999: later times are no dates


class DeadLetterRow(NamedTuple):
    """Latest death of a message. What is not known is None; a time is milliseconds since 1970."""

    reason: str | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    died_at_ms: int | None = None
    is_malformed: bool = False


NO_DEATH: Final = DeadLetterRow()
MALFORMED: Final = DeadLetterRow(is_malformed=True)


def row_of_record(flags: int, header: bytes) -> DeadLetterRow:
    """Return the row of a record of a log, from its flags and its content header."""
    if not flags & DEAD_LETTERED:
        return NO_DEATH
    try:
        raw = decode_raw_table(headers_table(header)).get(DEATHS)
        entries = None if raw is None else decode_value(raw)
    except (MalformedFieldError, ValueError):
        return MALFORMED
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        return MALFORMED
    latest: Mapping[str, Any] = entries[0]
    time = latest.get("time")
    return DeadLetterRow(
        _text(latest.get("reason")),
        _text(latest.get("queue")),
        _text(latest.get("exchange")),
        _first(latest.get("routing-keys")),
        _time_ms(time * 1000) if isinstance(time, int) else None,
    )


def row_of_listed(listed: Mapping[str, Any]) -> DeadLetterRow:
    """Return the row of a dead letter as `/api/leveret/dead-letters` lists it."""
    return DeadLetterRow(
        _text(listed.get("reason")),
        _text(listed.get("queue")),
        _text(listed.get("exchange")),
        _first(listed.get("routing_keys")),
        _time_ms(listed.get("died_at")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _first(keys: object) -> str | None:
    return str(keys[0]) if isinstance(keys, list) and keys else None


def _time_ms(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= TIME_MS_MAX else None
