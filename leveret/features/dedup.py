"""How long a message counts as seen: what `x-dedup-window` may be, and what it means.

`true` is the usual window, a number is one of so many milliseconds. Time counts from the message
that was taken; a duplicate does not prolong it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["WINDOW_MS", "WINDOW_MS_MAX", "is_window", "window_ms"]

# As in the queues of a large cloud provider, whose users expect it.
WINDOW_MS: Final = 5 * 60_000
# A day: what is sent again after that was not sent again by a program that waits for a confirm.
WINDOW_MS_MAX: Final = 24 * 60 * 60_000


def is_window(value: object) -> bool:
    """Whether a value can be a window: true, or milliseconds."""
    if isinstance(value, bool):
        return value
    return isinstance(value, int) and 1 <= value <= WINDOW_MS_MAX


def window_ms(value: object) -> int | None:
    """The window in milliseconds; None where nothing is stated."""
    if value is None:
        return None
    return WINDOW_MS if value is True else int(value)  # type: ignore[call-overload]
