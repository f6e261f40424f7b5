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
    from collections.abc import Callable, Iterable, Mapping, Sequence

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
        self._held_up: set[PublishAcknowledgement] = set()  # by a lack of copies

    def acknowledgement(self, builder: BatchBuilder) -> PublishAcknowledgement:
        """Return the acknowledgement of the records deposited in `builder`."""
        if builder not in self._acknowledgements:
            self._acknowledgements[builder] = PublishAcknowledgement(self, place_of(builder))
        return self._acknowledgements[builder]

    def deposited(
        self,
        given: Mapping[BatchBuilder, Iterable[tuple[int, int]]],
        unrouted: Sequence[tuple[int, int]],
    ) -> None:
        """Record which ranges each builder was given, and those that no queue took."""
        self._unrouted = unrouted
        for builder, ranges in given.items():
            self.acknowledgement(builder).given.add_all(ranges)

    def begin(self, finished: Callable[[], None], held_up: Callable[[], None] = do_nothing) -> None:
        """Wait for the targets' commits, then call `finished`; possibly at once.

        `held_up` is called before if that may take any time, since a target lacks copies.
        """
        self._finished = finished
        self._on_held_up = held_up
        self._pending = len(self._acknowledgements) + 1
        for builder, acknowledgement in self._acknowledgements.items():
            builder.owner.await_commit(acknowledgement)
        self.answered()

    def held_up(self, acknowledgement: PublishAcknowledgement) -> None:
        """Note that a target lacks copies, and so answers at some time or other."""
        self._held_up.add(acknowledgement)
        self._on_held_up()
        if self._pending == len(self._held_up):
            self._others_answered()

    def answered(self, acknowledgement: PublishAcknowledgement | None = None) -> None:
        """Count an answer of a target; finish after the last one."""
        self._pending -= 1
        if acknowledgement is not None:
            self._held_up.discard(acknowledgement)
        if not self._pending:
            self._finished()
        elif self._pending == len(self._held_up):
            self._others_answered()

    def _others_answered(self) -> None:
        """Handle that only targets are waited for that lack copies."""

    def outcome(self) -> tuple[Ranges, list[Missing]]:
        """Return (ranges every target committed, ranges still missing somewhere)."""
        absent = RangeSet(self._unrouted)
        for acknowledgement in self._acknowledgements.values():
            absent.add_all(acknowledgement.missing)
        written_by_all: Ranges = []
        missing: list[Missing] = []
        for first, stop in self._ranges:
            present = absent.gaps(first, stop)
            written_by_all += present
            missing += (Missing(*gap, self.written) for gap in present.gaps(first, stop))
        for acknowledgement in self._acknowledgements.values():
            missing = [part for piece in missing for part in acknowledgement.divide(piece)]
        return written_by_all, sorted(missing, key=lambda piece: piece.first)


class PublishAcknowledgement(PatientWaiter):
    """Acknowledgement by one target queue, by the records' offsets in the source queue."""

    def __init__(self, publish: DeadLetterPublish, place: object) -> None:
        self.given = RangeSet()  # the records that were written into its builder
        self._failed = False
        self._refusals = RangeSet()
        self._publish = publish
        self._place = place  # of the target

    @property
    def missing(self) -> RangeSet:
        """The records that the target was given and does not have."""
        return self.given if self._failed else self._refusals

    def held_up(self) -> None:
        """Note that the target lacks copies of what it holds."""
        self._publish.held_up(self)

    def refused(self, first: int, stop: int) -> None:
        """Note that the target refused the records [first, stop)."""
        self._refusals.add(first, stop)

    def done(self, *, failed: bool) -> None:
        """Note that the target committed the accepted records, or failed to."""
        self._failed = failed
        self._publish.answered(self)

    def divide(self, piece: Missing) -> list[Missing]:
        """Split a missing range by what this target holds."""
        first, stop, written = piece
        lacking = self.given.gaps(first, stop)
        lacking.add_all(self.missing)
        taken = lacking.gaps(first, stop)
        return [
            *(Missing(low, high, written | {self._place}) for low, high in taken),
            *(Missing(low, high, written) for low, high in taken.gaps(first, stop)),
        ]
