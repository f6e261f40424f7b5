"""The machine at a moment: its load, and the time that its host gave to others."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from time import monotonic
from typing import NamedTuple

STAT = Path("/proc/stat")
STEAL = 7  # its place among a CPU's times: user nice system idle iowait irq softirq steal
TIMES = 8  # guest and guest_nice are counted in user and nice, too
SAMPLES_MAX = 10_000


class Sample(NamedTuple):
    """Ticks of all CPUs since the machine started, at a monotonic time in seconds."""

    seconds: float
    ticks: int
    stolen: int


class Machine:
    """Says what the machine was like in the last seconds."""

    def __init__(self) -> None:
        self._samples = deque([sample()], maxlen=SAMPLES_MAX)

    def describe(self, seconds: float) -> str:
        """Return the load of the last minute, and the share of CPU time stolen in `seconds`."""
        now = sample()
        self._samples.append(now)
        began = now.seconds - seconds
        before = max(
            (one for one in self._samples if one.seconds <= began), default=self._samples[0]
        )
        ticks = now.ticks - before.ticks
        stolen = (now.stolen - before.stolen) / ticks if ticks else 0
        return f"load {os.getloadavg()[0]:.1f}, steal {stolen:.0%}"

    def look(self) -> None:
        """Remember what has been used until now."""
        self._samples.append(sample())


def sample() -> Sample:
    """Read the times of all CPUs; none where the system does not tell."""
    now = monotonic()
    if not STAT.exists():
        return Sample(now, 0, 0)
    with STAT.open() as stat:
        times = [int(ticks) for ticks in stat.readline().split()[1 : 1 + TIMES]]
    return Sample(now, sum(times), times[STEAL])
