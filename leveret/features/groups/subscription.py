"""Subscription of a group to one partition: a queue over the records of another.

It has a delivery state of its own, and is served like any queue: the member that owns the partition
is its only consumer. The partition tells it what was committed and removed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.core.queues.queue import Queue
from leveret.core.queues.state import QueueState
from leveret.core.settings.discard_reasons import Reason
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.features.groups.subscription_log import SubscriptionLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch

    Runs = list[tuple[int, int]]

__all__ = ["Subscription", "subscription_settings"]


class Subscription(Queue):
    """Delivery state of one group in one partition.

    `changed(timed_out)` is called when deliveries were settled or returned; `timed_out`: because
    their consumer did not settle them in time. `settled(ranges)` is called for what it has settled.
    """

    retries_in_place = True  # what is appended to the log, all groups get

    __slots__ = ("_changed", "_given_up", "_settled", "partition")

    def __init__(
        self,
        partition: OpenQueue,
        log: SubscriptionLog,
        changed: Callable[[bool], None],
        settled: Callable[[Sequence[tuple[int, int]]], None],
    ) -> None:
        self.partition = partition
        self._changed = changed
        self._settled = settled
        self._given_up = RangeSet()  # leased to no member: about to be dead-lettered or retried
        settings = subscription_settings(partition.settings)
        super().__init__(partition.definition, settings, None, log, partition.services)
        self.counters = partition.counters
        self.rates = partition.rates

    @property
    def whole(self) -> DeclaredQueue:
        """Queue that it is a subscription to."""
        return self.partition.whole

    @property
    def definition(self) -> QueueDefinition:
        """Definition of the queue, which may be renamed."""
        return self.partition.definition

    @definition.setter
    def definition(self, definition: QueueDefinition) -> None:
        """Ignore what the base class sets: the partition has it."""

    def _extension_kinds(self) -> Sequence[ExtensionKind]:
        return () if self.partition.settings.is_stream else (WITHOUT_ATTEMPTS,)

    def _make_state(self) -> QueueState:
        every, retries = self.services.counts_every_return, self.settings.retry is not None
        return QueueState.of_log(
            self.log, self.settings, counts_every_return=every, counts_retries=retries
        )

    def _take_up_backlog(self) -> None:
        """Make what the group has not read ready; nothing of it has to be known."""
        self.state.commit(self.log.committed)
        self.state.lose(self._unreadable(0, self.log.committed))

    # -- what the partition tells

    def advance(self) -> None:
        """Note that the partition has committed more."""
        first, stop = self.state.committed, self.log.committed
        if self.deleted or first == stop:
            return
        self.state.commit(stop)
        undone = self.partition.log.undone
        if undone and undone.overlap(first, stop):
            self.state.lose(self._unreadable(first, stop))
        if self.state.ready_count and self.state.consumer_count:
            self._turn.touch(self)

    def follow(self, settings: QueueSettings) -> None:
        """Apply other settings of the queue."""
        self.reconfigure(subscription_settings(settings))

    def removed(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that records were removed from the partition: they count as read."""
        self.state.lose(ranges)

    def _unreadable(self, first: int, stop: int) -> RangeSet:
        """Return the offsets of [first, stop) that cannot be read: removed, undone or lost."""
        unreadable = RangeSet()
        for ranges in self.partition.unreadable:
            missing = ranges.gaps(first, stop)
            unreadable.add_all(list(missing.gaps(first, stop)))
        return unreadable

    # -- settling

    @property
    def held_count(self) -> int:
        """Number of records that members hold: delivered, and not settled, returned or rejected.

        What is settled in a transaction is held until that has committed.
        """
        return self.state.leased_count - self._given_up.count

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle leased records."""
        self._take_back(ranges)
        super().settle(ranges)
        self._changed(False)

    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
        delay_ms: int | None = None,
    ) -> None:
        """Make leased records ready again, after a delay, or give them up."""
        self._take_back(ranges)
        super().return_(ranges, failed=failed, cause=cause, delay_ms=delay_ms)
        self._changed(cause is Reason.TIMED_OUT)

    def _more_is_ready(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Deliver what came back, but for what was removed meanwhile."""
        for first, stop in ranges:
            gone = self._unreadable(first, stop)
            if gone:
                self.state.lose(gone)
        super()._more_is_ready(ranges)

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Discard records that the consumer rejected."""
        super().discard(ranges)
        self._changed(False)

    def give_up(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:
        """Discard or retry leased records, which no member holds from now on."""
        self._given_up.add_all(ranges)
        super().give_up(ranges, reason)

    def _write_settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        super()._write_settled(ranges)
        self._settled(ranges)

    def _take_back(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._given_up:
            for first, stop in ranges:
                self._given_up.remove(first, stop)

    def handed_over(self) -> None:
        """Note that what a consumer without acknowledgements had under way is sent, or dropped."""
        self._changed(False)

    # -- where it is

    @property
    def committed_offset(self) -> int:
        """Offset below which everything is settled or cannot be read."""
        state = self.state
        first_leased = state.leased_in(0, state.committed)
        ready = state.first_ready
        firsts = [first for first, _ in first_leased[:1]]
        if ready is not None:
            firsts.append(ready)
        return min(firsts, default=state.committed)

    @property
    def lag(self) -> int:
        """Number of committed records that the group has not settled."""
        return self.state.unsettled_count

    def settle_below(self, offset: int) -> None:
        """Settle everything below `offset`, for a reader that was delivered nothing.

        What is settled above stays so, unlike with `move_to`. Nothing may be delivered. What waits
        for a retry is ready at once.
        """
        assert not self.leased_count, "deliveries would be settled"
        self.state.release_all()
        self.advance()
        if offset > self.committed_offset:
            self.state.lose([(0, offset)])
            self._write_settled(list(self.log.settled.gaps(0, offset)))

    def move_to(self, offset: int) -> None:
        """Begin again at `offset`: everything below is settled, nothing from there on.

        Nothing may be delivered. Raises StorageError; then nothing has changed.
        """
        assert not self.leased_count, "deliveries would be forgotten"
        self.log.restate(RangeSet([(0, offset)] if offset else []))
        consumers = self.state.consumers
        self.state = self._make_state()
        self.reader = self._make_reader()
        for consumer in consumers:
            self.add_consumer(consumer)  # type: ignore[arg-type]  # were added so
        self._take_up_backlog()
        self.touch()
        self._settled([(0, offset)])


class PassedOverAttempts(QueueExtension):
    """Has a subscription pass over attempts of a retry, since it is offered their original."""

    outlives_reordering = True

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def filter_ready(self, runs: Runs, batches: list[Batch]) -> Runs:
        """Return what is no attempt of these ready records; attempts count as read."""
        attempts = RangeSet()
        for batch in batches:
            if batch.features & RecordFlag.RETRIED:
                attempts.add_all(list(batch.flagged(RecordFlag.RETRIED)))
        if not attempts:
            return runs
        passed_over = [part for run in runs for part in attempts.gaps(*run).gaps(*run)]
        self._subscription.lose(RangeSet(passed_over))
        return [part for run in runs for part in attempts.gaps(*run)]


class _WithoutAttempts(ExtensionKind):
    def follow(
        self,
        queue: Subscription,
        present: PassedOverAttempts | None,
        demand: Demand,  # noqa: ARG002
    ) -> PassedOverAttempts:
        return present or PassedOverAttempts(queue)


WITHOUT_ATTEMPTS = _WithoutAttempts()


def subscription_settings(settings: QueueSettings) -> QueueSettings:
    """Return the settings of a queue's subscriptions: of what concerns its consumers."""
    limit = settings.group_delivery_limit
    counts = settings.counts_deliveries or settings.retry is not None or limit is not None
    return replace(
        settings,
        is_stream=False,
        message_ttl_ms=None,
        expires_ms=None,
        max_length=None,
        max_length_bytes=None,
        max_priority=None,
        returns_first=False,
        group_ordering=False,
        single_active=False,
        single_active_by_priority=False,
        delivery_limit=limit,
        counts_deliveries=counts,
        celery_eta=False,
        dedup_window_ms=None,
        publish_rate=None,
        consume_rate=None,
        retention=None,
        retention_waits_for=(),
        retention_settles=(),
    )
