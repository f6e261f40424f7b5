"""Run seeds of the simulated cluster: `python -m tests.sim [SEED …]`; without one, on and on."""

from __future__ import annotations

import sys
import time
from itertools import count

from tests.sim import world
from tests.sim.test_replication import SEEDS

TOLD_EVERY = 1000


def main(seeds: list[int]) -> int:
    """Run seeds, print those that fail, and return the exit status."""
    failed, ran, began = 0, 0, time.monotonic()
    try:
        for seed in seeds or count(SEEDS):
            try:
                world.run(seed)
            except (AssertionError, ValueError) as error:
                failed += 1
                print(f"seed {seed}: {error}", flush=True)
            ran += 1
            if ran % TOLD_EVERY == 0:
                told = f"{ran} seeds, {failed} failed, {time.monotonic() - began:.0f} s"
                print(told, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"{ran} seeds, {failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([int(each) for each in sys.argv[1:]]))
