"""Enforcement of a queue's lifetimes and limits.

Created on demand, for queues that have any. Called around every append (refusing and indexing
records) and after every delivery round: remaining messages may have expired, or exceed a limit. A
message that was just committed is offered to consumers first, however short its lifetime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.expiry import Expiry
from leveret.core.queues.extensions import QueueExtension
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX
from leveret.core.queues.overflow import OverflowPolicy
from leveret.core.settings.discard_reasons import Reason
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from leveret.core.logs.log_writer import Committing
    from leveret.core.queues.extensions import Demand
    from leveret.core.queues.queue import Queue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch, BatchBuilder


class ExpiryAndLimits(QueueExtension):
    """Lifetimes and limits of one queue."""

    demanded_by = indexed_features = RecordFlag.HAS_EXPIRATION

    @classmethod
    def follow(
        cls, queue: Queue, present: QueueExtension | None, demand: Demand
    ) -> QueueExtension | None:
        """See ExtensionKind. Once a queue has one it keeps it: some records may expire."""
        wanted = queue.settings.message_ttl_ms is not None or queue.settings.is_limited
        if present is None and (wanted or demand.features & cls.demanded_by):
            return cls(queue)
        return present

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._state = queue.state
        self._timers = queue.services.timers
        self._timer = self._timers.timer(queue.touch)
        # Messages below were offered to consumers before, and may have expired since.
        self._offered_stop = queue.state.committed
        self.expiry = Expiry(queue.state, queue.settings.message_ttl_ms)
        self.overflow = OverflowPolicy(queue, queue.settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other lifetimes and limits from now on."""
        self.expiry.set_ttl(settings.message_ttl_ms)
        self.overflow.reconfigure(settings)

    # -- around an append

    def admit(self, builder: BatchBuilder) -> Committing | None:
        """Refuse the records in `builder` that exceed the limits."""
        refused = self.overflow.refuse(builder)
        if refused is not None:
            self._queue.discarded.refused(refused)
        return None

    def has_room(self, count: int, body_bytes: int) -> bool:
        """Whether no record of an atomic write would be refused."""
        return self.overflow.has_room(count, body_bytes)

    @property
    def indexes_all(self) -> bool:  # type: ignore[override]
        """Whether it needs the sizes of all records."""
        return self._state.counts_bytes

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """Estimated memory of deadlines."""
        return self.expiry.held_bytes

    def appended(self, batch: Batch, settled: RangeSet | None) -> None:  # noqa: ARG002
        """Index the deadlines of a batch's records."""
        if batch.features & RecordFlag.HAS_EXPIRATION:
            self.expiry.index(batch)

    def recovered(self) -> None:
        """Count the bytes of what was ready before its sizes were known."""
        self._state.recount_bytes()

    def committed(self) -> None:
        """Enforce what no consumer can take at once.

        A message count before the next turn must not include expired or excess messages.
        """
        self.expiry.more_is_ready()
        if self._queue.next_offer() is None:
            self.pumped(delivered=False)

    def returned(self) -> None:
        """Check overdue messages again."""
        self.expiry.more_is_ready()

    def truncated(self, offset: int) -> None:
        """Drop records from `offset` on: they are lost, and their offsets will be reused."""
        self.expiry.truncate(offset)

    # -- around a delivery

    def _alive(self, first: int, stop: int, batches: list[Batch]) -> tuple[int, bool]:
        """Return (stop, expired): how far [first, stop) may be sent, or has expired."""
        if first >= self._offered_stop:
            return stop, False
        now = self._timers.wall_ms()
        return self.expiry.fate(batches, first, min(stop, self._offered_stop), now)

    def filter_ready(
        self, runs: list[tuple[int, int]], batches: list[Batch]
    ) -> list[tuple[int, int]]:
        """Discard the expired records of these ready runs, and return the others."""
        alive = []
        for first, stop in runs:
            at = first
            while at < stop:
                end, expired = self._alive(at, stop, batches)
                assert end > at, "the batches hold the runs"
                if expired:
                    self._queue.give_up(self._state.withdraw([(at, end)]), Reason.EXPIRED)
                else:
                    alive.append((at, end))
                at = end
        return alive

    def withholds(self, batch: Batch, offset: int) -> bool:
        """Whether a leased record has expired; it is then discarded."""
        expired = self.expiry.fate([batch], offset, offset + 1, self._timers.wall_ms())[1]
        if expired:
            self._queue.give_up([(offset, offset + 1)], Reason.EXPIRED)
        return expired

    def pumped(self, *, delivered: bool) -> bool:
        """Discard expired and excess messages. Returns whether another turn is needed at once."""
        queue = self._queue
        if not queue.reader.fetching:
            self._offered_stop = self._state.committed
        now = self._timers.wall_ms()
        queue.give_up(self.expiry.take_due(now), Reason.EXPIRED)
        more = self.expiry.has_due(now)
        if self.expiry.ttl_ms is not None and self._expire_oldest(now):
            more = True
        self._timer.set(self.expiry.next_deadline())
        if delivered and self._is_draining():
            return True
        for part, ranges in self.overflow.overflowing():
            part.give_up(ranges, Reason.MAX_LENGTH)
        return more

    def _is_draining(self) -> bool:
        """Whether a consumer only waits for its socket, and the excess can wait for it too."""
        return self._state.ready_count < PUMP_RECORDS_MAX and self._queue.credit_once_sent() > 0

    def _expire_oldest(self, now: int) -> bool:
        """Discard messages that exceed the TTL. Returns whether there may be more."""
        expired_count = 0
        while (oldest := self.expiry.oldest()) is not None and not self.expiry.is_young(now):
            if oldest >= self._offered_stop:
                return False
            batches = self._queue.reader.read(oldest)
            if batches is None:
                return False
            stop, expired = self.expiry.fate(batches, oldest, self._offered_stop, now)
            if not expired:
                self.expiry.note_oldest(oldest, batches)
                return False
            withdrawn = self._state.withdraw([(oldest, stop)])
            self._queue.give_up(withdrawn, Reason.EXPIRED)
            expired_count += stop - oldest
            if expired_count > PUMP_RECORDS_MAX:
                return True
        return False

    def close(self) -> None:
        """Stop: the queue was deleted, or is rebuilt with another order."""
        self._timer.close()
