"""Long pieces of work that are done a little in each turn, such as following a policy.

A chore is a generator that yields wherever it may stop for a while. What must be true at once is
done before it begins; what is left to it nobody notices, or somebody waits for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from leveret.core.turn import TouchedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leveret.core.turn import Turn

__all__ = ["Chores", "at_once", "drain"]

T = TypeVar("T")

# Of each turn, beside what it delivers: a small list is done with in the turn in which it comes.
SLICE_NS_MAX = 1_000_000


def at_once(chore: Iterable[None]) -> None:
    """Do all of a chore, where there are no turns."""
    for _ in chore:
        pass


def drain(items: Iterable[T]) -> Iterator[T]:
    """Yield each item and refer to it no more.

    A list would keep thousands of deleted queues until the last step, which would free them all.
    """
    left = deque(items)
    return (left.popleft() for _ in range(len(left)))


class Chores(TouchedQueue):
    """The chores of a node. They take their steps by turns; the turn sees a queue in them.

    `report(chore, error)` is told of one that raises, and is given up thereby.
    """

    def __init__(self, turn: Turn, report: Callable[[object, Exception], None]) -> None:
        self._turn = turn
        self._report = report
        self._waiting: deque[Iterator[None]] = deque()

    def begin(self, chore: Iterator[None]) -> None:
        """Do the first part of a chore now, and the rest in the turns to come."""
        self._waiting.appendleft(chore)
        self._go_on()
        if self._waiting:
            self._turn.touch(self)

    def flush(self) -> None:
        """See TouchedQueue: nothing is written here."""

    def pump(self) -> bool:
        """Go on for a while. Returns whether anything is left."""
        self._go_on()
        return bool(self._waiting)

    def _go_on(self) -> None:
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
