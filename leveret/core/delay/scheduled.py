"""One delayed message as its topic keeps it: what it is called, when it is due again.

The headers that it was published with say all there is to know (see leveret.features.delay); one
that was rescheduled or has repeated itself carries the broker's id for it, if it had none. Pure;
used by `leveret.core.delay.delayed_messages` and `leveret.core.delay.schedules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.features.delay import (
    BROKER_ID_PREFIX,
    SCHEDULE_ID,
    Repetition,
    read_repetition,
    schedule_id,
    schedule_owner,
    shown_headers,
)
from leveret.ports.contents import headers_table, with_properties
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_raw_table, encode_table

if TYPE_CHECKING:
    from leveret.core.delayed_store.store import PendingMessage
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
    "raw_headers",
    "repetition_of",
    "rescheduled",
]

# Marks a record of the topic whose headers matter when it is due: it has an id, or repeats itself.
MARKED = int(RecordFlag.WANTS_DELAY)
OFFSET_DIGITS_MAX = 19


class ScheduleKey(NamedTuple):
    """What a pending message is known by: its id, among those of the user that published it.

    The broker's ids have no owner, nor have those that an older release has kept.
    """

    id: str
    owner: str = ""


class Draft(NamedTuple):
    """A message to be kept: what is stored of it, and what its headers let it be known by."""

    due_ms: int
    flags: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    key: ScheduleKey | None


def broker_offset(id_: str) -> int | None:
    """The offset that an id of the broker's names: `@7`."""
    digits = id_.removeprefix(BROKER_ID_PREFIX)
    if digits == id_ or not (
        digits.isascii() and digits.isdigit() and len(digits) <= OFFSET_DIGITS_MAX
    ):
        return None
    return int(digits)


def own_key(message: PendingMessage) -> ScheduleKey | None:
    """The id in a message's headers, with its owner."""
    return key_in(raw_headers(message.header)) if message.flags & MARKED else None


def key_in(headers: dict[str, RawValue]) -> ScheduleKey | None:
    """The same, from headers."""
    id_ = schedule_id(headers)
    return None if id_ is None else ScheduleKey(id_, schedule_owner(headers))


def full_key(message: PendingMessage) -> ScheduleKey:
    """What a message is found by: its own id, or else the broker's."""
    return own_key(message) or ScheduleKey(broker_id(message))


def broker_id(message: PendingMessage) -> str:
    """The id that names one message only, whatever ids users give theirs."""
    return f"{BROKER_ID_PREFIX}{message.offset}"


def as_shown(message: PendingMessage) -> PendingMessage:
    """A marked message as it is delivered."""
    headers = raw_headers(message.header)
    shown, _ = shown_headers(headers, None)
    if len(shown) == len(headers):
        return message
    return message._replace(header=with_properties(message.header, table=encode_table(shown)))


def repetition_of(message: PendingMessage) -> Repetition | None:
    """How a message repeats itself, if it does."""
    return read_repetition(raw_headers(message.header)) if message.flags & MARKED else None


def next_occurrence(message: PendingMessage, now_ms: int) -> Draft | None:
    """What is kept of a message after it was delivered, if it is to be delivered again."""
    repetition = repetition_of(message)
    after = None if repetition is None else repetition.after(message.due_ms, now_ms)
    if after is None:
        return None
    next_ms, left = after
    _, waiting = shown_headers(raw_headers(message.header), left)
    assert waiting is not None, "something is left of it"
    following = _redrafted(message, next_ms, waiting)
    return following._replace(flags=following.flags | RecordFlag.PUT_BACK)  # it was checked once


def rescheduled(message: PendingMessage, due_ms: int) -> Draft:
    """The same message, due at another time, under the same id."""
    return _redrafted(message, due_ms, raw_headers(message.header))


def _redrafted(message: PendingMessage, due_ms: int, headers: dict[str, RawValue]) -> Draft:
    key = full_key(message)
    table = encode_table({**headers, SCHEDULE_ID: key.id})
    header = with_properties(message.header, table=table)
    flags = message.flags | MARKED | RecordFlag.HAS_HEADERS
    return Draft(due_ms, flags, message.exchange, message.routing_key, header, message.body, key)


def raw_headers(header: bytes) -> dict[str, RawValue]:
    """The headers of a stored message; none where they make no sense."""
    try:
        return decode_raw_table(headers_table(header))
    except MalformedFieldError:
        return {}  # whoever took the message could read them
