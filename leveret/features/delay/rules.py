"""Due time of delayed and scheduled messages, computed from their headers.

    x-delay          milliseconds from now
    x-deliver-at     milliseconds since 1970, or an AMQP timestamp
    x-delay-level    1 to 18, an index into LEVELS_MS
    x-repeat-every   milliseconds from one delivery to the next
    x-cron           five fields in UTC; one delivery at each minute that they fit
    x-repeat-count   total number of deliveries
    x-repeat-until   latest time of a delivery: as x-deliver-at
    x-schedule-id    id of the schedule, unique for its publisher's user

A time in the past means now, except one before 2001, which is in seconds by mistake. Times and
an `x-delay` may also be text or a number with a fraction. An `x-delay` of zero or less is ignored:
RabbitMQ's plugin for delayed messages marks with a negative one that a message was delayed
before.

A waiting message keeps these headers, so that no other state is needed; `x-repeat-count` is then
the number of remaining deliveries, `x-schedule-owner` the user. A delivered message has none of
them, so that it can be published again with its headers as a message of its own: only
`x-from-schedule` names the schedule it came from. Called by
`leveret.features.delay.delayed_delivery`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cronsim import CronSim, CronSimError

from leveret.errors import ChannelError
from leveret.ports.fields import INT32_MAX
from leveret.ports.tables import RawValue, decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CRON",
    "DELAY",
    "DELAY_LEVEL",
    "DELIVER_AT",
    "LEVELS_MS",
    "REPEAT_COUNT",
    "REPEAT_EVERY",
    "REPEAT_UNTIL",
    "SCHEDULE_ID",
    "SCHEDULE_OWNER",
    "Repetition",
    "Schedule",
    "kept_headers",
    "read_repetition",
    "read_schedule",
    "schedule_id",
    "schedule_owner",
    "shown_headers",
]

DELAY, DELIVER_AT, DELAY_LEVEL = "x-delay", "x-deliver-at", "x-delay-level"
REPEAT_EVERY, REPEAT_COUNT, REPEAT_UNTIL = "x-repeat-every", "x-repeat-count", "x-repeat-until"
CRON, SCHEDULE_ID = "x-cron", "x-schedule-id"
SCHEDULE_OWNER, FROM_SCHEDULE = "x-schedule-owner", "x-from-schedule"
REPEATING = (REPEAT_EVERY, REPEAT_COUNT, REPEAT_UNTIL, CRON)
BEYOND_DELAY = frozenset({DELIVER_AT, DELAY_LEVEL, *REPEATING, SCHEDULE_ID})
NEVER_SHOWN = frozenset({*REPEATING, SCHEDULE_ID, SCHEDULE_OWNER})  # hidden from consumers

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
LEVELS_MS: Final = (
    *(SECOND_MS * seconds for seconds in (1, 5, 10, 30)),
    *(MINUTE_MS * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(HOUR_MS * hours for hours in (1, 2)),
)
# A year, leap years included: a longer delay is a mistake in the unit.
DELAY_MS_MAX: Final = 366 * DAY_MS
# A time before 2001 is in seconds, not milliseconds: it would be due at once, unnoticed.
MILLISECONDS_MIN: Final = 10**12
# RabbitMQ's plugin delivers at once what exceeds the range of its timers.
PLUGIN_DELAY_MS_MAX: Final = 2**32 - 1
# A message repeated at shorter intervals would be a flood.
REPEAT_EVERY_MS_MIN: Final = 10
REPEAT_COUNT_MAX: Final = 2**31 - 1
# As long as any other name; a longer cron expression would list every minute of a year.
SCHEDULE_ID_BYTES_MAX: Final = 255
CRON_BYTES_MAX: Final = 255
CRON_FIELDS: Final = 5
CRON_MEANING: Final = "it has five fields: minute, hour, day, month, day of the week"
BROKER_ID_PREFIX: Final = "@"  # ids with this prefix are assigned by the broker

INTEGERS, FRACTIONS, TEXT, TIMESTAMP = b"bBsuIilL", b"fdD", b"S", b"T"


@dataclass(frozen=True, slots=True)
class Repetition:
    """Repetition of a scheduled message; exactly one of `every_ms` and `cron` is set.

    `count` is the number of remaining deliveries, the coming one included; None: unlimited.
    """

    every_ms: int | None = None
    cron: str | None = None
    count: int | None = None
    until_ms: int | None = None

    def after(self, due_ms: int, now_ms: int) -> tuple[int, Repetition] | None:
        """Return the due time that follows `due_ms` and the repetition that remains.

        None if it ends. Deliveries missed between `due_ms` and `now_ms` are skipped: after a
        night's downtime nobody wants all its messages at once.
        """
        if self.count == 1:
            return None
        if self.every_ms is not None:
            missed = max(now_ms - due_ms, 0) // self.every_ms
            next_ms = due_ms + (missed + 1) * self.every_ms
        else:
            assert self.cron is not None, "there is something to go by"
            following = _next_match(self.cron, max(now_ms, due_ms))
            if following is None:
                return None
            next_ms = following
        if self.until_ms is not None and next_ms > self.until_ms:
            return None
        left = None if self.count is None else self.count - 1
        return next_ms, replace(self, count=left)


@dataclass(frozen=True, slots=True)
class Schedule:
    """First due time of a message and its repetition.

    `delay_ms` is the delay stated by `x-delay`, None otherwise.
    """

    due_ms: int
    id: str | None = None
    repetition: Repetition | None = None
    delay_ms: int | None = None

    def is_kept(self, now_ms: int) -> bool:
        """Whether the message must be stored until it is due, or for its repetition or id."""
        return self.due_ms > now_ms or self.repetition is not None or self.id is not None


def read_schedule(
    headers: Mapping[str, RawValue], now_ms: int, *, like_plugin: bool = False
) -> Schedule:
    """Return the schedule that a message's headers ask for. Raises ChannelError 406 if invalid.

    With `like_plugin`, an `x-delay` that RabbitMQ's plugin ignores is ignored as well.
    """
    delay_ms = _delay(headers, like_plugin=like_plugin)
    if BEYOND_DELAY.isdisjoint(headers) and (delay_ms or 0) <= DELAY_MS_MAX:  # the most common case
        return Schedule(now_ms + (delay_ms or 0), delay_ms=delay_ms)
    levels, at_ms = len(LEVELS_MS), _time(headers, DELIVER_AT)
    level = _integer_in(headers, DELAY_LEVEL, 1, levels, f"levels are 1 to {levels}")
    stated = {
        DELAY: None if delay_ms is None else now_ms + delay_ms,
        DELIVER_AT: at_ms,
        DELAY_LEVEL: None if level is None else now_ms + LEVELS_MS[level - 1],
    }
    given = {name: time for name, time in stated.items() if time is not None}
    if len(given) > 1:
        raise ChannelError(406, f"invalid headers: only one of {_listed(given)} can be stated")
    start_ms = next(iter(given.values()), None)
    if start_ms is not None and start_ms - now_ms > DELAY_MS_MAX:
        raise _invalid(next(iter(given)), "more than 366 days from now")
    repetition = read_repetition(headers)
    due_ms = max(start_ms or now_ms, now_ms)
    if repetition is not None:
        due_ms = _first_of(repetition, due_ms, stated=start_ms is not None)
    return Schedule(due_ms, _own_id(headers), repetition, delay_ms)


def read_repetition(headers: Mapping[str, RawValue]) -> Repetition | None:
    """Return a message's repetition, if any. Raises ChannelError 406 as `read_schedule`."""
    meaning = f"it is {REPEAT_EVERY_MS_MIN} ms to 366 days"
    every_ms = _integer_in(headers, REPEAT_EVERY, REPEAT_EVERY_MS_MIN, DELAY_MS_MAX, meaning)
    cron = _cron(headers)
    meaning = f"it is 1 to {REPEAT_COUNT_MAX}"
    count = _integer_in(headers, REPEAT_COUNT, 1, REPEAT_COUNT_MAX, meaning)
    until_ms = _time(headers, REPEAT_UNTIL)
    if every_ms is not None and cron is not None:
        names = _listed((REPEAT_EVERY, CRON))
        raise ChannelError(406, f"invalid headers: only one of {names} can be stated")
    if every_ms is None and cron is None:
        for name in (REPEAT_COUNT, REPEAT_UNTIL):
            if name in headers:
                raise _invalid(name, f"neither '{REPEAT_EVERY}' nor '{CRON}' is stated")
        return None
    return Repetition(every_ms, cron, count, until_ms)


