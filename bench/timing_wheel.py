"""Cost of a timer in the timing wheel, from ten thousand of them to ten million.

    python -m bench.timing_wheel [--timers-max 10000000]

How to read it: nanoseconds for one timer, adding it, cancelling it and letting it expire, at each
size; due times are random within an hour, keys are offsets. The wheel's work does not grow with the
number of timers: each column would be flat if memory were. What grows is the share of them that the
processor's caches do not hold: a miss costs some 100 ns, a binary heap would meet about twenty.
`bytes` is the memory for each timer. `add` and `cancel` are called from Python one by one, which is
about 60 ns of each figure; a room adds whole lists (`bulk`).
"""

from __future__ import annotations

import argparse
import random
import time

from leveret.features.delay.due_list import DueList
from leveret.features.delay.wheel import TimingWheel

NOW_MS = 1_700_000_000_000
SPREAD_MS = 3_600_000
STEP_MS = 1000  # of the clock, while timers expire
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def measure(count: int) -> None:
    chance = random.Random(count)
    dues = [NOW_MS + int(chance.random() * SPREAD_MS) for _ in range(count)]
    rounds = max(1, 1_000_000 // count)
    add = cancel = bulk = expire = 0.0
    size = 0
    for _ in range(rounds):
        wheel = TimingWheel(NOW_MS)
        begun = time.perf_counter()
        for key, due in enumerate(dues):
            wheel.add(key, due)
        added = time.perf_counter()
        size = wheel.allocated_bytes
        for key in range(count):
            wheel.cancel(key)
        cancelled = time.perf_counter()
        listed = DueList()
        for key, due in enumerate(dues):
            listed.add(due, key)
        listing = time.perf_counter()
        wheel.add_all(listed, 0)
        loaded = time.perf_counter()
        expired = 0
        for now in range(NOW_MS, NOW_MS + SPREAD_MS + STEP_MS, STEP_MS):
            expired += len(wheel.expire(now))
        ended = time.perf_counter()
        assert expired == count
        add += added - begun
        cancel += cancelled - added
        bulk += loaded - listing
        expire += ended - loaded
    costs = (1e9 * spent / (rounds * count) for spent in (add, cancel, bulk, expire))
    print(f"{count:10,}" + "".join(f"{cost:10.0f}" for cost in costs) + f"{size / count:8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timers-max", type=int, default=SIZES[-1])
    options = parser.parse_args()
    print(f"{'timers':>10}{'add':>10}{'cancel':>10}{'bulk':>10}{'expire':>10}{'bytes':>8}")
    for size in SIZES:
        if size <= options.timers_max:
            measure(size)


if __name__ == "__main__":
    main()
