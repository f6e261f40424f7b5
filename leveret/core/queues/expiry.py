"""Expiry of a queue's ready messages.

A message expires on time wherever it is, even behind one with a longer lifetime. With one TTL for
all, the oldest expires first, and its batch says when; messages with an own `expiration` are in
`Deadlines`. A message whose time passes while it is leased expires when it is requeued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.window import batch_of
from leveret.core.queues.deadlines import Deadlines, deadline, same_fate
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.queues.state import QueueState
    from leveret.ports.records import Batch

# Minimum number of deadlines before those of delivered messages are pruned; they must also
# outnumber the live messages.
DEADLINES_MIN = 1024


class Expiry:
    """Expiry of one queue's messages; `ttl_ms` applies to all of them."""

    def __init__(self, state: QueueState, ttl_ms: int | None) -> None:
        self._state = state
        self.ttl_ms = ttl_ms
        self._deadlines = Deadlines()
        self._overdue = RangeSet()  # expired while leased or uncommitted
        self._recheck = False  # whether some of those may be ready by now
        self._oldest: int | None = None  # oldest ready offset, whose deadline is known
        self._oldest_deadline: int | None = None

    @property
    def held_bytes(self) -> int:
        """Memory of the deadlines, in bytes."""
        return self._deadlines.held_bytes + self._overdue.held_bytes

    def index(self, batch: Batch) -> None:
        """Add the records of a batch that have an expiration."""
        self._deadlines.index(batch)
        live_count = self._state.unsettled_count + batch.count
        if len(self._deadlines) > max(DEADLINES_MIN, 2 * live_count):
            live = self._state.unsettled()
            live.add(batch.base_offset, batch.stop_offset)
            self._deadlines.prune(live)

    def truncate(self, offset: int) -> None:
        """Drop records from `offset` on: they are lost, and their offsets will be reused."""
        self._deadlines.truncate(offset)
        overdue_stop = self._overdue.stop
        if overdue_stop is not None:
            self._overdue.remove(offset, overdue_stop)

    def set_ttl(self, ttl_ms: int | None) -> None:
        """Apply another TTL to all messages, present ones included."""
        self.ttl_ms = ttl_ms
        self._oldest = self._oldest_deadline = None

    def take_due(self, now: int) -> list[tuple[int, int]]:
        """Withdraw ready messages whose own expiration has passed, as far as taken at once."""
        due = self._deadlines.take_due(now)
        if due or (self._recheck and self._overdue):
            return self._withdraw(RangeSet([*self._overdue, *due]))
        return []

    def has_due(self, now: int) -> bool:
        """Whether `take_due` has left due entries."""
        due = self._deadlines.next
        return due is not None and due <= now

    def _withdraw(self, due: RangeSet) -> list[tuple[int, int]]:
        """Withdraw what is ready of `due`; remember the rest until it is ready."""
        taken = self._state.withdraw(list(due))
        self._overdue = RangeSet()
        self._recheck = False
        for first, stop in due:
            for low, high in self._state.leased_in(first, stop):
                self._overdue.add(low, high)
            self._overdue.add(max(first, self._state.committed), stop)
        for first, stop in taken:
            self._overdue.remove(first, stop)
        return taken

    def more_is_ready(self) -> None:
        """Check overdue messages again: some were committed or requeued."""
        self._recheck = True

    def fate(self, batches: list[Batch], first: int, stop: int, now: int) -> tuple[int, bool]:
        """Return (stop, expired): how far records from `first` on are all expired, or all not."""
        return same_fate(batches, first, stop, now, self.ttl_ms)

    def oldest(self) -> int | None:
        """Return the ready record that expires first by the TTL, or None without a TTL."""
        if self.ttl_ms is None:
            return None
        oldest = self._state.first_ready
        if oldest is None or oldest != self._oldest:
            self._oldest = self._oldest_deadline = None
        return oldest

    def note_oldest(self, offset: int, batches: list[Batch]) -> None:
        """Remember the deadline of `offset`, which has not expired."""
        self._oldest = offset
        self._oldest_deadline = deadline(batch_of(batches, offset), offset, self.ttl_ms)

    def is_young(self, now: int) -> bool:
        """Whether the oldest record is known not to have expired."""
        return self._oldest_deadline is not None and now < self._oldest_deadline

    def next_deadline(self) -> int | None:
        """Return the next known deadline, or None."""
        found = [d for d in (self._deadlines.next, self._oldest_deadline) if d is not None]
        return min(found, default=None)
