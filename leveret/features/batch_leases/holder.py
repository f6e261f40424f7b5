"""One holder of batch leases: a consumer of its queue, what it has leased, and its time.

A holder is there from its first request on. When it has asked for nothing during its idle time,
its leases go back to the queue, as deliveries do that were not acknowledged in time. All is in
memory: after a restart of the node everything leased is ready again, and the holder leases the
same offsets once more, as far as they are ready (`lease_again`), or settles them (`settle`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.core.queues.queue import Queue
from leveret.core.settings.arguments import type_of
from leveret.core.settings.discard_reasons import Reason
from leveret.features.batch_leases.lease_book import LeaseBook
from leveret.features.batch_leases.leasing import LeaseConsumer, Leasing, queue_parts
from leveret.features.batch_leases.rules import IDLE_MS_DEFAULT, LeaseRefusedError
from leveret.ports.counters import DELIVER, Counters, DeliveryStatistics
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.statistics.statistics import Statistics
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.features.batch_leases.lease_book import BatchLease
    from leveret.features.batch_leases.rules import LeaseLimits, LeaseWish, PartRanges

# Idle time of a holder that has nothing: meanwhile it is the queue's consumer, maybe the only one.
EMPTY_MS: Final = 10_000

__all__ = ["BatchHolder", "HolderName", "SettledCount"]


class HolderName(NamedTuple):
    """Name of a holder among those of one queue: two users may use one name independently."""

    user: str
    name: str


class SettledCount(NamedTuple):
    """Result of settling: messages that were settled now, and those that were somebody else's."""

    settled: int
    missing: int


