"""What the shell lends to a broker, which has no clock, no loop and no dice of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.core.exchanges import RandomBelow
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn

__all__ = ["Environment"]

CHANCES = 1 << 30  # of which one is drawn where a part of something is left to chance


@dataclass(frozen=True, slots=True)
class Environment:
    """Ways to wait, to tell and to choose.

    `spawn(coroutine)` runs it in the node's task group; `report(subject, error)` is told of what
    should not have happened; `random_name()` gives a unique string, `random_below(n)` one of
    0 … n - 1.
    """

    turn: Turn
    timers: Timers
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[object, Exception], None]
    random_name: Callable[[], str]
    random_below: RandomBelow

    def random_part(self) -> float:
        """Some number from 0 to below 1."""
        return self.random_below(CHANCES) / CHANCES