def kept_headers(
    headers: Mapping[str, RawValue], schedule: Schedule, owner: str
) -> dict[str, RawValue]:
    """Return the headers that a message of the user `owner` has while it waits.

    The delay is replaced by a negative one, so that the delivered message can be published again as
    it is without being delayed again.
    """
    kept = dict(headers)
    kept.pop(DELAY_LEVEL, None)
    kept.pop(SCHEDULE_OWNER, None)
    if schedule.id is None:
        kept.pop(SCHEDULE_ID, None)
    else:
        kept[SCHEDULE_OWNER] = _text_value(owner)
    if schedule.delay_ms is not None:
        kept[DELAY] = _signed(-schedule.delay_ms)
    return kept


def shown_headers(
    headers: Mapping[str, RawValue], repetition: Repetition | None
) -> tuple[dict[str, RawValue], dict[str, RawValue] | None]:
    """Return the headers of a scheduled delivery, and those of the message that goes on waiting.

    `repetition` is what remains after this delivery; without one, the second value is None.
    """
    shown = {name: value for name, value in headers.items() if name not in NEVER_SHOWN}
    id_ = schedule_id(headers)
    if id_ is not None and not id_.startswith(BROKER_ID_PREFIX):
        shown[FROM_SCHEDULE] = headers[SCHEDULE_ID]
    if repetition is None:
        return shown, None
    waiting = dict(headers)
    if repetition.count is not None:
        waiting[REPEAT_COUNT] = _signed(repetition.count)
    return shown, waiting


