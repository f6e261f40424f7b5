"""Retry policy of a queue: valid values of the arguments that state it, and the delays in it.

Keys of policies are those of RETRY_ARGUMENTS; with `x-` in front they are arguments of queues.
Everything is a function of its arguments, randomness included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.core.settings.discard_reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAILURES", "RETRY_ARGUMENTS", "RetryPolicy", "retry_policy_of", "whole"]

# Ways in which a consumer fails a message, by the words of x-retry-on.
FAILURES: Final = {
    "reject": Reason.REJECTED,  # nack or reject without requeue
    "requeue": Reason.REQUEUED,
    "disconnect": Reason.DISCONNECTED,  # its channel or connection ended
    "timeout": Reason.TIMED_OUT,  # it did not acknowledge in time
}

# A year, as for delayed messages: a longer delay is a mistake in the unit.
DELAY_MS_MAX = 366 * 86_400_000
DELAYS_MAX = 100  # explicit delays; the last one is repeated
# No useful limit is higher: with long delays such a message would be retried for decades.
ATTEMPTS_MAX = 1_000_000
MULTIPLIER_MAX = 1000
# Defaults of a queue with retries.
DELAY_MS = 1000
MULTIPLIER = 2.0
ATTEMPTS = 16  # with the delay above, most of a day to repair the cause

DECIMAL: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)

Check: TypeAlias = "Callable[[Any], str | None]"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry policy of a queue. `delays_ms` are explicit; if empty, delays grow exponentially."""

    attempts_max: int = ATTEMPTS
    delays_ms: tuple[int, ...] = ()
    delay_ms: int = DELAY_MS
    multiplier: float = MULTIPLIER
    delay_ms_max: int = DELAY_MS_MAX
    jitter: float = 0.0  # random part of a delay, up or down, as a fraction
    on: frozenset[str] = frozenset({Reason.REJECTED})
    keeps_order: bool = False  # messages with the same key wait for a failed one

    def wait_ms(self, attempt: int, chance: float) -> int:
        """Return the delay before an attempt in ms, the first being 1; `chance` is in [0, 1)."""
        if self.delays_ms:
            delay: float = self.delays_ms[min(attempt, len(self.delays_ms)) - 1]
        else:
            try:
                delay = self.delay_ms * self.multiplier ** (attempt - 1)
            except OverflowError:
                delay = self.delay_ms_max
        delay = min(delay, self.delay_ms_max)
        return min(round(delay * (1 + self.jitter * (2 * chance - 1))), self.delay_ms_max)


def retry_policy_of(stated: Callable[[str], Any]) -> RetryPolicy | None:
    """Return a queue's retry policy, or None if it does not retry.

    `stated` returns the validated value of a key of RETRY_ARGUMENTS, or None.
    """
    values = {key: value for key in RETRY_ARGUMENTS if (value := stated(key)) is not None}
    if not values:
        return None
    delays = tuple(int(delay) for delay in values.get("retry-delays", ()))
    on = values.get("retry-on", ["reject"])
    return RetryPolicy(
        attempts_max=int(values.get("retry-max-attempts", len(delays) or ATTEMPTS)),
        delays_ms=delays,
        delay_ms=int(values.get("retry-delay", DELAY_MS)),
        multiplier=float(values.get("retry-multiplier", MULTIPLIER)),
        delay_ms_max=int(values.get("retry-max-delay", DELAY_MS_MAX)),
        jitter=float(values.get("retry-jitter", 0)),
        keeps_order=values.get("retry-keep-order") == "key",
        on=frozenset(FAILURES[word] for word in ([on] if isinstance(on, str) else on)),
    )


# -- validation: each check returns what is wrong with a value, or None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(minimum: int, maximum: int, what: str = "an integer") -> Check:
    """Return a check for an integer from `minimum` to `maximum`; `what` may name its unit."""
    problem = f'"expected {what} from {minimum} to {maximum}"'
    return lambda value: None if _is_integer(value) and minimum <= value <= maximum else problem


def _number(minimum: int, maximum: int) -> Check:
    problem = f'"expected a number from {minimum} to {maximum}"'

    def check(value: Any) -> str | None:
        number: Any = _decimal(value) if isinstance(value, str) else value
        is_number = _is_integer(number) or isinstance(number, (float, Decimal))
        return None if is_number and isfinite(number) and minimum <= number <= maximum else problem

    return check


def _decimal(text: str) -> Decimal | None:
    """Parse a decimal number from text, for clients that cannot send fractions; None if invalid."""
    return Decimal(text) if DECIMAL.fullmatch(text) else None


def _delays(value: Any) -> str | None:
    step = whole(0, DELAY_MS_MAX)
    if isinstance(value, list) and 1 <= len(value) <= DELAYS_MAX and not any(map(step, value)):
        return None
    return f'"expected a list of 1 to {DELAYS_MAX} times in milliseconds from 0 to {DELAY_MS_MAX}"'


def _on(value: Any) -> str | None:
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list) and words and all(_is_failure(word) for word in words):
        return None
    return f'"expected any of {", ".join(FAILURES)}"'


def _is_failure(word: Any) -> bool:
    return isinstance(word, str) and word in FAILURES


def _order(value: Any) -> str | None:
    return None if isinstance(value, str) and value == "key" else '"expected key"'


RETRY_ARGUMENTS: Final[dict[str, Check]] = {
    "retry-delays": _delays,
    "retry-delay": whole(0, DELAY_MS_MAX, "milliseconds"),
    "retry-multiplier": _number(1, MULTIPLIER_MAX),
    "retry-max-delay": whole(0, DELAY_MS_MAX, "milliseconds"),
    "retry-jitter": _number(0, 1),
    "retry-max-attempts": whole(0, ATTEMPTS_MAX),
    "retry-on": _on,
    "retry-keep-order": _order,
}
