"""The second client: a process of its own that publishes with confirms and notes how long it waits.

`python -m tests.hostile.witness PORT PID` publishes all the time; for each line on its input it
writes what it has noted since the last one, as JSON. A publish has three figures: how long its
confirm took, what of it neither the node nor the witness spent runnable without a processor, which
is the machine's doing and not the node's, and for how long the witness itself computed. The last is
always the same work: it tells how fast the machine is just then.
"""

from __future__ import annotations

import json
import math
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.harness.broker import REPOSITORY
from tests.harness.wire import Client

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERVAL_SECONDS = 0.002
CONFIRM_SECONDS_MAX = 100.0
ANSWER_SECONDS_MAX = 110.0
QUEUE = "witness"


def starved_seconds(path: Path) -> float:
    """How long a thread was ready to run and did not."""
    return int(path.read_text().split()[1]) / 1e9


def trips(port: int, node: int) -> Iterable[tuple[float, float, float]]:
    """Publish for ever. Yields what passed each time, the node's part of it, and the work."""
    node_thread, own_thread = Path(f"/proc/{node}/schedstat"), Path("/proc/self/schedstat")
    with Client(port).confirming() as client:
        client.declare(QUEUE, **{"x-max-length": 100})
        number = 0
        while True:
            number += 1
            starved = starved_seconds(node_thread) + starved_seconds(own_thread)
            began, worked = time.monotonic(), time.thread_time()
            client.publish(QUEUE, [b"."])
            client.await_confirms(number, CONFIRM_SECONDS_MAX)
            passed, worked = time.monotonic() - began, time.thread_time() - worked
            starved = starved_seconds(node_thread) + starved_seconds(own_thread) - starved
            yield passed, max(passed - starved, 0.0), worked


def main() -> None:
    noted: list[tuple[float, float, float]] = []
    for trip in trips(int(sys.argv[1]), int(sys.argv[2])):
        noted.append(trip)
        if select.select([sys.stdin], [], [], INTERVAL_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(noted), flush=True)
            noted.clear()


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of one kind, in milliseconds."""

    count: int
    median: float
    p999: float
    worst: float

    @classmethod
    def of(cls, seconds: list[float]) -> Self:
        """Waits of one who waited long and would have asked again meanwhile count as well."""
        every = [
            (wait - INTERVAL_SECONDS * missed) * 1000
            for wait in seconds
            for missed in range(1 + int(wait / INTERVAL_SECONDS))
        ]
        every.sort()
        at = math.ceil(0.999 * len(every)) - 1
        return cls(len(seconds), every[len(every) // 2], every[at], every[-1])


@dataclass(frozen=True, slots=True)
class Report:
    """Waits of a witness as they passed, the node's part of them, and the witness's own work."""

    passed: Waits
    own: Waits
    work_ms: float  # processor time of a publish, the median

    @classmethod
    def of(cls, noted: list[tuple[float, float, float]]) -> Self:
        passed, own, worked = (list(column) for column in zip(*noted, strict=True))
        return cls(Waits.of(passed), Waits.of(own), statistics.median(worked) * 1000)


class Witness:
    """The process, as a test sees it."""

    def __init__(self, port: int, node: int) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.witness", str(port), str(node)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )
        self.report()

    def report(self) -> Report:
        """Return what was noted since the last report."""
        self._popen.stdin.write("report\n")
        self._popen.stdin.flush()
        readable, _, _ = select.select([self._popen.stdout], [], [], ANSWER_SECONDS_MAX)
        assert readable, "the witness is not served any more"
        line = self._popen.stdout.readline()
        assert line, "the witness has ended: its publish was not confirmed"
        return Report.of(json.loads(line))

    def await_waiting(self, seconds: float) -> None:
        """Until it has waited for so long without a break: it neither ran nor wanted to."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        looked = began = None
        while began is None or time.monotonic() - began < seconds:
            assert time.monotonic() < deadline, "the witness does not wait for the node"
            state = Path(f"/proc/{self._popen.pid}/stat").read_text().rpartition(")")[2].split()[0]
            ran = Path(f"/proc/{self._popen.pid}/schedstat").read_text().split()[2]
            if state != "S" or ran != looked:
                looked, began = ran, time.monotonic()
            time.sleep(0.01)

    def close(self) -> None:
        self._popen.stdin.close()
        self._popen.wait(10)
        self._popen.stdout.close()


if __name__ == "__main__":
    main()
