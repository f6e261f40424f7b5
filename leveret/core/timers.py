"""When something is due that no client asks for: one timer of the loop for all of a node's queues.

Times are those of the wall, since records carry them. A wall clock may be set, while the loop's
timer goes by a clock that never is: whoever is called looks at the wall again, as does whoever sets
a timer, and no sleep is so long that a jump goes unnoticed for more than a minute.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from leveret.ports.callbacks import do_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

SLEEP_MS_MAX = 60_000
# Entries of timers that were set anew are left in the heap; more than so many for each timer that
# is set, and the heap is made anew.
STALE_ENTRIES_MAX = 4
ENTRIES_MIN = 64
# After so long others have their turn: thousands of queues may have been given the same moment.
WAKE_SECONDS_MAX = 0.002


class Timer:
    """Calls back at one moment at a time; see `Timers.timer`."""

    __slots__ = ("_timers", "callback", "due_ms")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback = callback
        self.due_ms: int | None = None

    def set(self, due_ms: int | None) -> None:
        """Call back at this time instead of any that was set before; None: not at all."""
        if due_ms != self.due_ms:
            self._timers.change(self, due_ms)

    def close(self) -> None:
        """Never call back again, and let go of whoever was to be called."""
        self.set(None)
        self.callback = do_nothing


class Timers:
    """The timers of a node.

    `wall_ms()` tells the time, `call_later(seconds, callback)` gives back what `cancel()` undoes,
    and `monotonic()` is the clock in seconds that it goes by, which runs on within a call.
    """

    def __init__(
        self,
        wall_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Any],
        monotonic: Callable[[], float],
    ) -> None:
        self.wall_ms = wall_ms
        self._call_later = call_later
        self._monotonic = monotonic
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0  # of entries ever made: makes them comparable
        self._set = 0  # timers that are set
        self._handle: Any = None
        self._wakes_at = 0.0  # when the loop calls, by its own clock
        self._closed = False

    def timer(self, callback: Callable[[], None]) -> Timer:
        """Make a timer, which is not set."""
        return Timer(self, callback)

    def close(self) -> None:
        """Call nobody back any more: the node stops, and what is due waits for the next start."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def change(self, timer: Timer, due_ms: int | None) -> None:
        """Set a timer; Timer.set comes here."""
        self._set += (due_ms is not None) - (timer.due_ms is not None)
        timer.due_ms = due_ms
        if due_ms is None:
            return
        if len(self._heap) > STALE_ENTRIES_MAX * self._set + ENTRIES_MIN:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].due_ms]
            heapq.heapify(self._heap)
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, timer))
        if self._handle is None or due_ms < self._wakes_ms():
            self._sleep()

    def _wakes_ms(self) -> float:
        """When the loop calls, by the wall's clock as it is now: it may have been set meanwhile."""
        return self.wall_ms() + (self._wakes_at - self._monotonic()) * 1000

    def _sleep(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap and not self._closed:
            sleep_ms = min(max(self._heap[0][0] - self.wall_ms(), 0), SLEEP_MS_MAX)
            self._wakes_at = self._monotonic() + sleep_ms / 1000
            self._handle = self._call_later(sleep_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._handle = None
        now = self.wall_ms()
        ends_at = self._monotonic() + WAKE_SECONDS_MAX
        try:
            while self._heap and self._heap[0][0] <= now and not self._closed:
                due_ms, _, timer = heapq.heappop(self._heap)
                if timer.due_ms == due_ms:
                    self._set -= 1
                    timer.due_ms = None
                    timer.callback()
                    if self._monotonic() > ends_at:
                        break  # those left are due: `_sleep` has them called at once
        finally:  # one that raises is the loop's to report; those behind it are called at once
            if self._handle is None:
                self._sleep()
