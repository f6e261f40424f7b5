"""A wall clock with timers that stands still unless a test lets it run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """`monotonic` is what timers go by; `now` is the wall's time, which a test may set."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now
        self.monotonic = 0.0
        self.calls: list[Call] = []

    def wall_ms(self) -> int:
        return self.now

    def seconds(self) -> float:
        """As a loop's `time`."""
        return self.monotonic / 1000

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Call:
        call = Call(self.monotonic + seconds * 1000, callback)
        self.calls.append(call)
        return call

    def advance(self, milliseconds: int) -> None:
        """Let time pass: calls that are due come one after the other, at their times."""
        end = self.monotonic + milliseconds
        while True:
            self.calls = [call for call in self.calls if not call.cancelled]
            due = min(self.calls, key=lambda call: call.due, default=None)
            if due is None or due.due > end:
                break
            self.calls.remove(due)
            self._move_to(max(due.due, self.monotonic))
            due.callback()
        self._move_to(end)

    def _move_to(self, monotonic: float) -> None:
        self.now += round(monotonic) - round(self.monotonic)
        self.monotonic = monotonic
