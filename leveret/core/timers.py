"""Timers of a node, all served by one timer of the event loop.

Times are wall-clock times, since records carry them. The wall clock may be set, while the loop's
timer follows a monotonic clock: callbacks and setters therefore read the wall clock again, and no
sleep is longer than a minute, so that a jump is noticed by then.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from leveret.ports.callbacks import do_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

SLEEP_MS_MAX = 60_000
# Entries of timers that were reset stay in the heap; it is rebuilt if it has more than this many
# for each active timer.
STALE_ENTRIES_MAX = 4
ENTRIES_MIN = 64
# Then other work gets its turn: thousands of queues may have a timer due at the same moment.
WAKE_SECONDS_MAX = 0.002


class Timer:
    """Timer with one due time; created by `Timers.timer`."""

    __slots__ = ("_timers", "callback", "due_ms")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback = callback
        self.due_ms: int | None = None

    def set(self, due_ms: int | None) -> None:
        """Set the due time, in ms since 1970, replacing an earlier one; None cancels the timer."""
        if due_ms != self.due_ms:
            self._timers.change(self, due_ms)

    def close(self) -> None:
        """Cancel the timer for ever and drop the reference to its callback."""
        self.set(None)
        self.callback = do_nothing


class Timers:
    """Timers of a node.

    `wall_ms()` is the wall clock, `call_later(seconds, callback)` returns a handle with `cancel()`,
    and `monotonic()` is the clock in seconds that it uses, which advances within a callback.
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
        self._count = 0  # entries ever made: makes entries comparable
        self._set = 0  # number of active timers
        self._handle: Any = None
        self._wakes_at = 0.0  # due time of the loop's timer, by its clock
        self._closed = False

    def timer(self, callback: Callable[[], None]) -> Timer:
        """Return a new, inactive timer."""
        return Timer(self, callback)

    def after(self, milliseconds: int, callback: Callable[[], None]) -> None:
        """Call `callback` once after some time, and never within this call."""
        self.timer(callback).set(self.wall_ms() + milliseconds)

    def close(self) -> None:
        """Stop all timers: the node stops, and due work waits for the next start."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def change(self, timer: Timer, due_ms: int | None) -> None:
        """Set or cancel a timer; called by Timer.set."""
        self._set += (due_ms is not None) - (timer.due_ms is not None)
        timer.due_ms = due_ms
        if len(self._heap) > STALE_ENTRIES_MAX * self._set + ENTRIES_MIN:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].due_ms]
            heapq.heapify(self._heap)
        if due_ms is None:
            return
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, timer))
        if self._handle is None or due_ms < self._wakes_ms():
            self._sleep()

    def _wakes_ms(self) -> float:
        """Wall-clock time of the loop's timer, by the wall clock's present setting."""
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
        finally:  # the loop reports an exception; later timers run at once
            if self._handle is None:
                self._sleep()
