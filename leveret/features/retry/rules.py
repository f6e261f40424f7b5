"""Retries: what the headers of a message say about them.

A queue has a retry policy (leveret.core.settings.retry_policy). A message's own headers
`x-retry-delays` and `x-retry-max-attempts` override it. The broker records a message's failures in
its headers:

    x-retry-count           number of retries
    x-first-failure-at      timestamp
    x-last-failure-at       timestamp
    x-last-failure-reason   one of FAILURES, there
    x-original-offset       offset at which the queue's log has it as it was published
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from leveret.core.settings.retry_policy import RETRY_ARGUMENTS
from leveret.ports.tables import MalformedFieldError, Timestamp, decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.settings.retry_policy import RetryPolicy
    from leveret.ports.tables import RawValue

__all__ = [
    "FIRST_AT",
    "HEADERS",
    "MESSAGE_HEADERS",
    "Attempts",
    "attempts_of",
    "failed_headers",
    "message_retry_policy",
    "without_attempts",
]

COUNT, FIRST_AT, LAST_AT, REASON, ORIGINAL = HEADERS = (
    "x-retry-count",
    "x-first-failure-at",
    "x-last-failure-at",
    "x-last-failure-reason",
    "x-original-offset",
)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Failures of a message as recorded by the broker. Times are seconds since 1970.

    `original` is the offset of the record that was published; None: it is not recorded.
    """

    count: int = 0
    first_at: int | None = None
    original: int | None = None


def message_retry_policy(retry_policy: RetryPolicy, headers: Mapping[str, RawValue]) -> RetryPolicy:
    """Return the queue's retry policy with the overrides of a message's validated headers."""
    delays, attempts = (
        decode_value(headers[name]) if name in headers else None for name in MESSAGE_HEADERS
    )
    if isinstance(delays, list):
        stated = tuple(delay for delay in delays if isinstance(delay, int))
        retry_policy = replace(retry_policy, delays_ms=stated, attempts_max=len(stated))
    if isinstance(attempts, int):
        retry_policy = replace(retry_policy, attempts_max=attempts)
    return retry_policy


def attempts_of(headers: Mapping[str, RawValue]) -> Attempts:
    """Parse the failures that the broker has recorded in a message's headers."""
    count, first_at, original = (
        decode_value(headers[name]) if name in headers else None
        for name in (COUNT, FIRST_AT, ORIGINAL)
    )
    return Attempts(
        count if isinstance(count, int) else 0,
        int(first_at) if isinstance(first_at, int) else None,
        original if isinstance(original, int) else None,
    )


def failed_headers(
    headers: Mapping[str, RawValue], attempts: Attempts, reason: str, now_s: int
) -> dict[str, Any]:
    """Return the headers of a message that has failed again after `attempts.count` retries."""
    first_at = now_s if attempts.first_at is None else attempts.first_at
    original = {} if attempts.original is None else {ORIGINAL: attempts.original}
    return {
        **headers,
        **original,
        COUNT: attempts.count,
        FIRST_AT: Timestamp(first_at),
        LAST_AT: Timestamp(now_s),
        REASON: reason,
    }


def without_attempts(headers: Mapping[str, RawValue]) -> dict[str, Any]:
    """Return a message's headers without recorded failures, to start its retries afresh."""
    return {name: value for name, value in headers.items() if name not in HEADERS}


MESSAGE_HEADERS: Final = {
    f"x-{key}": RETRY_ARGUMENTS[key] for key in ("retry-delays", "retry-max-attempts")
}


def header_problem(headers: Mapping[str, RawValue]) -> str | None:
    """Return what is wrong with a message's retry headers, in words for its publisher, or None."""
    for name, check in MESSAGE_HEADERS.items():
        if name in headers:
            try:
                problem = check(decode_value(headers[name]))
            except MalformedFieldError as error:
                problem = f'"{error}"'
            if problem is not None:
                return f"invalid header '{name}': {problem}"
    return None
