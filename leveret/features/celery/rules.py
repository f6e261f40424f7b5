"""Due time of a Celery task: the header `eta` of its message.

Celery's clients write an ETA, or a countdown turned into one, as an ISO 8601 time into a header of
the message (protocol 2); a worker takes such a message at once and holds it until then. A queue
with `x-celery-eta` delays the message itself. A time without an offset is UTC, as in Celery unless
an application turns that off.
"""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ETA", "TEXT_BYTES_MAX", "due_ms"]

ETA = "eta"
TEXT_BYTES_MAX = 64  # no valid time is longer
MICROSECONDS_PER_MS = 1000


def due_ms(text: str) -> int | None:
    """Return an ETA in ms since 1970, rounded up; None if it is not a valid time.

    An invalid header is ignored, not refused: it is the application's.
    """
    if len(text) > TEXT_BYTES_MAX:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-microseconds // MICROSECONDS_PER_MS)