class BatchHolder:
    """A job that consumes one queue by batch leases.

    `ended(holder)` is called when it is none any more: it was released or idle, or the queue was
    deleted.
    """

    def __init__(
        self,
        name: HolderName,
        queue: DeclaredQueue,
        *,
        turn: Turn,
        timers: Timers,
        statistics: Statistics,
        ended: Callable[[BatchHolder], None],
    ) -> None:
        self.name = name
        self.queue = queue
        self.book = LeaseBook()
        # Latency is not recorded: messages are counted when they are read, maybe much later.
        self.counted = DeliveryStatistics(
            DELIVER,
            queue.counters,
            Counters(),
            statistics.vhost(queue.definition.vhost),
            statistics.by_queue_type[type_of(queue.definition.arguments)],
        )
        self.is_open = True
        self._turn = turn
        self._timers = timers
        self._timer = timers.timer(self._idle_over)
        self._idle_ms = IDLE_MS_DEFAULT
        self._ended = ended
        self._leasing: Leasing | None = None
        self._asks: Callable[[BatchLease | None], None] | None = None
        part = queue if isinstance(queue, Queue) else None
        self._consumer = LeaseConsumer(self._gone, self._part_left, part)
        queue.add_consumer(self._consumer)
        self.asked()

    @property
    def is_leasing(self) -> bool:
        """Whether a lease is being made for it."""
        return self._leasing is not None

    @property
    def idle_at_ms(self) -> int:
        """When it is given up unless it asks for something, in ms since 1970."""
        return self._timer.due_ms or 0

    def asked(self, idle_ms: int | None = None) -> None:
        """Begin the idle time anew; `idle_ms` changes it. With nothing leased it is short."""
        self._idle_ms = self._idle_ms if idle_ms is None else idle_ms
        wait_ms = self._idle_ms if self.book.count else min(self._idle_ms, EMPTY_MS)
        self._timer.set(self._timers.wall_ms() + wait_ms)

    # -- leasing

    def lease(
        self,
        number: int,
        wish: LeaseWish,
        limits: LeaseLimits,
        done: Callable[[BatchLease | None], None],
    ) -> None:
        """Lease the next messages, and call `done` with the lease: None if there are none.

        A number that is leased already has what it had. Also None if the queue is deleted.
        Raises LeaseRefusedError.
        """
        self.asked(wish.idle_ms)
        found = self.book.find(number)
        if found is not None and found.count:
            done(found)
            return
        if self._leasing is not None:
            raise LeaseRefusedError("busy", f"holder '{self.name.name}' is being served already")
        messages, size = limits.messages_max - self.book.count, limits.bytes_max - self.book.size
        if messages <= 0 or size <= 0:
            raise LeaseRefusedError("full", _full(self.name, limits))
        wish = replace(
            wish,
            messages_max=min(wish.messages_max, messages),
            bytes_max=min(wish.bytes_max, size),
        )

        def finished() -> None:
            leasing, self._leasing, self._asks = self._leasing, None, None
            assert leasing is not None, "it was under way"
            done(self._note(number, leasing))

        self._asks = done
        self._leasing = Leasing(
            wish, self.queue, self._consumer, turn=self._turn, timers=self._timers, done=finished
        )
        self._leasing.begin()

    def _note(self, number: int, leasing: Leasing) -> BatchLease | None:
        """Note what was taken as a lease; None if nothing was."""
        lease = None
        if leasing.count:
            lease = self.book.open(number)
            lease.size += leasing.size
            for partition, ranges in leasing.parts.items():
                lease.add(partition, ranges)
        self.asked()
        return lease

    def cancel_leasing(self) -> None:
        """Give back what a lease in the making has taken: its client has hung up."""
        leasing, self._leasing, self._asks = self._leasing, None, None
        if leasing is not None:
            leasing.close()
            self._return(leasing.parts, failed=False, cause=None)

    def finish_leasing(self) -> None:
        """Finish a lease in the making with what it has: the node stops."""
        leasing, asks = self._leasing, self._asks
        if leasing is not None and asks is not None:
            self.cancel_leasing()
            asks(None)

    def lease_again(
        self, number: int, wanted: PartRanges, limits: LeaseLimits
    ) -> tuple[PartRanges, int]:
        """Lease these offsets under a number, those that are ready; return what of them is there.

        What others have taken meanwhile can be read all the same, unless they have settled it: so a
        batch that is begun again has everything that `settle` may settle later. Also returns how
        many are settled. Raises LeaseRefusedError.
        """
        lease = self.book.find(number)
        self._check_ready()
        room = limits.messages_max - self.book.count
        if sum(ranges.count for ranges in wanted.values()) > room + (lease.count if lease else 0):
            raise LeaseRefusedError("full", _full(self.name, limits))
        lease = self.book.open(number)
        has: PartRanges = {}
        for part in self._parts_of(wanted):
            ranges, state = wanted[part.number], part.state
            if self._is_served(part):
                taken = state.withdraw(self.book.unknown(part.number, ranges))
                lease.add(part.number, taken)
                self._hold(part, _length(taken))
            has[part.number] = RangeSet(
                found
                for each in ranges
                for found in (*state.ready_in(*each), *state.leased_in(*each))
            )
        lease.show(wanted, has)
        self.asked()
        return has, _count(wanted) - _count(has)

    def _is_served(self, part: Queue) -> bool:
        """Whether a partition may give it messages out of turn: no other is its only consumer."""
        share = self._consumer.share_of(part.number)
        return not part.settings.single_active or part.state.active is share

    def _check_ready(self) -> None:
        """Raise LeaseRefusedError while the queue delivers nothing."""
        if self.queue.settings.is_paused:
            raise LeaseRefusedError("busy", f"{self.queue} is paused")
        if any(part.is_restoring for part in queue_parts(self.queue)):
            raise LeaseRefusedError("busy", f"{self.queue} is being restored")

    def _parts_of(self, wanted: PartRanges) -> list[Queue]:
        return [part for part in queue_parts(self.queue) if part.number in wanted]

    # -- settling

    def settle(self, number: int, wanted: PartRanges) -> SettledCount:
        """Settle the leases up to a number, and of `wanted` what is ready.

        `wanted` are the offsets of that lease as its holder knows them: after a restart of the node
        they are ready again. Raises LeaseRefusedError.
        """
        unknown = {} if number <= self.book.settled else wanted
        if unknown:
            self._check_ready()
        missing = {at: self.book.unknown(at, ranges) for at, ranges in unknown.items()}
        leased = self.book.settle(number)
        count = lost = 0
        for part in queue_parts(self.queue):
            ranges = list(leased.get(part.number, ()))
            held = sum(stop - first for first, stop in ranges)
            sought = missing.pop(part.number, [])
            taken = part.state.withdraw(sought)
            lost += _length(sought) - _length(taken)
            self._settle_of(part, [*ranges, *taken], held)
            count += held + _length(taken)
        lost += sum(map(_length, missing.values()))
        self.asked()
        if count:
            self.counted.acknowledged(count)
        return SettledCount(count, lost)

    def _settle_of(self, part: Queue, ranges: list[tuple[int, int]], held: int) -> None:
        if ranges:
            part.settle(ranges)
            self._hold(part, -held)

    def _hold(self, part: Queue, count: int) -> None:
        """Note that it holds more messages of a partition, or fewer."""
        share = self._consumer.share_of(part.number)
        if share is not None and count:
            share.in_flight += count
            part.wake(share)  # another may become the single active consumer

    # -- the end

    def release(self) -> int:
        """Give all messages back; return their number. It is no holder any more."""
        return self._end(failed=False, cause=Reason.REQUEUED)

    def _idle_over(self) -> None:
        if self._leasing is not None:
            self.asked()
            return
        self._end(failed=True, cause=Reason.TIMED_OUT)

    def _end(self, *, failed: bool, cause: Reason) -> int:
        if not self.is_open:
            return 0
        self.finish_leasing()
        parts = self.book.clear()
        self.queue.remove_consumer(self._consumer)
        self._close()
        self._return(parts, failed=failed, cause=cause)
        return _count(parts)

    def _return(self, parts: PartRanges, *, failed: bool, cause: Reason | None) -> None:
        for part in queue_parts(self.queue):
            ranges = list(parts.get(part.number, ()))
            if ranges:
                self._hold(part, -_length(ranges))
                part.return_(ranges, failed=failed, cause=cause)

    def _part_left(self, number: int) -> None:
        """End, as another node leads a partition from now on, which delivers what was leased of it.

        Other partitions' leases are over as well: nobody shall read a part of one, and settle the
        whole. They are given back later, since the queue is at replacing the partition.
        """
        if not self.is_open:
            return
        held = self.book.clear()
        taken = {} if self._leasing is None else self._leasing.parts
        self._close()
        self._leasing_over()
        left = [{at: each[at] for at in each if at != number} for each in (held, taken)]
        self._timers.after(0, lambda: self._leave(left))

    def _leave(self, left: Iterable[PartRanges]) -> None:
        """Give messages back, and consume no more."""
        if not self.queue.deleted:
            self.queue.remove_consumer(self._consumer)
            for parts in left:
                self._return(parts, failed=False, cause=Reason.REQUEUED)

    def _gone(self) -> None:
        """End without messages: the queue was deleted."""
        if self.is_open:
            self._close()
            self._leasing_over()

    def _leasing_over(self) -> None:
        """End a lease in the making without giving back what it has taken."""
        asks, leasing = self._asks, self._leasing
        self._asks = self._leasing = None
        if leasing is not None and asks is not None:
            leasing.close()
            asks(None)

    def _close(self) -> None:
        self.is_open = False
        self._timer.close()
        self._ended(self)


def _full(name: HolderName, limits: LeaseLimits) -> str:
    return (
        f"holder '{name.name}' has as much as a holder may have ({limits.messages_max} messages, "
        f"{limits.bytes_max} bytes): settle its earlier leases first"
    )


def _length(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)


def _count(parts: PartRanges) -> int:
    return sum(ranges.count for ranges in parts.values())
