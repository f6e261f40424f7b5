"""How tests wait for what comes about by itself: as long as a slow machine takes, and not longer.

Two cores and a disk that others use, too, stand still for seconds at a time. A test that waits for
something that must happen waits for `PATIENCE_SECONDS`; it never fails where that takes a while.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.02
ASYNC_POLL_SECONDS = 0.002


def wait_until(condition: Callable[[], object], what: str = "what was waited for") -> None:
    """Return as soon as `condition()` is true. Raises AssertionError, which names `what`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {what}"
        time.sleep(POLL_SECONDS)


async def eventually(condition: Callable[[], object], what: str = "what was waited for") -> None:
    """Do as `wait_until`, in the loop that brings it about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():  # there is no event for most
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {what}"
        await asyncio.sleep(ASYNC_POLL_SECONDS)
