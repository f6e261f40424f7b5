"""Delayed messages as their topic stores them: their ids, and their next due times.

The headers they were published with are their only state (see leveret.features.delay.rules); a
message that was rescheduled or repeated has the broker's id in them, if it had none. Pure
functions; used by `leveret.features.delay.delayed_messages` and `leveret.features.delay.schedules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.core.routing.message import raw_headers
from leveret.features.delay.rules import (
    BROKER_ID_PREFIX,
    SCHEDULE_ID,
    Repetition,
    read_repetition,
    schedule_id,
    schedule_owner,
    shown_headers,
)
from leveret.ports.contents import with_properties
from leveret.ports.records import RecordFlag
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from leveret.features.delay.store import PendingMessage
    from leveret.ports.tables import RawValue

__all__ = [
    "MARKED",
    "Draft",
    "ScheduleKey",
    "as_shown",
    "broker_id",
    "broker_offset",
    "full_key",
    "key_in",
    "next_occurrence",
    "own_key",
    "repetition_of",
    "rescheduled",
]

# Marks a record whose headers matter when it is due: it has an id, or is repeated.
MARKED = int(RecordFlag.WANTS_DELAY)
OFFSET_DIGITS_MAX = 19


class ScheduleKey(NamedTuple):
    """Key of a pending message: its id and the user that published it.

    The broker's ids have no owner, nor have those stored by an older release.
    """

    id: str
    owner: str = ""


class Draft(NamedTuple):
    """Message to be stored, with its key if it has an id."""

    due_ms: int
    flags: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    key: ScheduleKey | None


def broker_offset(id_: str) -> int | None:
    """Return the offset in an id of the broker's, `@7`; None for other ids."""
    digits = id_.removeprefix(BROKER_ID_PREFIX)
    if digits == id_ or not (
        digits.isascii() and digits.isdigit() and len(digits) <= OFFSET_DIGITS_MAX
    ):
        return None
    return int(digits)


def own_key(message: PendingMessage) -> ScheduleKey | None:
    """Return the id and owner in a message's headers, or None."""
    return key_in(raw_headers(message.header)) if message.flags & MARKED else None


def key_in(headers: dict[str, RawValue]) -> ScheduleKey | None:
    """Return the id and owner in headers, or None."""
    id_ = schedule_id(headers)
    return None if id_ is None else ScheduleKey(id_, schedule_owner(headers))


def full_key(message: PendingMessage) -> ScheduleKey:
    """Return the key of a message: its own id, or else the broker's."""
    return own_key(message) or ScheduleKey(broker_id(message))


def broker_id(message: PendingMessage) -> str:
    """Return the broker's id of a message, which is unique whatever ids users choose."""
    return f"{BROKER_ID_PREFIX}{message.offset}"


def as_shown(message: PendingMessage) -> PendingMessage:
    """Return a marked message as it is delivered."""
    headers = raw_headers(message.header)
    shown, _ = shown_headers(headers, None)
    if len(shown) == len(headers):
        return message
    return message._replace(header=with_properties(message.header, table=encode_table(shown)))


def repetition_of(message: PendingMessage) -> Repetition | None:
    """Return how a message is repeated, or None."""
    return read_repetition(raw_headers(message.header)) if message.flags & MARKED else None


def next_occurrence(message: PendingMessage, now_ms: int) -> Draft | None:
    """Return the next occurrence of a delivered message, or None."""
    repetition = repetition_of(message)
    after = None if repetition is None else repetition.after(message.due_ms, now_ms)
    if after is None:
        return None
    next_ms, left = after
    _, waiting = shown_headers(raw_headers(message.header), left)
    assert waiting is not None, "something is left of it"
    following = _redrafted(message, next_ms, waiting)
    return following._replace(flags=following.flags | RecordFlag.PUT_BACK)  # already checked


def rescheduled(message: PendingMessage, due_ms: int) -> Draft:
    """Return a message with another due time, under the same id."""
    return _redrafted(message, due_ms, raw_headers(message.header))


def _redrafted(message: PendingMessage, due_ms: int, headers: dict[str, RawValue]) -> Draft:
    key = full_key(message)
    table = encode_table({**headers, SCHEDULE_ID: key.id})
    header = with_properties(message.header, table=table)
    flags = message.flags | MARKED | RecordFlag.HAS_HEADERS
    return Draft(due_ms, flags, message.exchange, message.routing_key, header, message.body, key)
