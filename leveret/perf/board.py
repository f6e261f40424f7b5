"""Memory shared by conductor and workers: the phase of the run, and each worker's counters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTROL_WORDS", "ROW_BYTES", "ROW_WORDS", "Board", "RunPhase", "Totals"]

CONTROL_WORDS = 16  # one cache line apart from the counters, which are written all the time
ROW_WORDS = 16
WORD_BYTES = 8
ROW_BYTES = ROW_WORDS * WORD_BYTES
PHASE_AT, MEASURE_AT, START_AT = 0, 1, 2
BLOCKED_AT = 7


class RunPhase(IntEnum):
    """Phase of a run."""

    SETUP = 0
    RUN = 1  # publish and consume
    DRAIN = 2  # consume only
    STOP = 3


@dataclass(frozen=True)
class Totals:
    """Counters, in the order of `Tallies` in wire.pxd. Times are CLOCK_MONOTONIC nanoseconds."""

    published: int = 0
    confirmed: int = 0
    refused: int = 0
    returned: int = 0
    consumed: int = 0
    redelivered: int = 0
    empty: int = 0
    blocked: int = 0
    published_at_ns: int = 0
    confirmed_at_ns: int = 0
    consumed_at_ns: int = 0

    @classmethod
    def of(cls, rows: Iterable[list[int]]) -> Totals:
        """Return the sum of several workers' rows; of times, the latest."""
        columns = list(zip(*rows, strict=True))
        names = [field.name for field in fields(cls)]
        return cls(
            *(
                (max if name.endswith("_ns") else sum)(column)
                for name, column in zip(names, columns, strict=False)
            )
        )

    @property
    def progress(self) -> tuple[int, ...]:
        """Counters that grow only while messages move, unlike those of empty gets."""
        return self.published, self.confirmed, self.refused, self.consumed

    @property
    def settled(self) -> int:
        """Number of messages that the broker has acked or nacked."""
        return self.confirmed + self.refused


class Board:
    """Shared words: phase and measurement number, then a row of counters for each worker."""

    def __init__(self, shared: Any) -> None:
        """`shared` is a ctypes array of unsigned 64-bit words."""
        self._bytes = memoryview(shared).cast("B")
        self._words = self._bytes.cast("Q")

    @staticmethod
    def words(workers: int) -> int:
        """Number of 64-bit words needed for `workers`."""
        return CONTROL_WORDS + workers * ROW_WORDS

    @property
    def phase(self) -> RunPhase:
        """Current phase."""
        return RunPhase(self._words[PHASE_AT])

    @phase.setter
    def phase(self, phase: RunPhase) -> None:
        self._words[PHASE_AT] = phase

    @property
    def measure(self) -> int:
        """Number that grows when the warm-up is over: earlier latencies are dropped."""
        return self._words[MEASURE_AT]

    @measure.setter
    def measure(self, number: int) -> None:
        self._words[MEASURE_AT] = number

    @property
    def start_ns(self) -> int:
        """Time at which publishing began."""
        return self._words[START_AT]

    @start_ns.setter
    def start_ns(self, moment: int) -> None:
        self._words[START_AT] = moment

    def row(self, worker: int) -> memoryview:
        """Return the bytes of one worker's counters."""
        at = (CONTROL_WORDS + worker * ROW_WORDS) * WORD_BYTES
        return self._bytes[at : at + ROW_BYTES]

    def count_blocked(self, worker: int) -> None:
        """Count a connection.blocked from the broker for this worker."""
        self._words[CONTROL_WORDS + worker * ROW_WORDS + BLOCKED_AT] += 1

    def totals(self, workers: int) -> Totals:
        """Return the sums of all workers' counters."""
        return Totals.of(list(self.row(worker).cast("Q")) for worker in range(workers))
