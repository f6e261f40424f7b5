"""Dead letters that must arrive: who holds which of them, and what must be sent again to whom.

With the strategy at-least-once a stretch of dead messages stays leased in its queue until every
queue that it was deposited with has committed it. What a queue refuses, because it is full, it is
told again later, and nobody else is: so a full queue does not fill the others with copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from leveret.ports.records import BatchBuilder

Ranges = list[tuple[int, int]]
Written = frozenset["BatchBuilder"]

NOWHERE: Written = frozenset()


class Missing(NamedTuple):
    """The offsets [first, stop), which only the queues of `written` have, and others should."""

    first: int
    stop: int
    written: Written


class DeadLetterPublish:
    """One stretch of dead messages on its way. `written`: the builders of queues that have it."""

    def __init__(self, ranges: Sequence[tuple[int, int]], written: Written = NOWHERE) -> None:
        self.written = written
        self._ranges = ranges
        self._unrouted: Sequence[tuple[int, int]] = ranges
        self._acknowledgements: dict[BatchBuilder, PublishAcknowledgement] = {}
        self._pending = 0

    def acknowledgement(self, builder: BatchBuilder) -> PublishAcknowledgement:
        """Who hears what becomes of the records that are deposited in `builder`."""
        if builder not in self._acknowledgements:
            self._acknowledgements[builder] = PublishAcknowledgement(self)
        return self._acknowledgements[builder]

    def deposited(
        self, builders: Collection[BatchBuilder], unrouted: Sequence[tuple[int, int]]
    ) -> None:
        """The records stand in `builders`, but for those that no queue is for."""
        self._unrouted = unrouted
        for builder in builders:
            self.acknowledgement(builder)

    def begin(self, finished: Callable[[], None]) -> None:
        """Wait for the queues' commits, then call `finished`; perhaps at once."""
        self._finished = finished
        self._pending = len(self._acknowledgements) + 1
        for builder, acknowledgement in self._acknowledgements.items():
            builder.owner.await_commit(acknowledgement)
        self.answered()

    def answered(self) -> None:
        """One more has said what it holds."""
        self._pending -= 1
        if not self._pending:
            self._finished()

    def outcome(self) -> tuple[Ranges, list[Missing]]:
        """What everybody has who should, and what not."""
        absent = RangeSet(self._unrouted)
        for acknowledgement in self._acknowledgements.values():
            for first, stop in self._ranges if acknowledgement.failed else acknowledgement.refusals:
                absent.add(first, stop)
        written_by_all = RangeSet(self._ranges)
        missing = []
        for first, stop in absent:
            written_by_all.remove(first, stop)
            missing.append(Missing(first, stop, self.written))
        for builder, acknowledgement in self._acknowledgements.items():
            missing = [part for piece in missing for part in acknowledgement.divide(piece, builder)]
        return list(written_by_all), sorted(missing, key=lambda piece: piece.first)


class PublishAcknowledgement:
    """What one queue says of the records that were deposited with it, by their old offsets."""

    def __init__(self, publish: DeadLetterPublish) -> None:
        self.failed = False
        self.refusals = RangeSet()
        self._publish = publish

    def refused(self, first: int, stop: int) -> None:
        """Find no room for the records [first, stop) (see leveret.core.logs.publish_tags)."""
        self.refusals.add(first, stop)

    def done(self, *, failed: bool) -> None:
        """Commit what was not refused, or fail to."""
        self.failed = failed
        self._publish.answered()

    def divide(self, piece: Missing, builder: BatchBuilder) -> list[Missing]:
        """Tell what of a piece this queue holds, too."""
        first, stop, written = piece
        if self.failed:
            return [piece]
        taken = self.refusals.gaps(first, stop)
        refused = taken.gaps(first, stop)
        return [
            *(Missing(low, high, written | {builder}) for low, high in taken),
            *(Missing(low, high, written) for low, high in refused),
        ]
