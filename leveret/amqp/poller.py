"""Busy polling for the next request of a single client, instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class BusyPoller:
    """Keeps the loop awake for a moment after a request whose client waits for the answer.

    The client's next request comes as soon as it has the answer. A processor that went to sleep
    meanwhile takes longer to wake than the broker takes to answer, several times as long on virtual
    machines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, microseconds: int) -> None:
        """`microseconds` is how long to poll after a request; 0 turns polling off."""
        self._loop = loop
        self._window_ns = microseconds * 1000
        self._deadline_ns = 0
        self._polling = False

    def expect_more(self) -> None:
        """Poll for the configured time from now on."""
        if not self._window_ns:
            return
        self._deadline_ns = time.monotonic_ns() + self._window_ns
        if not self._polling:
            self._polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Poll the sockets once in each pass of the loop, without waiting, until the deadline."""
        if time.monotonic_ns() < self._deadline_ns:
            self._loop.call_soon(self._poll)
        else:
            self._polling = False
