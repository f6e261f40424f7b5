"""Dependencies of the core, injected by the node.

The core has no clock, event loop or random source of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.core.timers import Timers
    from leveret.core.turn import Turn

__all__ = ["Environment"]

CHANCES = 1 << 30  # resolution of random fractions


@dataclass(frozen=True, slots=True)
class Environment:
    """Injected functions for time, tasks, error reports and randomness.

    `spawn(coroutine)` runs it in the node's task group; `report(subject, error)` reports an
    unexpected error; `random_name()` returns a unique string, `random_below(n)` one of 0 … n - 1.
    """

    turn: Turn
    timers: Timers
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[object, Exception], None]
    random_name: Callable[[], str]
    random_below: Callable[[int], int]

    def common(self) -> dict[str, Any]:
        """Return these functions by name, for an environment that offers more."""
        return {each.name: getattr(self, each.name) for each in fields(Environment)}

    def random_part(self) -> float:
        """Return a random number in [0, 1)."""
        return self.random_below(CHANCES) / CHANCES
