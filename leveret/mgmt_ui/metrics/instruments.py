"""Measurements for the metrics alone: lag of the event loop, and storage."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from leveret.ports.counters import Histogram

if TYPE_CHECKING:
    from leveret.storage.store import FileTopicStore

__all__ = ["Instruments", "watch_loop"]

INTERVAL_SECONDS = 0.25  # between looks: a loop that stalls for this long is always seen
# Microseconds. Timers are a millisecond late by nature; a tenth of a second is felt by clients.
LAG_BOUNDS_US = (
    *(1_000, 2_000, 5_000, 10_000, 20_000, 50_000),
    *(100_000, 200_000, 500_000, 1_000_000, 5_000_000),
)


@dataclass(frozen=True, slots=True)
class Instruments:
    """Measurements that only a running node has."""

    topics: FileTopicStore
    loop_lag: Histogram = field(default_factory=lambda: Histogram(LAG_BOUNDS_US))


async def watch_loop(lag: Histogram) -> NoReturn:
    """Measure how late the event loop runs a timer, for as long as the node runs."""
    while True:
        asked = time.monotonic()
        await asyncio.sleep(INTERVAL_SECONDS)
        late = time.monotonic() - asked - INTERVAL_SECONDS
        lag.observe(max(int(late * 1_000_000), 0))
