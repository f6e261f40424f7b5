"""Originals of retried messages: where a queue's log has the record that was published.

Each attempt is a record of its own, at the queue's tail. A queue that keeps settled messages still
has the first record, which consumer groups and range reads are offered instead of attempts. Who
deletes an attempt deletes the message, so the first record has to go, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import raw_headers
from leveret.features.retry.rules import attempts_of
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports.records import Batch

__all__ = ["Originals"]

ENTRY_BYTES = 150  # of a dictionary


class Originals:
    """Offsets of originals, by the offsets of their attempts.

    An attempt is `away` in the retry topic, or back in the queue as one of the `attempts`.
    """

    def __init__(self) -> None:
        self.away: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        self._doomed = RangeSet()  # to be erased once they are settled

    @property
    def held_bytes(self) -> int:
        """Estimated memory."""
        return ENTRY_BYTES * (len(self.away) + len(self.attempts)) + self._doomed.held_bytes

    def found_away(self, topic_offset: int, header: bytes) -> None:
        """Note a message of the retry topic."""
        original = attempts_of(raw_headers(header)).original
        if original is not None:
            self.away[topic_offset] = original

    def appended(self, batch: Batch, settled: RangeSet | None) -> None:
        """Note the attempts in a batch of the queue's log, except `settled` ones."""
        for offset, flags, _, _, _, header, _ in batch.records():
            if flags & RecordFlag.RETRIED and (settled is None or offset not in settled):
                original = attempts_of(raw_headers(header)).original
                if original is not None:
                    self.attempts[offset] = original

    def of(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the originals of the attempts in some ranges of the queue."""
        chosen = [self.attempts[attempt] for attempt in _within(self.attempts, ranges)]
        return [(offset, offset + 1) for offset in chosen]

    def settled(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Forget attempts that were settled. Returns the ranges to be erased now."""
        for attempt in _within(self.attempts, ranges):
            del self.attempts[attempt]
        if not self._doomed:
            return []
        due = [part for each in ranges for part in self._doomed.gaps(*each).gaps(*each)]
        for first, stop in due:
            self._doomed.remove(first, stop)
        return due

    def doom(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note originals that are to be erased when they are settled."""
        self._doomed.add_all(ranges)

    def truncated(self, offset: int) -> None:
        """Forget attempts from `offset` on, which were lost; they are still in the retry topic."""
        for lost in [attempt for attempt in self.attempts if attempt >= offset]:
            del self.attempts[lost]


def _within(known: dict[int, int], ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the offsets in some ranges that are known, at the cost of whichever are fewer."""
    if not known:
        return []
    if sum(stop - first for first, stop in ranges) <= len(known):
        return [at for first, stop in ranges for at in range(first, stop) if at in known]
    chosen = RangeSet(ranges)
    return [at for at in known if at in chosen]
