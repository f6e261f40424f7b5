"""Which of a queue's ready messages have lived long enough, and when the next will have.

A message expires on time wherever it stands, also behind one that lives longer. Where all live
equally long the oldest goes first, and its batch says when; those with an `expiration` of their own
stand in `Deadlines`. What expires while it is leased does so when it comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.window import batch_of
from leveret.core.queues.deadlines import Deadlines, deadline, same_fate
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.queues.machine import QueueMachine
    from leveret.ports.records import Batch

# Deadlines of messages that were delivered meanwhile are weeded out when they are this many, and
# more than those that can be alive.
DEADLINES_MIN = 1024


class Expiry:
    """The lifetimes of one queue's messages; `ttl_ms` is that of all of them."""

    def __init__(self, machine: QueueMachine, ttl_ms: int | None) -> None:
        self._machine = machine
        self.ttl_ms = ttl_ms
        self._deadlines = Deadlines()
        self._overdue = RangeSet()  # expired while they were leased, or not committed
        self._recheck = False  # whether some of those may be ready now
        self._oldest: int | None = None  # whose deadline by age is known
        self._oldest_deadline: int | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that the deadlines take."""
        return self._deadlines.held_bytes + self._overdue.held_bytes

    def learn(self, batch: Batch) -> None:
        """Take in the records of a batch that say how long they live."""
        self._deadlines.learn(batch)
        if len(self._deadlines) > DEADLINES_MIN:
            ledger = self._machine.ledger
            if len(self._deadlines) > 2 * (ledger.ready_count + ledger.leased_count + batch.count):
                live = ledger.unsettled()
                live.add(batch.base_offset, batch.stop_offset)
                self._deadlines.prune(live)

    def forget(self, offset: int) -> None:
        """Records from `offset` on are lost; others will take their numbers."""
        self._deadlines.cut(offset)
        overdue_stop = self._overdue.stop
        if overdue_stop is not None:
            self._overdue.remove(offset, overdue_stop)

    def set_ttl(self, ttl_ms: int | None) -> None:
        """All messages live so long from now on, those that are there included."""
        self.ttl_ms = ttl_ms
        self._oldest = self._oldest_deadline = None

    def take_due(self, now: int) -> list[tuple[int, int]]:
        """Withdraw what is ready and has an expiration of its own that is over, or some of it."""
        due = self._deadlines.take_due(now)
        if due or (self._recheck and self._overdue):
            return self._withdraw(RangeSet([*self._overdue, *due]))
        return []

    def has_due(self, now: int) -> bool:
        """Whether `take_due` has left anything."""
        due = self._deadlines.next
        return due is not None and due <= now

    def _withdraw(self, due: RangeSet) -> list[tuple[int, int]]:
        """What is leased, or not committed yet, expires when it is ready."""
        ledger = self._machine.ledger
        taken = self._machine.withdraw(list(due))
        self._overdue = RangeSet()
        self._recheck = False
        for first, stop in due:
            for low, high in ledger.leased_in(first, stop):
                self._overdue.add(low, high)
            self._overdue.add(max(first, ledger.committed), stop)
        for first, stop in taken:
            self._overdue.remove(first, stop)
        return taken

    def more_is_ready(self) -> None:
        """Something was committed or came back, which may have expired already."""
        self._recheck = True

    def fate(self, batches: list[Batch], first: int, stop: int, now: int) -> tuple[int, bool]:
        """(stop, expired): how far records from `first` on have all expired, or all not."""
        return same_fate(batches, first, stop, now, self.ttl_ms)

    def oldest(self) -> int | None:
        """The ready record that expires first by its age, unless its deadline is known."""
        if self.ttl_ms is None:
            return None
        oldest = self._machine.ledger.first_ready
        if oldest is None or oldest != self._oldest:
            self._oldest = self._oldest_deadline = None
        return oldest

    def note_oldest(self, offset: int, batches: list[Batch]) -> None:
        """`offset` has not expired; remember when it will have."""
        self._oldest = offset
        self._oldest_deadline = deadline(batch_of(batches, offset), offset, self.ttl_ms)

    def is_young(self, now: int) -> bool:
        """Whether the oldest record is known not to have expired."""
        return self._oldest_deadline is not None and now < self._oldest_deadline

    def next_deadline(self) -> int | None:
        """When something expires next, as far as is known."""
        found = [d for d in (self._deadlines.next, self._oldest_deadline) if d is not None]
        return min(found, default=None)
