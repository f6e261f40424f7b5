"""The brokers of one row, which are read in turns."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.disturbance import Disturbance
from bench.measure import Reading, measure
from bench.processes import BenchError
from bench.rows import FLOORS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bench.measure import Timing
    from bench.processes import Broker
    from bench.rows import Row

__all__ = ["Turns"]


class Turns:
    """Starts the brokers of a row, reads one after the other, and stops them.

    They run throughout the row and rest while another is read. What is measured by its start is
    started for each reading, and so is the floor, which keeps a core busy if it polls. `make`
    returns a broker by its name.
    """

    def __init__(
        self, row: Row, names: Iterable[str], timing: Timing, make: Callable[[str], Broker]
    ) -> None:
        self.taken: dict[str, list[Reading]] = {name: [] for name in names}
        self.versions: dict[str, str] = {}
        self._row = row
        self._timing = timing
        self._make = make
        self._running: dict[str, Broker] = {}

    def settle(self, seconds: float) -> None:
        """Start the brokers that run throughout the row, and let all of them rest for a time."""
        for name in self.taken:
            if not self._starts_anew(name):
                with contextlib.suppress(BenchError, OSError):  # its first reading says so
                    self._started(name)
        time.sleep(seconds)

    def take(self) -> Iterator[tuple[str, Reading]]:
        """Read each broker once."""
        for name, readings in self.taken.items():
            disturbance = Disturbance()
            try:
                reading = measure(self._row, self._started(name), self._timing)
                readings.append(replace(reading, others_cores=disturbance.cores()))
            except (BenchError, OSError) as error:
                readings.append(Reading(failure=str(error)))
            if self._starts_anew(name):
                self._stop(name)
            yield name, readings[-1]

    def close(self) -> None:
        """Stop what runs."""
        for name in list(self._running):
            self._stop(name)

    def _starts_anew(self, name: str) -> bool:
        return self._row.kind is Kind.START or name in FLOORS

    def _started(self, name: str) -> Broker:
        """Return the broker, running; one that does not start is stopped and raised."""
        if name not in self._running:
            broker = self._running[name] = self._make(name)
            try:
                broker.start()
            except (BenchError, OSError):
                self._stop(name)
                raise
            self.versions[name] = broker.version
        return self._running[name]

    def _stop(self, name: str) -> None:
        if name in self._running:
            self._running.pop(name).stop()
