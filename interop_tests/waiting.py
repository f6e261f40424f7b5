"""Waiting for what will be so, and not longer than for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.02


def until(so: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Return as soon as `so()` is true; an AssertionError names `what` was not to be seen."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(POLL_SECONDS)