def schedule_id(headers: Mapping[str, RawValue]) -> str | None:
    """Return the schedule id of a waiting message; None if it is absent or not text."""
    return _text_of(headers, SCHEDULE_ID)


def schedule_owner(headers: Mapping[str, RawValue]) -> str:
    """Return the user who owns a waiting message's id; empty if an older release stored it."""
    return _text_of(headers, SCHEDULE_OWNER) or ""


def _text_of(headers: Mapping[str, RawValue], name: str) -> str | None:
    raw = headers.get(name)
    if raw is None or raw[:1] != TEXT:
        return None
    value = decode_value(raw)
    return value if isinstance(value, str) else None


def _own_id(headers: Mapping[str, RawValue]) -> str | None:
    raw = headers.get(SCHEDULE_ID)
    if raw is None:
        return None
    value = schedule_id(headers)
    if value is None:
        raise _invalid(SCHEDULE_ID, f"it is text of 1 to {SCHEDULE_ID_BYTES_MAX} bytes")
    if not value or len(value.encode()) > SCHEDULE_ID_BYTES_MAX:
        raise _invalid(SCHEDULE_ID, f"it has 1 to {SCHEDULE_ID_BYTES_MAX} bytes")
    # The broker's own ids are ignored: earlier releases delivered messages that carry one.
    return None if value.startswith(BROKER_ID_PREFIX) else value


def _delay(headers: Mapping[str, RawValue], *, like_plugin: bool) -> int | None:
    raw = headers.get(DELAY)
    if raw is None:
        return None
    try:
        delay_ms = _lenient_integer(raw)
    except (ValueError, ArithmeticError):
        raise _invalid(DELAY, "it is no number of milliseconds") from None
    if delay_ms is None:
        if like_plugin:
            return None
        raise _invalid(DELAY, "it is no number of milliseconds")
    if like_plugin and delay_ms > PLUGIN_DELAY_MS_MAX:
        return None
    return delay_ms if delay_ms > 0 else None


def _lenient_integer(raw: RawValue) -> int | None:
    """Return the integer in an integer of any width, a fractional number or text; else None.

    Raises ValueError for text that is not a decimal integer.
    """
    letter = raw[:1]
    if letter in INTEGERS:
        return _integer(raw)
    value: Any = decode_value(raw)
    if letter in FRACTIONS:
        return int(value)
    if letter not in TEXT:
        return None
    # Python's int() accepts more, e.g. underscores, which no other program takes as a number.
    digits = value.removeprefix("-") if isinstance(value, str) else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise ValueError
    return int(value)


