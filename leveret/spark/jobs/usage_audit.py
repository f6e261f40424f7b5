"""Comparison of the broker's counters of usage with what the queues' logs have.

The broker counts messages when they are written to a queue, by the hour; a log has the messages
themselves, with the time of each, and numbers them from 0 on. So there are two ways to check:

- **by queue**: all that was ever counted must be as many as there are offsets. Retention does not
  matter: offsets tell how many messages there were.
- **by hour**: what was counted must be as many as the messages in the log, unless retention has
  removed some of the hour.

What is written at the very turn of an hour may count for one hour and be stored in the other:
neighbouring hours make up for each other then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "RECORD_BYTES",
    "Agreement",
    "HourlyUsage",
    "LoggedHour",
    "LoggedQueue",
    "QueueAudit",
    "audit_queues",
    "differing",
    "usage_by_hour",
]

HOUR_S: Final = 3600
RECORD_BYTES: Final = 26  # of a stored message besides content header, body, exchange, routing key


class Agreement(StrEnum):
    """Result of a comparison."""

    AGREES = "agrees"
    REMOVED = "partly removed"  # by retention: the log has less than was counted
    SHIFTED = "turn of the hour"  # a neighbouring hour makes up for it
    DIFFERS = "differs"
    NOT_COMPARED = ""  # no log that can be read, or of a user or a virtual host


class LoggedHour(NamedTuple):
    """Messages of one hour in a queue's log, and their bytes as the broker counts them."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LoggedQueue:
    """Content of a queue's log.

    `ends` are the numbers of messages ever stored, before and after the counters were asked;
    `removed_until` is the hour, in seconds since 1970, up to which messages may be missing.
    """

    ends: tuple[int, int]
    readable: int
    removed_until: int | None = None
    hours: Mapping[int, LoggedHour] = field(default_factory=dict)


class HourlyUsage(NamedTuple):
    """Row of the table of usage: an hour of a virtual host, a user or a queue."""

    hour: int  # seconds since 1970
    subject: str
    vhost: str
    name: str
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    log_messages: int | None = None
    log_bytes: int | None = None
    comparison: str = Agreement.NOT_COMPARED


class QueueAudit(NamedTuple):
    """Comparison of all that was counted for a queue with all that its log has ever had."""

    queue: str
    counted: int
    stored: int
    readable: int
    difference: int
    comparison: str


def usage_by_hour(
    counted: Iterable[Mapping[str, Any]], logged: Mapping[str, LoggedQueue], vhost: str
) -> list[HourlyUsage]:
    """Return a row for each hour that has something, counted or in a log.

    `counted` are the broker's records of usage, of the hours that were read of the logs.
    """
    counters = {
        (row["hour"], row["subject"], row["vhost"], row["name"]): HourlyUsage(
            *(row[name] for name in HourlyUsage._fields[:8])
        )
        for row in counted
    }
    for name, queue in logged.items():
        for hour in queue.hours:
            key = (hour, "queue", vhost, name)
            counters.setdefault(key, HourlyUsage(*key, 0, 0, 0, 0))
    differences = {
        (row.name, row.hour): row.messages_in - _in_log(logged[row.name], row.hour).messages
        for row in counters.values()
        if row.subject == "queue" and row.name in logged
    }
    last = max((row.hour for row in counters.values()), default=0)
    return [
        _compared(row, logged[row.name], differences, is_last=row.hour == last)
        if (row.name, row.hour) in differences and row.subject == "queue"
        else row
        for _, row in sorted(counters.items())
    ]


def _compared(
    row: HourlyUsage,
    queue: LoggedQueue,
    differences: Mapping[tuple[str, int], int],
    *,
    is_last: bool,
) -> HourlyUsage:
    """Return the row of a queue with what its log has."""
    here = differences[row.name, row.hour]
    beside = [differences.get((row.name, row.hour + step), 0) for step in (-HOUR_S, HOUR_S)]
    meanwhile = queue.ends[1] - queue.ends[0] if is_last else 0
    if 0 <= here <= meanwhile:
        found = Agreement.AGREES
    elif here > 0 and queue.removed_until is not None and row.hour <= queue.removed_until:
        found = Agreement.REMOVED
    elif -here in beside:
        found = Agreement.SHIFTED
    else:
        found = Agreement.DIFFERS
    in_log = _in_log(queue, row.hour)
    return row._replace(log_messages=in_log.messages, log_bytes=in_log.bytes, comparison=found)


def _in_log(queue: LoggedQueue, hour: int) -> LoggedHour:
    return queue.hours.get(hour, LoggedHour(0, 0))


def audit_queues(
    counted: Iterable[Mapping[str, Any]], logged: Mapping[str, LoggedQueue]
) -> list[QueueAudit]:
    """Return the comparison of each queue's log with all the broker's records of usage."""
    totals = dict.fromkeys(logged, 0)
    for row in counted:
        if row["subject"] == "queue" and row["name"] in totals:
            totals[row["name"]] += row["messages_in"]
    return [_audited(name, totals[name], queue) for name, queue in sorted(logged.items())]


def _audited(name: str, counted: int, queue: LoggedQueue) -> QueueAudit:
    before, after = queue.ends
    stored = min(max(counted, before), after)  # what came meanwhile may be counted or not
    agreement = Agreement.AGREES if counted == stored else Agreement.DIFFERS
    return QueueAudit(name, counted, stored, queue.readable, counted - stored, agreement)


def differing(rows: Sequence[HourlyUsage]) -> list[HourlyUsage]:
    """Return the hours of which counters and log do not agree."""
    return [row for row in rows if row.comparison == Agreement.DIFFERS]
