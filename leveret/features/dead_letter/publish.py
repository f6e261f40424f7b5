"""At-least-once dead-lettering: which target queues hold which messages, and what is still missing.

With the strategy at-least-once a range of dead messages stays leased in its queue until every
target queue has committed it. A target that refuses messages, because it is full, is tried again
later, and only that one: so a full queue does not fill the others with duplicates. A target that
holds messages and lacks copies of them is waited for: it will have committed them some day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.core.logs.log_writer import PatientWaiter
from leveret.ports.callbacks import do_nothing
from leveret.ports.partitioner import place_of
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from leveret.ports.records import BatchBuilder

Ranges = list[tuple[int, int]]
Written = frozenset[object]  # places, as of `place_of`

NOWHERE: Written = frozenset()


class Missing(NamedTuple):
    """Offsets [first, stop) that only the queues of `written` store; other targets lack them."""

    first: int
    stop: int
    written: Written


class DeadLetterPublish:
    """Dead-letter publish in progress. `written`: places of the queues that store the range."""

    def __init__(self, ranges: Sequence[tuple[int, int]], written: Written = NOWHERE) -> None:
        self.written = written
        self._ranges = ranges
        self._unrouted: Sequence[tuple[int, int]] = ranges
        self._acknowledgements: dict[BatchBuilder, PublishAcknowledgement] = {}
        self._pending = 0

    def acknowledgement(self, builder: BatchBuilder) -> PublishAcknowledgement:
        """Return the acknowledgement of the records deposited in `builder`."""
        if builder not in self._acknowledgements:
            self._acknowledgements[builder] = PublishAcknowledgement(self, place_of(builder))
        return self._acknowledgements[builder]

    def deposited(
        self, builders: Collection[BatchBuilder], unrouted: Sequence[tuple[int, int]]
    ) -> None:
        """Record the builders that got the records, and the ranges that no queue took."""
        self._unrouted = unrouted
        for builder in builders:
            self.acknowledgement(builder)

    def begin(self, finished: Callable[[], None], held_up: Callable[[], None] = do_nothing) -> None:
        """Wait for the targets' commits, then call `finished`; possibly at once.

        `held_up` is called before if that may take any time, since a target lacks copies.
        """
        self._finished = finished
        self.held_up = held_up
        self._pending = len(self._acknowledgements) + 1
        for builder, acknowledgement in self._acknowledgements.items():
            builder.owner.await_commit(acknowledgement)
        self.answered()

    def answered(self) -> None:
        """Count an answer of a target; finish after the last one."""
        self._pending -= 1
        if not self._pending:
            self._finished()

    def outcome(self) -> tuple[Ranges, list[Missing]]:
        """Return (ranges every target committed, ranges still missing somewhere)."""
        absent = RangeSet(self._unrouted)
        for acknowledgement in self._acknowledgements.values():
            for first, stop in self._ranges if acknowledgement.failed else acknowledgement.refusals:
                absent.add(first, stop)
        written_by_all = RangeSet(self._ranges)
        missing = []
        for first, stop in absent:
            written_by_all.remove(first, stop)
            missing.append(Missing(first, stop, self.written))
        for acknowledgement in self._acknowledgements.values():
            missing = [part for piece in missing for part in acknowledgement.divide(piece)]
        return list(written_by_all), sorted(missing, key=lambda piece: piece.first)


class PublishAcknowledgement(PatientWaiter):
    """Acknowledgement by one target queue, by the records' offsets in the source queue."""

    def __init__(self, publish: DeadLetterPublish, place: object) -> None:
        self.failed = False
        self.refusals = RangeSet()
        self._publish = publish
        self._place = place  # of the target

    def held_up(self) -> None:
        """Note that the target lacks copies of what it holds."""
        self._publish.held_up()

    def refused(self, first: int, stop: int) -> None:
        """Note that the target refused the records [first, stop)."""
        self.refusals.add(first, stop)

    def done(self, *, failed: bool) -> None:
        """Note that the target committed the accepted records, or failed to."""
        self.failed = failed
        self._publish.answered()

    def divide(self, piece: Missing) -> list[Missing]:
        """Split a missing range by what this target holds."""
        first, stop, written = piece
        if self.failed:
            return [piece]
        taken = self.refusals.gaps(first, stop)
        refused = taken.gaps(first, stop)
        return [
            *(Missing(low, high, written | {self._place}) for low, high in taken),
            *(Missing(low, high, written) for low, high in refused),
        ]