def _integer_in(
    headers: Mapping[str, RawValue], name: str, first: int, last: int, meaning: str
) -> int | None:
    """Return an integer header of `first` to `last`; `meaning` is the error's text for others."""
    raw = headers.get(name)
    if raw is None:
        return None
    value = _integer(raw)
    if value is None:
        raise _invalid(name, f"it is no integer; {meaning}")
    if not first <= value <= last:
        raise _invalid(name, meaning)
    return value


def _cron(headers: Mapping[str, RawValue]) -> str | None:
    raw = headers.get(CRON)
    if raw is None:
        return None
    expression = decode_value(raw) if raw[:1] == TEXT else None
    if not isinstance(expression, str):
        raise _invalid(CRON, f"it is no text; {CRON_MEANING}")
    if len(expression.encode()) > CRON_BYTES_MAX:
        raise _invalid(CRON, f"it is longer than {CRON_BYTES_MAX} bytes")
    if len(expression.split()) != CRON_FIELDS:
        raise _invalid(CRON, CRON_MEANING)
    try:
        CronSim(expression, datetime(1970, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError) as error:
        raise _invalid(CRON, str(error)) from None
    return expression


def _time(headers: Mapping[str, RawValue], name: str) -> int | None:
    """Return a time header in ms since 1970; an AMQP timestamp counts seconds."""
    raw = headers.get(name)
    if raw is None:
        return None
    if raw[:1] == TIMESTAMP:
        return int.from_bytes(raw[1:]) * SECOND_MS
    try:
        time_ms = _lenient_integer(raw)
    except (ValueError, ArithmeticError):
        raise _invalid(name, "it is no number of milliseconds") from None
    if time_ms is None:
        raise _invalid(name, "it is no number of milliseconds, and no timestamp")
    if 0 < time_ms < MILLISECONDS_MIN:
        year = datetime.fromtimestamp(time_ms // SECOND_MS, UTC).year
        raise _invalid(name, f"{time_ms} is in {year}: it is milliseconds since 1970")
    return time_ms


def _first_of(repetition: Repetition, due_ms: int, *, stated: bool) -> int:
    """Return the first due time of a repeated message. Raises ChannelError 406."""
    if repetition.cron is not None:
        # A stated start that matches the expression is itself the first due time.
        first_ms = _next_match(repetition.cron, due_ms - 1 if stated else due_ms)
        if first_ms is None:
            raise _invalid(CRON, "no time fits it")
        due_ms = first_ms
    if repetition.until_ms is not None and repetition.until_ms < due_ms:
        raise _invalid(REPEAT_UNTIL, "it is before the first delivery")
    return due_ms


def _next_match(expression: str, after_ms: int) -> int | None:
    """Return the first minute after a time that matches a cron expression.

    None if none in 50 years.
    """
    try:
        after = datetime.fromtimestamp(after_ms // SECOND_MS, UTC)
        match = next(CronSim(expression, after), None)
    except (ValueError, OverflowError, OSError):  # beyond the calendar's end
        return None
    return None if match is None else int(match.timestamp()) * SECOND_MS


def _integer(raw: RawValue) -> int | None:
    if raw[:1] not in INTEGERS:
        return None
    value = decode_value(raw)
    return value if isinstance(value, int) else None


def _signed(value: int) -> RawValue:
    """Encode an integer as signed 32 bits if it fits, else 64, as clients read most easily."""
    if -INT32_MAX <= value <= INT32_MAX:
        return RawValue(b"I" + struct.pack(">i", value))
    return RawValue(b"l" + struct.pack(">q", value))


def _text_value(value: str) -> RawValue:
    encoded = value.encode(errors="surrogateescape")
    return RawValue(TEXT + struct.pack(">I", len(encoded)) + encoded)


def _invalid(name: str, problem: str) -> ChannelError:
    return ChannelError(406, f"invalid header '{name}': {problem}")


def _listed(names: Mapping[str, object] | tuple[str, ...]) -> str:
    *others, last = (f"'{name}'" for name in names)
    return f"{', '.join(others)} and {last}"
