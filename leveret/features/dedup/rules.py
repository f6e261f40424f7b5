"""De-duplication windows: valid values of `x-dedup-window`, and their meaning.

`true` is the default window, a number is one in milliseconds. The window begins when the message
was accepted; a duplicate does not extend it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["WINDOW_MS", "WINDOW_MS_MAX", "is_window", "window_ms"]

# As in the FIFO queues of a large cloud provider, whose users expect it.
WINDOW_MS: Final = 5 * 60_000
# A day: later repetitions do not come from a program that is waiting for a confirm.
WINDOW_MS_MAX: Final = 24 * 60 * 60_000


def is_window(value: object) -> bool:
    """Whether a value is a valid window: true, or a number of milliseconds."""
    if isinstance(value, bool):
        return value
    return isinstance(value, int) and 1 <= value <= WINDOW_MS_MAX


def window_ms(value: object) -> int | None:
    """Return the window in ms; None if the value is None."""
    if value is None:
        return None
    return WINDOW_MS if value is True else int(value)  # type: ignore[call-overload]
