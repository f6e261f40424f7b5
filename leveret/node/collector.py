"""Schedule of CPython's cyclic garbage collector.

A collection visits every object of its generations, and no client is served meanwhile: a third of a
second with a million objects, as twenty thousand queues are. So the objects that a full collection
has found alive are frozen (`gc.freeze`), and the next one visits those made since. Deleted queues
are freed without it (`Queue.mark_deleted`), and so are channels and connections; what a library may
keep of closed connections is collected while the node is idle, or when they were many.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

from leveret.node.allocator import LOOK_SECONDS, Ebb, find_trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.broker import Broker
    from leveret.node.process import Process
    from leveret.storage.tail import TailCache

__all__ = ["Collector", "collect_garbage", "start_collector"]

# A collection of all comes with some 6,000 new objects, which takes it a few milliseconds. As it
# sets them aside, it is no more work to do so often.
THRESHOLDS = (500, 5, 1)
# Number of closed connections, of which up to 20 kB each may still be in memory, that are worth
# a collection while the node is idle, and the number that are in any case.
CLOSED_MIN, CLOSED_MAX = 100, 5_000
# Up to so many frozen objects a collection of all is quick enough for an idle node: more, as many
# queues are, wait for CLOSED_MAX.
FROZEN_QUICK_MAX = 400_000
DELETED_MIN = 100  # queues of which memory is worth giving back
FREED_BYTES_MIN = 16 * 1024 * 1024  # the same of batches
# While there is traffic, more of these come between two looks.
RESTING_BYTES_MAX, RESTING_CLOSED_MAX = 1024 * 1024, 10


class Collector:
    """Freezes live objects, and collects all objects from time to time.

    `activity()` changes with everything clients do, `churn()` is the number of connections closed,
    and of queues deleted, since the start.
    """

    def __init__(self, activity: Callable[[], int], churn: Callable[[], tuple[int, int]]) -> None:
        self._activity = activity
        self._churn = churn
        self._was_active = 0
        self._looked_at = 0  # connections closed at the last collection
        self._is_quick = True  # whether few objects were frozen at the start
        self._given_back = 0  # queues deleted when memory was released last
        self._comes_again = False  # deleted queues release their last files a little later

    def start(self) -> None:
        """Set the collector's thresholds for a node, and freeze what it has restored."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_set_aside)
        gc.enable()
        _collect()
        self._is_quick = gc.get_freeze_count() <= FROZEN_QUICK_MAX  # counting takes long itself

    def stop(self) -> None:
        """Restore the collector's defaults."""
        gc.callbacks.remove(_set_aside)
        gc.unfreeze()

    @property
    def closed(self) -> int:
        """Number of connections closed since the start."""
        return self._churn()[0]

    def look(self) -> bool:
        """Collect garbage if it is worth it now, frozen objects too after many closed connections.

        Returns whether it has collected, so that memory may be free.
        """
        active, (closed, deleted) = self._activity(), self._churn()
        is_idle, self._was_active = active == self._was_active, active
        dead = closed - self._looked_at
        if dead >= CLOSED_MAX or (is_idle and self._is_quick and dead >= CLOSED_MIN):
            self._looked_at = closed
            gc.unfreeze()
        elif deleted - self._given_back < DELETED_MIN and not self._comes_again:
            return False
        self._comes_again = deleted - self._given_back >= DELETED_MIN
        self._given_back = deleted
        _collect()
        return True


def _collect() -> None:
    """Collect what is not frozen, and empty the interpreter's free lists.

    The second collection finds nothing to visit. Without it CPython would put its next one off
    until there are a quarter as many new objects as the first has found alive.
    """
    gc.collect()
    gc.collect()


def _set_aside(phase: str, info: dict[str, int]) -> None:
    """Freeze what a full collection has found alive, so that the next one skips it."""
    if phase == "stop" and info["generation"] == len(THRESHOLDS) - 1:
        gc.freeze()


def start_collector(broker: Broker) -> Collector:
    """Return the started collector of a node; takes long, so call it before clients connect."""

    def churn() -> tuple[int, int]:
        totals = broker.statistics.churn.totals()
        return totals["connection_closed"], totals["queue_deleted"]

    collector = Collector(lambda: broker.turn.pump_number, churn)
    collector.start()
    return collector


async def collect_garbage(process: Process, collector: Collector, cache: TailCache) -> None:
    """Collect until the node stops, and return free pages to the system.

    `cache` counts the bytes of batches that have left memory.
    """
    trim = find_trim()
    batches = Ebb(FREED_BYTES_MIN, RESTING_BYTES_MAX)
    connections = Ebb(CLOSED_MIN, RESTING_CLOSED_MAX)  # with their consumers and output
    try:
        while not process.stopping.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            may_return = batches.has_come(cache.dropped_bytes)
            may_return |= connections.has_come(collector.closed)
            may_return |= collector.look()
            if may_return and trim is not None:
                await asyncio.to_thread(trim)
    finally:
        collector.stop()
