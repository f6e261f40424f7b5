"""Times in forms: in UTC, as pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

from leveret.mgmt_ui.api.problems import bad_request

__all__ = ["epoch_ms", "field_time"]


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
