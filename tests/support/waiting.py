"""How long tests wait for what must happen: until it has, and for `LIMIT_SECONDS` at most.

Two cores and a disk that others use, too, stand still for seconds at a time; nothing is shown by a
test that fails then. LEVERET_TEST_PATIENCE=3 makes all limits three times as long.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = float(os.environ.get("LEVERET_TEST_PATIENCE", "1"))
LIMIT_SECONDS = 60 * PATIENCE
TEST_SECONDS_MAX = 5 * LIMIT_SECONDS  # of a test that names no time
POLL_SECONDS = 0.02
ASYNC_POLL_SECONDS = 0.002


def wait_until(condition: Callable[[], object], what: str = "what was waited for") -> None:
    """Return as soon as `condition()` is true. Raises AssertionError, which names `what`."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(POLL_SECONDS)


async def eventually(condition: Callable[[], object], what: str = "what was waited for") -> None:
    """Do as `wait_until`, in the event loop that brings it about."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():  # there is no event for most
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s: {what}"
        await asyncio.sleep(ASYNC_POLL_SECONDS)
