"""When CPython looks for objects that refer to each other and to which nobody else refers.

A collection looks at every object of its generations, and nobody is served meanwhile: a third of a
second with a million objects, as twenty thousand queues are. So what a collection of all has found
alive is set aside (`gc.freeze`), and the next one looks at what was made since. Deleted queues go
by themselves (`Queue.mark_deleted`), and so do channels and connections; what a library may keep of
closed connections is looked for while nobody wants anything of the node, or when they were many.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

from leveret.node.allocator import LOOK_SECONDS, Ebb, find_trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.broker import Broker
    from leveret.node.process import Process
    from leveret.storage.tail import TailCache

__all__ = ["Collector", "collect_garbage"]

# A collection of all comes with some 6,000 new objects, which takes it a few milliseconds. As it
# sets them aside, it is no more work to do so often.
THRESHOLDS = (500, 5, 1)
# How many closed connections, of which up to 20 kB each may still be in memory, are worth a look
# while nobody wants anything, and how many may be there in any case.
CLOSED_MIN, CLOSED_MAX = 100, 5_000
DELETED_MIN = 100  # queues of which memory is worth giving back


class Collector:
    """Sets aside what lives, and looks through all of it from time to time.

    `activity()` changes with all that clients do, `churn()` is how many connections were
    closed, and how many queues deleted, since the start.
    """

    def __init__(self, activity: Callable[[], int], churn: Callable[[], tuple[int, int]]) -> None:
        self._activity = activity
        self._churn = churn
        self._was_active = 0
        self._looked_at = 0  # so many were closed when all was looked through
        self._given_back = 0  # so many queues were deleted when memory was given back
        self._comes_again = False  # what was deleted lets go of its last files a little later

    def start(self) -> None:
        """Let CPython collect as is right for a node from now on."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_set_aside)
        _collect()

    def stop(self) -> None:
        """Leave the garbage collector as it was."""
        gc.callbacks.remove(_set_aside)
        gc.unfreeze()

    def look(self) -> bool:
        """Look through everything, if that is worth it now. Returns whether much may be free."""
        active, (closed, deleted) = self._activity(), self._churn()
        is_idle, self._was_active = active == self._was_active, active
        dead = closed - self._looked_at
        if dead >= CLOSED_MAX or (is_idle and dead >= CLOSED_MIN):
            self._looked_at = closed
            gc.unfreeze()
        elif deleted - self._given_back < DELETED_MIN and not self._comes_again:
            return False
        self._comes_again = deleted - self._given_back >= DELETED_MIN
        self._given_back = deleted
        _collect()
        return True


def _collect() -> None:
    """Look at what is not set aside, and empty the interpreter's own lists of free objects.

    The second collection finds nothing to look at. Without it CPython would put its next one off
    until there are a quarter as many new objects as the first has found alive.
    """
    gc.collect()
    gc.collect()


def _set_aside(phase: str, info: dict[str, int]) -> None:
    """Set aside what a collection of all has found alive: the next one does not look at it."""
    if phase == "stop" and info["generation"] == len(THRESHOLDS) - 1:
        gc.freeze()


async def collect_garbage(process: Process, broker: Broker, cache: TailCache) -> None:
    """Collect until the node stops, and return free pages to the system.

    `cache` tells what of batches has left memory.
    """

    def churn() -> tuple[int, int]:
        totals = broker.statistics.churn.totals()
        return totals["connection_closed"], totals["queue_deleted"]

    collector = Collector(lambda: broker.turn.pump_number, churn)
    trim, ebb = find_trim(), Ebb()
    collector.start()
    try:
        while not process.stopping.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            may_return = ebb.has_come(cache.dropped_bytes)
            if collector.look():
                may_return = True
            if may_return and trim is not None:
                await asyncio.to_thread(trim)
    finally:
        collector.stop()
