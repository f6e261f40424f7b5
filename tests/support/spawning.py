"""Coroutines that benches are given to run; what a test has not begun is closed at its end.

Else the garbage collector would find it some time, and fail the test that runs then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Work = Coroutine[Any, Any, None]

_given: set[Work] = set()


def spawner(tasks: list[Work]) -> Callable[[Work], None]:
    """Return a function that adds a coroutine to `tasks`."""

    def spawn(work: Work) -> None:
        _given.add(work)
        tasks.append(work)

    return spawn


def close_coroutines() -> None:
    """Close what was given since the last call."""
    for work in _given:
        work.close()
    _given.clear()
