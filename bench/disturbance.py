"""How much of the machine somebody else used while a reading was taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

from leveret.perf.process import TICK_US, ProcessTree

__all__ = ["TOLERABLE_CORES", "Disturbance"]

STAT = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # idle and waiting for the disk; the rest is work, stolen time included
GUEST_COLUMNS = 8  # what follows is contained in the first columns
TOLERABLE_CORES = 0.1  # above this, a reading says more about the machine than about the brokers


class Disturbance:
    """From its making to `cores`: processor time that neither we nor our children used."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._others_us = _others_us()

    def cores(self) -> float:
        """How many cores others kept busy on average."""
        elapsed_us = (time.monotonic() - self._start_s) * 1_000_000
        return max(0.0, (_others_us() - self._others_us) / elapsed_us)


def _others_us() -> int:
    """Everybody's processor time since the machine started, less that of our family."""
    columns = [int(word) for word in STAT.read_text().splitlines()[0].split()[1:]]
    ticks = sum(
        value for column, value in enumerate(columns[:GUEST_COLUMNS]) if column not in IDLE_COLUMNS
    )
    return ticks * TICK_US - ProcessTree(os.getpid()).usage().cpu_us
