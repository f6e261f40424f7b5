"""Formatting of values for people: numbers, sizes, rates, times, and addresses of pages.

Pure functions, each a filter of the templates under its own name.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from leveret.mgmt_ui.api.problems import bad_request

__all__ = [
    "FILTERS",
    "ago",
    "as_json",
    "compact_json",
    "count",
    "duration",
    "epoch_ms",
    "field_time",
    "json_lines",
    "moment",
    "path",
    "rate",
    "share",
    "size",
    "with_query",
]

SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DURATION_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
NOTHING = "\u2013"  # a dash where there is no value


def count(value: float | None) -> str:
    """Format a number: `12 345`, with non-breaking spaces."""
    return NOTHING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def rate(per_second: float | None) -> str:
    """Format a rate per second: `0/s`, `0.3/s`, `1 234/s`."""
    if per_second is None:
        return NOTHING
    if per_second < 0.05:
        return "0/s"
    return f"{per_second:.1f}/s" if per_second < 10 else f"{count(per_second)}/s"


def size(octets: float | None) -> str:
    """Format a number of bytes: `17 B`, `1.5 KiB`, `20 MiB`."""
    if octets is None:
        return NOTHING
    unit = 0
    while abs(octets) >= 1000 and unit < len(SIZE_UNITS) - 1:
        octets, unit = octets / 1024, unit + 1
    digits = 0 if unit == 0 or abs(octets) >= 10 else 1
    return f"{octets:.{digits}f}\u00a0{SIZE_UNITS[unit]}"


def share(part: float | None) -> str:
    """Format a fraction: `0.25` is `25 %`."""
    return NOTHING if part is None else f"{part * 100:.0f}\u00a0%"


def duration(seconds: float | None) -> str:
    """Format seconds by the two largest units: `3 d 4 h`, `12 s`, `250 ms`."""
    if seconds is None:
        return NOTHING
    if 0 < seconds < 1:
        digits = 0 if seconds >= 0.01 else 2
        return f"{seconds * 1000:.{digits}f}\u00a0ms"
    rest = int(max(seconds, 0))
    parts: list[str] = []
    for unit, length in DURATION_UNITS:
        number, rest = divmod(rest, length)
        if number or (parts and len(parts) < 2):
            parts.append(f"{number}\u00a0{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0")) or "0\u00a0s"


def moment(epoch_ms: float | None) -> str:
    """Format a time: `2026-11-22 04:05:06 UTC`."""
    if epoch_ms is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a client's number, which no calendar has
        return f"{epoch_ms:.0f}\u00a0ms"


def ago(epoch_ms: float | None, now_ms: float) -> str:
    """Format the age of a time: `5 min 3 s`."""
    return NOTHING if epoch_ms is None else duration((now_ms - epoch_ms) / 1000)


def compact_json(value: Any) -> str:
    """Format an argument or setting: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_json(value: Any) -> str:
    """Format a value as JSON, for a form that sends it back."""
    return json.dumps(value, ensure_ascii=False)


def json_lines(value: Any) -> str:
    """Format a value as indented JSON for editing; empty if there is nothing in it."""
    return json.dumps(value, ensure_ascii=False, indent=2) if value else ""


def path(*segments: str) -> str:
    """Return the address of a page: `path("queues", "/", "a b")` is `/queues/%2F/a%20b`."""
    return "/" + "/".join(_segment(segment) for segment in segments)


def _segment(name: str) -> str:
    """Quote a path segment for `api.answers.Segment`; browsers would resolve `.` and `..`."""
    return f"{name};" if name in {".", ".."} else quote(name, safe="")


def with_query(address: str, **parameters: Any) -> str:
    """Return an address with the parameters that are not empty."""
    given = {name: value for name, value in parameters.items() if value not in (None, "", False)}
    return f"{address}?{urlencode(given)}" if given else address


FILTERS = (ago, as_json, compact_json, count, duration, json_lines, moment, rate, share, size)


def epoch_ms(text: str) -> int:
    """Return ms since 1970 of `2026-11-22T04:05` or `2026-11-22 04:05`. Raises ApiError 400."""
    try:
        moment = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        found = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise bad_request(f"{text} is not a time: use the format 2026-01-31 23:59") from None
    if found < 0:
        raise bad_request("times before 1970 are not supported")
    return found


def field_time(epoch_ms: float) -> str:
    """Return a time for a field of type `datetime-local`, with seconds."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
