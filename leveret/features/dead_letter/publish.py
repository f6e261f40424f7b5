"""At-least-once dead-lettering: which target queues hold which messages, and what is still missing.

With the strategy at-least-once a range of dead messages stays leased in its queue until every
target queue has committed it. A target that refuses messages, because it is full, is tried again
later, and only that one: so a full queue does not fill the others with duplicates. A target that
holds messages and lacks copies of them is waited for: it will have committed them some day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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


Delivered: TypeAlias = "Callable[[Ranges, list[Missing]], None]"


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

    def begin(self, delivered: Delivered, held_up: Callable[[], None] = do_nothing) -> None:
        """Wait for the targets' commits, then call `delivered`; possibly at once.

        It gets the ranges that every target committed, and those still missing somewhere. If that
        may take any time, since targets lack copies, `held_up` is called before, and `delivered`
        more than once: first for the records that no such target was given.
        """
        self._delivered = delivered
        self._on_held_up = held_up
        self._pending = len(self._acknowledgements) + 1
        for builder, acknowledgement in self._acknowledgements.items():
            builder.owner.await_commit(acknowledgement)
        self.answered()

    def held_up(self, acknowledgement: PublishAcknowledgement) -> None:
        """Note that a target lacks copies, and so answers at some time or other."""
        self._held_up.add(acknowledgement)
        self._on_held_up()
        self._tell_outcome()

    def answered(self, acknowledgement: PublishAcknowledgement | None = None) -> None:
        """Count an answer of a target, or the end of `begin`."""
        self._pending -= 1
        if acknowledgement is not None:
            self._held_up.discard(acknowledgement)
        self._tell_outcome()

    def _tell_outcome(self) -> None:
        """Tell what is certain once only targets that lack copies are waited for, or none."""
        if self._pending > len(self._held_up):
            return
        awaited, left = RangeSet(), RangeSet(self._ranges)
        for acknowledgement in self._held_up:
            awaited.add_all(acknowledgement.given)
        certain = [gap for each in self._ranges for gap in awaited.gaps(*each)]
        for first, stop in certain:
            left.remove(first, stop)
        self._ranges = list(left)
        if certain:
            self._delivered(*self._outcome(certain))

    def _outcome(self, ranges: Ranges) -> tuple[Ranges, list[Missing]]:
        absent = RangeSet(self._unrouted)
        for acknowledgement in self._acknowledgements.values():
            absent.add_all(acknowledgement.missing)
        written_by_all: Ranges = []
        missing: list[Missing] = []
        for first, stop in ranges:
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
