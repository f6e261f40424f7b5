"""Long-running work done in slices over many turns, such as applying a policy.

A chore is a generator that yields wherever it may pause. What must be true at once is done before
it starts; what is left to it is invisible to clients, or they wait for it.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.core.turn import TouchedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leveret.core.turn import Turn

__all__ = ["RUN_ITEMS", "Chores", "at_once", "drain", "sorted_in_runs"]

T = TypeVar("T")

# Time per turn, beside deliveries: small pieces of work finish in the turn in which they begin.
SLICE_NS_MAX = 1_000_000
RUN_ITEMS = 500  # sorted at once, in a fraction of a millisecond


def at_once(chore: Iterable[None]) -> None:
    """Run a chore to its end, where there are no turns."""
    for _ in chore:
        pass


def drain(items: Iterable[T]) -> Iterator[T]:
    """Yield each item and drop the reference to it.

    A list would keep thousands of deleted queues alive until the end, and then free them all at
    once.
    """
    left = deque(items)
    return (left.popleft() for _ in range(len(left)))


def sorted_in_runs(items: Iterable[T], key: Callable[[T], Any]) -> list[T]:
    """Return the items sorted as by `sorted`, in a thread beside an event loop.

    A single sort of a hundred thousand items would hold the interpreter for a tenth of a second.
    """
    left = iter(items)
    runs = iter(lambda: sorted(islice(left, RUN_ITEMS), key=key), [])
    return list(heapq.merge(*runs, key=key))


class Chores(TouchedQueue):
    """Chores of a node, run round-robin; the turn treats them as one queue.

    A chore that raises is reported with `report(chore, error)` and dropped.
    """

    def __init__(self, turn: Turn, report: Callable[[object, Exception], None]) -> None:
        self._turn = turn
        self._report = report
        self._waiting: deque[Iterator[None]] = deque()
        self._is_running = False  # one of them

    def begin(self, chore: Iterator[None]) -> None:
        """Run the first slice of a chore now, and the rest in later turns.

        One that another chore begins waits for that to pause.
        """
        if self._is_running:
            self._waiting.append(chore)
            return
        self._waiting.appendleft(chore)
        self._go_on()
        if self._waiting:
            self._turn.touch(self)

    def flush(self) -> None:
        """Do nothing: chores write no records."""

    def pump(self) -> bool:
        """Run chores for one slice. Returns whether any are left."""
        self._go_on()
        return bool(self._waiting)

    def _go_on(self) -> None:
        self._is_running = True
        try:
            self._run_slice()
        finally:
            self._is_running = False

    def _run_slice(self) -> None:
        clock_ns = self._turn.clock_ns
        ends_ns = clock_ns() + SLICE_NS_MAX
        while self._waiting:
            chore = self._waiting[0]
            try:
                next(chore)
            except StopIteration:
                self._waiting.popleft()
            except Exception as error:  # noqa: BLE001  # one chore's fault is not another's
                self._waiting.popleft()
                self._report(chore, error)
            else:
                self._waiting.rotate(-1)
            if clock_ns() > ends_ns:
                return
