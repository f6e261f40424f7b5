"""Looking for a lone client's next request instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class BusyPoller:
    """Keeps the loop awake for a moment after a request whose client waits for the answer.

    Its next request comes as soon as it has the answer. A processor that went to sleep meanwhile
    takes longer to wake than the broker takes to answer, on virtual machines several times as long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, microseconds: int) -> None:
        """With 0 microseconds the loop sleeps whenever there is nothing to do."""
        self._loop = loop
        self._window_ns = microseconds * 1000
        self._deadline_ns = 0
        self._polling = False

    def expect_more(self) -> None:
        """Look again and again for as long as the window is, from now on."""
        if not self._window_ns:
            return
        self._deadline_ns = time.monotonic_ns() + self._window_ns
        if not self._polling:
            self._polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Each pass of the loop looks at the sockets once, without waiting for them."""
        if time.monotonic_ns() < self._deadline_ns:
            self._loop.call_soon(self._poll)
        else:
            self._polling = False
