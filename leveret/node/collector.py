"""When CPython looks for objects that refer to each other and to which nobody else refers.

A collection looks at every object of its generations, and nobody is served meanwhile: a third of a
second with a million objects, as twenty thousand queues are. So what a collection of all has found
alive is set aside (`gc.freeze`), and the next one looks at what was made since. Deleted queues go
by themselves (`Queue.mark_deleted`); connections that were closed after they were set aside are
looked for while nobody wants anything of the node, or when there are many.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.broker import Broker
    from leveret.node.process import Process

__all__ = ["Collector", "collect_garbage"]

# CPython's thresholds but for the last: a collection of all comes with 70,000 new objects, which
# takes it some ten milliseconds.
THRESHOLDS = (700, 10, 10)
LOOK_SECONDS = 1.0
# Connections and channels that were closed and may still be in memory, some 20 kB each: how many
# are worth a look while nobody wants anything, and how many may be there in any case.
DEAD_MIN, DEAD_MAX = 100, 5_000


class Collector:
    """Sets aside what lives, and looks through all of it from time to time.

    `activity()` changes with all that clients do, `closed()` is how many connections and channels
    were closed since the start.
    """

    def __init__(self, activity: Callable[[], int], closed: Callable[[], int]) -> None:
        self._activity = activity
        self._closed = closed
        self._was_active = 0
        self._looked_at = 0  # so many were closed when all was looked through

    def start(self) -> None:
        """Let CPython collect as is right for a node from now on."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_set_aside)
        gc.collect()

    def stop(self) -> None:
        """Leave the garbage collector as it was."""
        gc.callbacks.remove(_set_aside)
        gc.unfreeze()

    def look(self) -> bool:
        """Look through everything, if that is worth it now. Returns whether it was."""
        active, closed = self._activity(), self._closed()
        is_idle, self._was_active = active == self._was_active, active
        dead = closed - self._looked_at
        if dead < (DEAD_MIN if is_idle else DEAD_MAX):
            return False
        self._looked_at = closed
        gc.unfreeze()
        gc.collect()
        return True


def _set_aside(phase: str, info: dict[str, int]) -> None:
    """What a collection of all has found alive is not looked at again by the next one."""
    if phase == "stop" and info["generation"] == len(THRESHOLDS) - 1:
        gc.freeze()


async def collect_garbage(process: Process, broker: Broker) -> None:
    """Collect until the node stops."""
    churn = broker.statistics.churn

    def closed() -> int:
        totals = churn.totals()
        return totals["connection_closed"] + totals["channel_closed"]

    collector = Collector(lambda: broker.turn.pump_number, closed)
    collector.start()
    try:
        while not process.stopping.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            collector.look()
    finally:
        collector.stop()
