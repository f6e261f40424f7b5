"""Memory that conductor and workers share: the phase of the run, and each worker's counters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTROL_WORDS", "ROW_BYTES", "ROW_WORDS", "Board", "Phase", "Totals"]

CONTROL_WORDS = 16  # one cache line apart from the counters, which are written all the time
ROW_WORDS = 16
WORD_BYTES = 8
ROW_BYTES = ROW_WORDS * WORD_BYTES
PHASE_AT, MEASURE_AT, START_AT = 0, 1, 2
BLOCKED_AT = 7


class Phase(IntEnum):
    """What the workers are to do."""

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
        """The sum of several workers' rows; of times, the latest."""
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
        """What grows only while messages move; an empty queue may be asked for ever."""
        return self.published, self.confirmed, self.refused, self.consumed

    @property
    def settled(self) -> int:
        """Messages the broker has answered for, one way or the other."""
        return self.confirmed + self.refused


class Board:
    """A view of the shared words: phase and measurement number, then a row for each worker."""

    def __init__(self, shared: Any) -> None:
        """`shared` is a ctypes array of unsigned 64-bit words."""
        self._bytes = memoryview(shared).cast("B")
        self._words = self._bytes.cast("Q")

    @staticmethod
    def words(workers: int) -> int:
        """How many words a board for so many workers has."""
        return CONTROL_WORDS + workers * ROW_WORDS

    @property
    def phase(self) -> Phase:
        """What is being done."""
        return Phase(self._words[PHASE_AT])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[PHASE_AT] = phase

    @property
    def measure(self) -> int:
        """Grows when the warm-up is over: latencies of before are forgotten."""
        return self._words[MEASURE_AT]

    @measure.setter
    def measure(self, number: int) -> None:
        self._words[MEASURE_AT] = number

    @property
    def start_ns(self) -> int:
        """When publishing began."""
        return self._words[START_AT]

    @start_ns.setter
    def start_ns(self, moment: int) -> None:
        self._words[START_AT] = moment

    def row(self, worker: int) -> memoryview:
        """The bytes of one worker's counters."""
        at = (CONTROL_WORDS + worker * ROW_WORDS) * WORD_BYTES
        return self._bytes[at : at + ROW_BYTES]

    def count_blocked(self, worker: int) -> None:
        """Note that the broker has told this worker to hold back."""
        self._words[CONTROL_WORDS + worker * ROW_WORDS + BLOCKED_AT] += 1

    def totals(self, workers: int) -> Totals:
        """All workers' counters together."""
        return Totals.of(list(self.row(worker).cast("Q")) for worker in range(workers))
