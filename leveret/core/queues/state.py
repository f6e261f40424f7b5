"""State of a queue without I/O: decides which consumer gets which offsets next.

The shell (`Queue`) tells it what has happened, by commands: the log committed more, a consumer
came, left or has credit, records were sent, settled or returned, time has passed. A command returns
what follows from it, in ranges of offsets: what to deliver, to discard, or when the next delay
ends. It knows offsets only, never bytes, never asks anybody, and the same commands lead to the same
state; its cost is per range. A delivery takes three steps:

    consumer = state.next()                               # whose turn is it?
    offer = state.credit(consumer, consumer.capacity())   # None: it waits until it is woken
    stop = send(offer)                                    # as much of it as could be sent
    state.deliver(offer, stop)

Its ledger, which only it touches, knows what is ready or leased; the consumers of one priority form
a line, the least recently served in front.

The ledger determines the order of ready offsets (`Ledger`, `PriorityLedger`, `GroupLedger`).
Messages that expire or exceed a limit are withdrawn: leased to no consumer until they are
discarded. Returns are counted per offset if there is a delivery limit; with a retry delay, returned
offsets become ready only with `release`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.ledgers.groups import GroupLedger
from leveret.core.ledgers.ledger import Ledger
from leveret.core.ledgers.priorities import PriorityLedger
from leveret.core.ledgers.sizes import BodySizes
from leveret.core.ledgers.weighing import WeighedLedger
from leveret.core.queues.delayed_requeue import DelayedRequeue
from leveret.core.queues.serving import Serving
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag
from leveret.ports.returns import Returns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.settings.queue_settings import QueueSettings, RetryDelay
    from leveret.ports import SharedLog
    from leveret.ports.records import Batch

# Records considered first when their bytes are limited; more only if they are too small.
RECORDS_FOR_BYTES = 256


class QueueState(Serving):
    """Ready and leased offsets of one queue, and its consumers.

    `single_active` and `by_priority` are those of Serving. Offsets returned more than
    `delivery_limit` times are discarded; `counts` has the number of returns, if `counts_returns` is
    set: of failures, or with `counts_every_return` of all returns. `acquired` always counts all.
    `returns` holds both. With `counts_retries` all returns count against the limit, and the number
    of failures is that of retries.
    """

    __slots__ = (
        "_counts_every_return",
        "_delayed",
        "_indexed",
        "_sizes",
        "counts",
        "counts_returns",
        "delivery_limit",
        "has_groups",
        "indexed_features",
        "retry_delay",
    )

    def __init__(
        self,
        ledger: Ledger,
        *,
        single_active: bool = False,
        by_priority: bool = False,
        counts_returns: bool = False,
        counts_every_return: bool = False,
        counts_retries: bool = False,
        delivery_limit: int | None = None,
        retry_delay: RetryDelay | None = None,
        returns: Returns | None = None,
    ) -> None:
        self._ledger = ledger
        self.returns = Returns() if returns is None else returns
        counts_every_return = counts_every_return or counts_retries
        if counts_every_return and not counts_retries:
            self.returns.failures.clear()  # counts of an earlier run with the other setting
        self.acquired = self.returns.acquired
        self.counts = self.acquired if counts_every_return else self.returns.failures
        self._single_active = single_active
        self._by_priority = by_priority
        self.counts_returns = counts_returns
        self._counts_every_return = counts_every_return
        self.delivery_limit = delivery_limit
        self.retry_delay = retry_delay
        self._delayed = DelayedRequeue()
        self._sizes: BodySizes | None = None  # of all unsettled records, if bytes are counted
        # The ledger, if its order depends on properties of records, and the flags of those.
        self._indexed = ledger if isinstance(ledger, PriorityLedger | GroupLedger) else None
        self._groups = ledger if isinstance(ledger, GroupLedger) else None
        self.has_groups = self._groups is not None  # whether messages wait for others of a group
        self.indexed_features = RecordFlag(0)
        if self._indexed is not None:
            with_group, with_priority = RecordFlag.HAS_GROUP, RecordFlag.HAS_PRIORITY
            self.indexed_features = with_priority if self._groups is None else with_group

    @classmethod
    def of_log(
        cls,
        log: SharedLog,
        settings: QueueSettings,
        *,
        counts_every_return: bool,
        counts_retries: bool = False,
    ) -> QueueState:
        """Return the state of a queue without consumers, as its log tells."""
        ledger = _make_ledger(log, settings)
        state = cls(
            ledger,
            counts_every_return=counts_every_return,
            counts_retries=counts_retries,
            returns=log.returns,
        )
        state.reconfigure(settings)
        return state

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, except those which determine the order of offsets."""
        self.counts_returns = settings.counts_deliveries
        self.delivery_limit = settings.delivery_limit
        self.retry_delay = settings.retry_delay
        self._single_active = settings.single_active
        self._by_priority = settings.single_active_by_priority

    @property
    def leased_count(self) -> int:
        """Number of offsets delivered and neither settled nor returned."""
        return self._ledger.leased_count - self._delayed.count

    @property
    def committed(self) -> int:
        """Committed offset: offsets below it are ready, leased or settled."""
        return self._ledger.committed

    @property
    def first_ready(self) -> int | None:
        """Lowest ready offset, or None."""
        return self._ledger.first_ready

    @property
    def unsettled_count(self) -> int:
        """Number of ready, leased and delayed offsets."""
        return self._ledger.ready_count + self._ledger.leased_count

    @property
    def has_leases(self) -> bool:
        """Whether any offset is leased to a consumer or to nobody, delayed ones included."""
        return self._ledger.leased_count > 0

    @property
    def delayed_count(self) -> int:
        """Number of returned offsets that are delayed."""
        return self._delayed.count

    @property
    def next_delayed_ms(self) -> int | None:
        """When the first delayed offset becomes ready, in ms since 1970, or None."""
        return self._delayed.next_ms

    def is_delayed(self, offset: int) -> bool:
        """Whether an offset was returned and is delayed."""
        return self._delayed.holds(offset)

    @property
    def waiting_count(self) -> int:
        """Number of ready and delayed offsets."""
        return self._ledger.ready_count + self._delayed.count

    @property
    def waiting_bytes(self) -> int:
        """Bytes of ready and delayed messages, if bytes are counted, else 0."""
        ledger = self._ledger
        ready_bytes = ledger.ready_bytes if isinstance(ledger, WeighedLedger) else 0
        return ready_bytes + self._delayed.bytes

    @property
    def held_bytes(self) -> int:
        """Memory of ready, leased and delayed ranges, in bytes."""
        return self._ledger.held_bytes + self._delayed.held_bytes

    def ready_in(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the ready ranges of [first, stop)."""
        return self._ledger.ready_in(first, stop)

    def leased_in(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the leased ranges of [first, stop), delayed ones included."""
        return self._ledger.leased_in(first, stop)

    def next_ranges(self, limit: int) -> list[tuple[int, int]]:
        """Return the ranges of the next `limit` offsets to be delivered, in order."""
        return self._ledger.next_ranges(limit)

    def next_ranges_of(self, size: int) -> list[tuple[int, int]]:
        """Return the ranges of the next offsets that have `size` bytes together, in order."""
        assert self._sizes is not None, "bytes are counted"
        limit = RECORDS_FOR_BYTES
        while True:
            found: list[tuple[int, int]] = []
            missing = size
            for first, stop in self.next_ranges(limit):
                reached, reached_bytes = self._sizes.reach(first, stop, missing)
                found.append((first, reached))
                missing -= reached_bytes
                if missing <= 0:
                    return found
            if limit >= self.ready_count:
                return found
            limit *= 8

    def peek_runs(self, limit: int, end: int) -> tuple[list[tuple[int, int]], bool]:
        """Return (runs, redelivered): the next offsets below `end`, at most `limit` of them."""
        return self._ledger.peek_runs(limit, end)

    def ready_sets(self) -> list[tuple[int, RangeSet]]:
        """Return (level, its ready offsets) in order of service, for filters' positions."""
        return self._ledger.ready_sets()

    def alike(self, first: int, stop: int) -> tuple[int, bool]:
        """Return (stop, redelivered): how far ready offsets from `first` on have that in common."""
        return self._ledger.kind(first, stop)

    def unsettled(self) -> RangeSet:
        """Return all ready and leased offsets, as a new RangeSet."""
        return self._ledger.unsettled()

    # -- properties of records, which determine the order and the bytes

    @property
    def counts_bytes(self) -> bool:
        """Whether `index` must be told all records, to count the bytes of waiting ones."""
        return self._sizes is not None

    def count_bytes(self, *, wanted: bool) -> None:
        """Count the bytes of waiting records from now on, or no longer.

        After records that are waiting already have been indexed for it, call `recount_bytes`.
        """
        if wanted == self.counts_bytes:
            return
        ledger = self._ledger
        if isinstance(ledger, WeighedLedger):
            ledger = ledger.inner
        self._sizes = BodySizes() if wanted else None
        self._ledger = ledger if self._sizes is None else WeighedLedger(ledger, self._sizes)
        self._delayed.weigh(self._sizes)

    def recount_bytes(self) -> None:
        """Count the bytes of waiting records anew."""
        if isinstance(self._ledger, WeighedLedger):
            self._ledger.weigh()
        self._delayed.weigh(self._sizes)

    def bytes_of(self, first: int, stop: int) -> int:
        """Return the bytes of the records [first, stop), if bytes are counted, else 0."""
        return 0 if self._sizes is None else self._sizes.total(first, stop)

    def index(self, batch: Batch, settled: RangeSet | None = None) -> None:
        """Index a batch's records, before they are committed, or except `settled` ones."""
        if self._indexed is not None and batch.features & self.indexed_features:
            self._indexed.index(batch)
        if self._sizes is not None:
            self._sizes.index(batch)
            if settled is not None:
                first, stop = batch.base_offset, batch.stop_offset
                for low, high in settled.gaps(first, stop).gaps(first, stop):
                    self._sizes.forget(low, high)

    def truncate(self, offset: int) -> None:
        """Forget uncommitted records from `offset` on: they are lost, their offsets reused."""
        if self._indexed is not None:
            self._indexed.truncate(offset)
        if self._sizes is not None:
            self._sizes.truncate(offset)

    # -- returns, as filters follow them

    def track_returns(self) -> None:
        """Note returned offsets from now on, for `take_returned`."""
        self._ledger.came_back = RangeSet()

    def take_returned(self) -> list[tuple[int, int]] | None:
        """Return and forget the ranges returned since the last call; None: they are too many."""
        returned = self._ledger.came_back
        if returned is None:
            self.track_returns()
            return None
        ranges = list(returned)
        returned.clear()
        return ranges

    @property
    def redelivered_stop(self) -> int:
        """Offset below which messages may have been delivered before."""
        return self._ledger.redelivered_stop

    def unblock(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make offsets ready that were withdrawn, and count no return."""
        self._ledger.return_(ranges)

    def return_(
        self,
        ranges: Iterable[tuple[int, int]],
        *,
        failed: bool = True,
        now_ms: int = 0,
        delay_ms: int | None = None,
    ) -> list[tuple[int, int]]:
        """Make leased offsets ready again for redelivery, possibly after a delay.

        The delay is `delay_ms`, else the queue's retry delay. Returns those beyond the delivery
        limit, which stay leased. `failed`: their consumer failed to process them.
        """
        refused: Iterable[tuple[int, int]] = ()
        if self.counts_returns:
            if not self._counts_every_return:
                ranges = list(ranges)
                self._count_acquired(ranges)
            if failed or self._counts_every_return:
                ranges, refused = self._count(ranges)
        if delay_ms:
            for first, stop in ranges:
                self._delayed.add(first, stop, now_ms + delay_ms)
        elif self.retry_delay is not None and self.retry_delay.applies(failed=failed):
            self._delay(ranges, self.retry_delay, now_ms)
        else:
            self._ledger.return_(ranges)
        return list(refused)

    def _delay(self, ranges: Iterable[tuple[int, int]], delay: RetryDelay, now_ms: int) -> None:
        """Delay leased offsets, each according to its number of returns."""
        counts = self.counts
        for first, stop in ranges:
            begin, begin_ms = first, delay.after(counts.get(first, 0))
            for offset in range(first + 1, stop):
                offset_ms = delay.after(counts.get(offset, 0))
                if offset_ms != begin_ms:
                    self._delayed.add(begin, offset, now_ms + begin_ms)
                    begin, begin_ms = offset, offset_ms
            self._delayed.add(begin, stop, now_ms + begin_ms)

    def release(self, now_ms: int) -> list[tuple[int, int]]:
        """Make offsets ready whose delay is over. Returns their ranges."""
        due = self._delayed.take_due(now_ms)
        self._ledger.return_(due)
        return due

    def release_all(self) -> None:
        """Make all delayed offsets ready."""
        self._ledger.return_(self._delayed.clear())

    def _count(self, ranges: Iterable[tuple[int, int]]) -> tuple[list[tuple[int, int]], RangeSet]:
        """Count a return of each offset. Returns (ranges within the limit, offsets beyond it)."""
        counts, limit = self.counts, self.delivery_limit
        accepted: list[tuple[int, int]] = []
        refused = RangeSet()
        for first, stop in ranges:
            begin = first
            for offset in range(first, stop):
                count = counts[offset] = counts.get(offset, 0) + 1
                if limit is not None and count > limit:
                    refused.add(offset, offset + 1)
                    if begin < offset:
                        accepted.append((begin, offset))
                    begin = offset + 1
            if begin < stop:
                accepted.append((begin, stop))
        return accepted, refused

    def _count_acquired(self, ranges: list[tuple[int, int]]) -> None:
        acquired = self.acquired
        for first, stop in ranges:
            for offset in range(first, stop):
                acquired[offset] = acquired.get(offset, 0) + 1

    def retry_count(self, offset: int) -> int:
        """Return how often an offset was retried, where that is counted."""
        return self.returns.failures.get(offset, 0)

    def count_retries(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Count a retry of leased offsets, which are returned next."""
        retries = self.returns.failures
        for first, stop in ranges:
            for offset in range(first, stop):
                retries[offset] = retries.get(offset, 0) + 1

    def withdraw(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Lease the ready part of `ranges` to no consumer, to be discarded. Returns it."""
        return self._ledger.withdraw(ranges)

    def purge(self) -> list[tuple[int, int]]:
        """Settle everything ready or delayed and return its ranges. Leased offsets stay leased."""
        self.release_all()
        purged = self._ledger.purge()
        self.returns.forget(purged)
        return purged

    def lose(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Drop the ready part of `ranges`, which is lost, and return it.

        Leased offsets stay leased.
        """
        lost = self._ledger.lose(ranges)
        self.returns.forget(lost)
        return lost


def _make_ledger(log: SharedLog, settings: QueueSettings) -> Ledger:
    state = log.first, log.committed, log.settled, log.redelivered_stop
    if settings.group_ordering:
        return GroupLedger(*state)
    if settings.max_priority is not None:
        priorities = settings.max_priority, settings.default_priority
        return PriorityLedger(*state, *priorities, settings.returns_first)
    return Ledger(*state)
