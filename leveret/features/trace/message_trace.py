"""Trace of one message, as far as the broker has recorded it.

A record holds its publish address and time; its headers hold deaths
(leveret.features.dead_letter.rules) and failures after which it was retried
(leveret.features.retry.rules). From these `trace_steps` makes steps, the oldest first. Headers of
this kind written by a client are not trusted: the caller says which of them the broker has written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.features.dead_letter import rules as deaths
from leveret.features.retry import rules as retry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DEAD_LETTERED",
    "DIED",
    "FAILED",
    "PUBLISHED",
    "STORED",
    "WAITING",
    "TraceStep",
    "sentences",
    "trace_steps",
]

PUBLISHED = "published"  # by a client
FAILED = "failed"  # in a queue with retries: `count` times, the last time for `reason` at `time_ms`
DIED = "died"  # in `queue` for `reason`, `count` times, the first time at `time_ms`
DEAD_LETTERED = "dead-lettered"  # published by the broker, after it died
STORED = "stored"  # written to `queue`
WAITING = "waiting"  # delayed, or prepared and undecided: later to go to `queue`, or to be routed


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step in the trace of a message. Fields that do not apply or are unknown are None."""

    kind: str
    time_ms: int | None = None  # since 1970; for deaths and failures in whole seconds
    exchange: str | None = None
    routing_keys: tuple[str, ...] | None = None
    queue: str | None = None
    reason: str | None = None
    count: int | None = None


def trace_steps(
    stored: TraceStep,
    exchange: str,
    routing_key: str,
    headers: Mapping[str, Any],
    *,
    is_dead_letter: bool,
    is_retried: bool,
) -> list[TraceStep]:
    """Return the steps of a message that was published with this address and is now `stored`.

    `headers` are decoded. Deaths in them count only with `is_dead_letter`, failures only with
    `is_dead_letter` or `is_retried`: otherwise a client wrote them.
    """
    died = _deaths(headers) if is_dead_letter else []
    between = [*(_failures(headers) if is_dead_letter or is_retried else ()), *died]
    between.sort(key=lambda step: step.time_ms or 0)
    if not died:
        # Its storage time is its publish time unless it was retried.
        came_ms = None if between else stored.time_ms
        return [TraceStep(PUBLISHED, came_ms, exchange, (routing_key,)), *between, stored]
    first = min(died, key=lambda step: step.time_ms or 0)
    return [
        TraceStep(PUBLISHED, None, first.exchange, first.routing_keys),
        *between,
        TraceStep(DEAD_LETTERED, None, exchange, (routing_key,)),
        stored,
    ]


def _deaths(headers: Mapping[str, Any]) -> list[TraceStep]:
    """Return the deaths in the headers as steps, oldest first."""
    return [
        TraceStep(
            DIED,
            _milliseconds(entry.get("time")),
            _text(entry.get("exchange")),
            tuple(map(str, _list(entry.get("routing-keys")))),
            _text(entry.get("queue")),
            _text(entry.get("reason")),
            _number(entry.get("count")),
        )
        for entry in reversed(_list(headers.get(deaths.DEATHS)))
        if isinstance(entry, dict)
    ]


def _failures(headers: Mapping[str, Any]) -> list[TraceStep]:
    """Return the failures as one step: only their count and the last time and reason are known."""
    count, reason = _number(headers.get(retry.COUNT)), _text(headers.get(retry.REASON))
    if not count or reason is None:
        return []
    return [
        TraceStep(FAILED, _milliseconds(headers.get(retry.LAST_AT)), reason=reason, count=count)
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _milliseconds(seconds: Any) -> int | None:
    return None if (number := _number(seconds)) is None else number * 1000


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# -- for people


def sentences(told: Mapping[str, Any]) -> list[tuple[int | None, str]]:
    """Return (ms since 1970, sentence) of each step of a `message.trace` result and of now."""
    steps = [(step.get("time_ms"), _sentence(step, told)) for step in told["steps"]]
    return [*steps, (told.get("due_ms"), _now(told))]


KEPT = {
    "retry": "to be retried",
    "eta": "until its ETA",
    "scheduled": "until it is due",
    "prepared": "until it is committed or rolled back",
}


def _sentence(step: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    times = "once" if step.get("count") == 1 else f"{step.get('count')} times"
    match step["step"]:
        case "published":
            return f"Published to {_where(step)}"
        case "failed":
            return f"Failed {times} and was retried, last failure: {step['reason']}"
        case "died":
            return f"Dead-lettered from queue {step.get('queue')} {times}: {step.get('reason')}"
        case "dead-lettered":
            return f"Dead-lettered to {_where(step)}"
        case "waiting":
            return f"Kept as {told['id']}, {KEPT[told['state']]}"
        case _:
            return f"Stored in queue {told['queue']} as offset {told['offset']}"


def _where(step: Mapping[str, Any]) -> str:
    exchange = step.get("exchange")
    keys = ", ".join(step.get("routing_keys") or ())
    return f"{f'exchange {exchange}' if exchange else 'the default exchange'} with key {keys!r}"


NOW = {
    "ready": "Ready: waiting for a consumer",
    "delayed": "Delayed: requeued with a delay",
    "settled": "Settled: acknowledged, expired, moved or deleted",
    "retry": "Then retried in queue {queue}",
    "eta": "Then published to queue {queue}",
    "scheduled": "Then routed",
    "prepared": "Prepared: neither committed nor rolled back",
}


def _now(told: Mapping[str, Any]) -> str:
    holder = told["holder"]
    if told["state"] in NOW:
        return NOW[told["state"]].format(queue=told["queue"])
    if holder is None:
        return "Delivered and not settled yet"
    consumer = holder["consumer_tag"]
    who = "a basic.get" if consumer is None else f"consumer {consumer}"
    return (
        f"Delivered to {who} on channel {holder['channel']} of {holder['connection']} "
        f"(user {holder['user']}), not settled yet"
    )
