"""Queue: its definition, log, state machine and consumers combined.

Called by the channels (declare, get, settle), by the turn (flush, pump) and by the log when a flush
to disk has advanced the committed offset. The order of deliveries is decided by the machine, files
are the log's; what it shares with streams is in `OpenQueue`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from leveret.core.dead_letters.counters import DeadLetterCounters
from leveret.core.dead_letters.worker import DeadLetterSink, DeadLetterWorker, Reason, drop
from leveret.core.filtering.arguments import record_filter
from leveret.core.filtering.filtered import FilteredDelivery
from leveret.core.ledgers.groups import GroupLedger
from leveret.core.ledgers.ledger import Ledger
from leveret.core.ledgers.priorities import PriorityLedger
from leveret.core.logs.log_writer import AfterBoth
from leveret.core.logs.reading import QueueReader
from leveret.core.queues.backlog import BACKLOGS_AT_ONCE_MAX, Backlog, FewAtATime
from leveret.core.queues.expiry_and_limits import ExpiryAndLimits
from leveret.core.queues.farewell import say_farewell
from leveret.core.queues.machine import QueueMachine
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX, OpenQueue
from leveret.core.queues.queue_expiry import QueueExpiry
from leveret.core.queues.sending import count, cut
from leveret.core.retry.key_order import KeyOrder
from leveret.core.telemetry.feature_counters import FeatureCounters
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leveret.core.dedup.window import DedupServices
    from leveret.core.delay.eta_hold import EtaHold, EtaHolds
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.offers import Deliver
    from leveret.core.queues.open_queue import QueueConsumer
    from leveret.core.queues.sending import Runs
    from leveret.core.queues.settings import QueueSettings
    from leveret.core.retry.retrying import RetryTopic, RetryTopics
    from leveret.core.timers import Timer, Timers
    from leveret.core.turn import Turn
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch, BatchBuilder

__all__ = ["DeadLetterSink", "Queue", "QueueServices", "Reason", "drop"]


@dataclass(frozen=True, slots=True)
class QueueServices:
    """Services shared by the queues of a broker.

    `spawn` runs reads that wait for a device; `report` gets storage errors; `unused` gets queues
    whose expiry time (`x-expires`) has passed.
    """

    turn: Turn
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[object, Exception], None]
    timers: Timers
    unused: Callable[[Queue], None]
    dead_letter: DeadLetterSink = drop
    counts_every_return: bool = True  # against the delivery limit; else only failures
    dedup: DedupServices | None = None  # None: no de-duplication, as in tests
    retry_topics: RetryTopics | None = None
    eta_holds: EtaHolds | None = None
    dead_letter_counters: DeadLetterCounters = field(default_factory=DeadLetterCounters)
    feature_counters: FeatureCounters = field(default_factory=FeatureCounters)

    read_backlog: FewAtATime = field(init=False)

    def __post_init__(self) -> None:
        readers = FewAtATime(self.spawn, BACKLOGS_AT_ONCE_MAX)
        object.__setattr__(self, "read_backlog", readers)  # set once in spite of frozen=True


class Queue(OpenQueue):
    """An open queue that delivers each message once."""

    __slots__ = (
        "_backlog",
        "_dead_letter_worker",
        "_expiry_and_limits",
        "_filtered",
        "_learner",
        "_learns",
        "_lease_next",
        "_noted",
        "_queue_expiry",
        "_rests",
        "_retry_timer",
        "_searching",
        "_undone_stop",
        "died_count",
        "eta_hold",
        "is_learning",
        "machine",
        "order",
        "reader",
        "retry_topic",
        "services",
    )

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        log: TopicLog,
        services: QueueServices,
    ) -> None:
        super().__init__(definition, settings, owner, log, services)
        self.services = services
        self.died_count = 0  # messages discarded since it was opened, for any reason
        self.is_learning = False  # the backlog is being read: nothing is offered until then
        # Parts that few queues need are created on demand, since there may be many queues.
        self._backlog: Backlog | None = None
        self._dead_letter_worker: DeadLetterWorker | None = None
        self._queue_expiry: QueueExpiry | None = None
        self._retry_timer: Timer | None = None
        self._rests = False  # no deliveries: the backlog is being read, or it is paused
        self._undone_stop = 0  # records of undone atomic writes are below this offset
        self.machine = self._make_machine()
        self.reader = QueueReader(self, self.touch)
        self.retry_topic = self._find_retry_topic()
        self.order: KeyOrder | None = None  # per-key ordering during retries
        self._keep_order()
        self.eta_hold = self._find_eta_hold()
        self._expiry_and_limits: ExpiryAndLimits | None = None
        self._searching: FilteredDelivery | None = None  # kept once a consumer had a filter
        self._filtered: FilteredDelivery | None = None  # while a consumer has a filter
        self.used()
        self._keep_up()
        self._take_up_backlog()

    def _take_up_backlog(self) -> None:
        """Make the messages left by an earlier run ready, once their records are indexed."""
        log = self.log
        if log.settled.gaps(0, log.committed):
            self.is_learning = self._learner is not None or self.order is not None
            self._read_backlog()
        elif self.order is not None and self.retry_topic is not None:
            self.is_learning = True
            self._read_backlog()
        else:
            self.machine.committed(log.committed)
        self._follow_pause()

    def _read_backlog(self) -> Backlog:
        """Read unsettled records whose properties must be known."""
        if self._backlog is None:
            self._backlog = Backlog(self)
        self._backlog.read()
        return self._backlog

    def backlog_learned(self) -> None:
        """Make the backlog ready for delivery, now that it is indexed."""
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.overflow.weigh()
        self.is_learning = False
        self._follow_pause()
        self._show_committed()

    def _follow_pause(self) -> None:
        """Update whether messages may be delivered."""
        self._rests = self.is_learning or self.settings.is_paused
        self._lease_next = _nothing if self.settings.is_paused else self.machine.get

    def _make_machine(self) -> QueueMachine:
        """Return a new machine for the settings, without consumers."""
        # The ledger, if it needs properties of records.
        self._learner: PriorityLedger | GroupLedger | None = None
        self._learns = RecordFlag(0)  # flags of those records
        self._noted = RecordFlag.HAS_EXPIRATION  # flags of records that must be indexed
        settings = self.settings
        machine = QueueMachine(
            self._make_ledger(),
            single_active=settings.single_active,
            by_priority=settings.single_active_by_priority,
            counts_returns=settings.counts_deliveries,
            counts_every_return=self.services.counts_every_return,
            delivery_limit=settings.delivery_limit,
            retry_delay=settings.retry_delay,
            returns=self.log.returns,
        )
        if isinstance(self._learner, GroupLedger):
            machine.groups = self._learner
        return machine

    @property
    def can_reorder(self) -> bool:
        """Whether `reorder` may be called: nothing is leased, everything is read and committed."""
        return (
            self.is_caught_up
            and (self._backlog is None or not self._backlog.is_being_read)
            and not self.machine.ledger.leased_count
            and self.order is None
        )

    def reorder(self, settings: QueueSettings) -> None:
        """Change the order of messages. The backlog is read again, as at a start."""
        assert self.can_reorder, "what is leased would be forgotten"
        consumers, exclusive = self.machine.consumers, self.machine.is_exclusive
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.close()
            self._expiry_and_limits = None
        super().reconfigure(settings)
        self.machine = self._make_machine()
        self.reader = QueueReader(self, self.touch)
        self._searching = self._filtered = None
        self._keep_order()
        self._keep_up()
        for consumer in consumers:
            self.add_consumer(consumer, exclusive=exclusive)  # type: ignore[arg-type]  # were added so
        self._take_up_backlog()

    def _make_ledger(self) -> Ledger:
        log, settings = self.log, self.settings
        state = log.first, log.committed, log.settled, log.redelivered_stop
        if settings.group_ordering:
            self._learns = RecordFlag.HAS_GROUP
            self._learner = GroupLedger(*state)
        elif settings.max_priority is not None:
            self._learns = RecordFlag.HAS_PRIORITY
            self._learner = PriorityLedger(
                *state, settings.max_priority, settings.default_priority, settings.returns_first
            )
        else:
            return Ledger(*state)
        self._noted |= self._learns
        return self._learner

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, except message groups."""
        # Message groups can only change when the queue is opened: its ledger depends on them.
        settings = replace(settings, group_ordering=self.machine.groups is not None)
        super().reconfigure(settings)
        if self.eta_hold is None and settings.celery_eta:
            self.eta_hold = self._find_eta_hold()
        self.machine.counts_returns = settings.counts_deliveries
        self.machine.delivery_limit = settings.delivery_limit
        self.machine.retry_delay = settings.retry_delay
        self.machine.serve(
            single_active=settings.single_active, by_priority=settings.single_active_by_priority
        )
        self._keep_order()
        self._follow_pause()
        weighed = self._expiry_and_limits is not None and self._expiry_and_limits.weighs
        self._keep_up()
        if self._expiry_and_limits is not None and self._expiry_and_limits.weighs and not weighed:
            self._read_backlog()
        if self._queue_expiry is not None:
            self._queue_expiry.forget()
        self.used()

    def _keep_up(self) -> None:
        """Create or update what enforces lifetimes and limits, if there are any."""
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.reconfigure(self.settings)
        elif self.settings.message_ttl_ms is not None or self.settings.is_limited:
            self._expiry_and_limits = ExpiryAndLimits(self)

    def touch(self) -> None:
        """Schedule the queue for the next turn."""
        if not self.deleted:
            self._turn.touch(self)

    # -- contents

    @property
    def message_count(self) -> int:
        """Number of ready messages, those gathered in this turn included."""
        log, committed = self.log, self.machine.ledger.committed
        hidden = log.end - committed
        if self.is_learning:
            hidden -= log.settled.overlap(committed, log.end)
        return self.machine.ledger.ready_count + self.builder.count + hidden

    @property
    def leased_count(self) -> int:
        """Number of messages delivered and neither settled nor returned."""
        return self.machine.leased_count - self._parked_count

    @property
    def _parked_count(self) -> int:
        return 0 if self.order is None else self.order.parked_count

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed, and of messages blocked by their key."""
        return self.machine.delayed.count + self._parked_count

    @property
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them; they are leased."""
        return 0 if self._dead_letter_worker is None else self._dead_letter_worker.waiting_count

    @property
    def held_bytes(self) -> int:
        """Estimated memory in bytes, see OpenQueue."""
        machine, rules = self.machine, self._expiry_and_limits
        known = machine.ledger.held_bytes + machine.delayed.held_bytes
        known += 0 if rules is None else rules.expiry.held_bytes
        return super().held_bytes + known + self.reader.held_bytes

    def waits(self, offset: int) -> bool:
        """Whether a leased message belongs to no consumer because it is delayed or blocked."""
        if self.machine.delayed.holds(offset):
            return True
        return self.order is not None and self.order.has_parked(offset)

    @property
    def consumer_count(self) -> int:
        """Number of consumers, with or without capacity."""
        return self.machine.consumer_count

    # -- publishing

    def _prepare(self) -> None:
        """Apply the overflow policy, and index the accepted records."""
        builder = self.builder
        if self._expiry_and_limits is None:
            noted = builder.features & self._noted
            if not noted and self.dedup is None and self.eta_hold is None:
                return
            if noted & RecordFlag.HAS_EXPIRATION:
                self._expiry_and_limits = ExpiryAndLimits(self)
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.admit(builder)
        if self.eta_hold is not None and builder.count and self.eta_hold.admit():
            self._await_also(self.eta_hold)
        self.take_in(builder)

    def has_room(self, records: BatchBuilder) -> bool:
        """Whether the limits allow all of the records."""
        return self._expiry_and_limits is None or self._expiry_and_limits.has_room(records)

    def take_in(self, records: BatchBuilder) -> None:
        """Prepare records for being appended: drop duplicates, and index the others."""
        if not records.count:
            return
        super().take_in(records)
        noted = records.features & self._noted
        if records.count and (
            noted or (self._expiry_and_limits is not None and self._expiry_and_limits.weighs)
        ):
            self.learn(records.preview(self.log.end))

    def learn(self, batch: Batch, settled: RangeSet | None = None) -> None:
        """Index the properties of a batch's records, except `settled` ones."""
        if self._learner is not None and batch.features & self._learns:
            self._learner.learn(batch)
        if self._expiry_and_limits is None and batch.features & RecordFlag.HAS_EXPIRATION:
            self._expiry_and_limits = ExpiryAndLimits(self)
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.learn(batch, settled)
        if self.order is not None and batch.features & RecordFlag.RETRIED:
            self.order.learn(batch, settled)

    def _forget_uncommitted(self) -> None:
        if self._learner is not None:
            self._learner.forget(self.log.end)
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.forget(self.log.end)
        if self.order is not None:
            self.order.forget(self.log.end)
        super()._forget_uncommitted()

    def _show_committed(self) -> None:
        if self.is_learning:
            return
        if self._undone_stop:
            self._pass_over_undone()
        else:
            self.machine.ledger.commit(self.log.committed)
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.expiry.more_is_ready()
            # A message count before the next turn must not include expired or excess messages.
            if not self.machine.can_deliver():
                self._expiry_and_limits.enforce()

    def _pass_over_undone(self) -> None:
        """Make committed records ready, except those of undone atomic writes."""
        first, stop = self.machine.ledger.committed, self.log.committed
        self.machine.committed(stop)
        self.machine.lose(self.log.undone.gaps(first, stop).gaps(first, stop))
        if stop >= self._undone_stop:
            self._undone_stop = 0

    def undo(self, transaction: int, first: int, stop: int) -> None:
        """Undo an atomic write; its records will not become ready."""
        self._undone_stop = max(self._undone_stop, stop)
        super().undo(transaction, first, stop)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when all publishes so far are committed and the backlog is read."""
        if self.is_learning and not self.deleted:
            assert self._backlog is not None, "it learns"
            self._backlog.await_learned(waiter)
            return
        if self.eta_hold is not None and not self.eta_hold.is_caught_up:
            both = AfterBoth([waiter], self._report)
            self.eta_hold.await_commit(both)
            waiter = both
        self._await_log(waiter)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published is committed.

        Overridden for speed: basic.get calls it each time.
        """
        log = self.log
        return not (self.is_learning or self.builder.count) and log.committed == log.end

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called; see QueueMachine.admits."""
        return self.machine.admits(exclusive=exclusive)

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Add `consumer`, from the next turn on. Call `admits` first."""
        self.machine.add_consumer(consumer, exclusive=exclusive)
        wanted = (
            record_filter(consumer.arguments, self._turn.is_over) if consumer.arguments else None
        )
        if wanted is not None:
            self._filtered = self._searching = self._searching or FilteredDelivery(self)
            self._filtered.add(consumer, wanted)
            self.searches = True
        self._turn.touch(self)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove `consumer`; what it holds stays leased."""
        self.machine.remove_consumer(consumer)
        if self._filtered is not None and not self._filtered.remove(consumer):
            self._filtered = None
            self.searches = False
        self.used()
        self._turn.touch(self)

    def may_offer(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer may still get some of the present messages without outside events."""
        if not self.is_caught_up or self.reader.fetching:
            return True
        return self._filtered is not None and self._filtered.looks_on(consumer)

    def pump(self) -> bool:
        """Deliver ready messages to consumers. Returns whether another turn could do more."""
        delivered = 0
        if self._rests:
            return self._pump_resting()
        if self._filtered is not None:
            return self._pump_filtered(self._filtered)
        while delivered < PUMP_RECORDS_MAX:
            offer = self.machine.offer()
            if offer is None:
                if not self.machine.ledger.ready_count:
                    self.reader.clear()
                break
            batches = self.reader.read(offer.first)
            if batches is None:
                break
            delivered += self.deliver(offer, batches)
        else:
            self.passed_over_in = 0
            return True
        if self.passed_over_in or not delivered:  # otherwise there is nothing to note
            held_up = self.machine.ledger.ready_count > 0 and self.machine.is_held_up
            self._note_pump(delivered=delivered > 0, held_up=held_up)
        return self._expiry_and_limits is not None and self._expiry_and_limits.enforce(
            delivered=delivered > 0
        )

    def _pump_resting(self) -> bool:
        """Enforce lifetimes and limits while nothing is delivered."""
        return (
            not self.is_learning
            and self._expiry_and_limits is not None
            and self._expiry_and_limits.enforce()
        )

    def _pump_filtered(self, filtered: FilteredDelivery) -> bool:
        delivered, more = filtered.pump()
        held_up = self.machine.ready_count > 0 and filtered.is_held_up
        self._note_pump(delivered=delivered > 0, held_up=held_up)
        if more or self._expiry_and_limits is None:
            return more
        return self._expiry_and_limits.enforce(delivered=delivered > 0)

    def alive(self, runs: list[tuple[int, int]], batches: list[Batch]) -> list[tuple[int, int]]:
        """Return these ready runs without expired records and those blocked by their key."""
        if self._expiry_and_limits is not None:
            runs = self._expiry_and_limits.discard_expired(runs, batches)
        return runs if self.order is None else self.order.let_pass(runs, batches)

    def deliver(self, offer: Deliver, batches: list[Batch]) -> int:
        """Send one offer. Returns how many records were sent (at least one), or expired."""
        if offer.is_partial and self.machine.groups is None:
            return self._deliver_runs(offer, batches)
        if self._expiry_and_limits is not None:
            stop, expired = self._expiry_and_limits.alive(offer.first, offer.stop, batches)
            if expired:
                self.give_up(self.machine.withdraw([(offer.first, stop)]), Reason.EXPIRED)
                return stop - offer.first
            offer = offer.cut(offer.first, stop)
        if self.order is not None:
            passing = self.order.let_pass([(offer.first, offer.stop)], batches)
            if not passing:
                return offer.stop - offer.first
            offer = offer.cut(*passing[0])
        consumer: QueueConsumer = offer.consumer  # type: ignore[assignment]  # by add_consumer
        stop = consumer.send(batches, offer.first, offer.stop, redelivered=offer.redelivered)
        self.machine.deliver(offer, stop)
        if consumer.no_ack:
            self.settle([(offer.first, stop)])
        return stop - offer.first

    def _deliver_runs(self, offer: Deliver, batches: list[Batch]) -> int:
        """Send the next ready records that are not adjacent, as far as the batches contain them."""
        consumer: QueueConsumer = offer.consumer  # type: ignore[assignment]  # by add_consumer
        limit = min(offer.limit, PUMP_RECORDS_MAX)
        found, redelivered = self.machine.ledger.peek_runs(limit, batches[-1].stop_offset)
        runs = self.alive(found, batches)
        done = count(found) - count(runs)
        if runs:
            done += count(self.send_runs(consumer, runs, batches, redelivered=redelivered))
        return done

    def send_runs(
        self, consumer: QueueConsumer, runs: Runs, batches: list[Batch], *, redelivered: bool
    ) -> Runs:
        """Send ready runs that the batches contain, and lease what was sent. Returns its runs."""
        sent = cut(runs, consumer.send_runs(batches, runs, redelivered=redelivered))
        if sent:
            self.machine.deliver_runs(consumer, sent)
            if consumer.no_ack:
                self.settle(sent)
        return sent

    def get(self) -> tuple[int, bool] | None:
        """Lease the next ready message for basic.get: (offset, redelivered), or None."""
        if self.settings.expires_ms is not None:
            self.used()
        while not self.deleted and (leased := self._lease_next()) is not None:
            offset = leased[0]
            looked_at = self._expiry_and_limits is not None or self.order is not None
            batch = self.reader.batch_at_hand(offset) if looked_at else None
            if batch is None or not self._gives_up(batch, offset):
                return leased
        return None

    def _gives_up(self, batch: Batch, offset: int) -> bool:
        """Whether a leased record must not be delivered: it has expired, or its key is blocked."""
        if self._expiry_and_limits is not None and self._expiry_and_limits.has_expired(
            batch, offset
        ):
            self.give_up([(offset, offset + 1)], Reason.EXPIRED)
            return True
        return self.order is not None and self.order.parks(batch, offset)

    async def record_batch(self, offset: int) -> Batch | None:
        """Return the batch with a leased record, from memory or from the device.

        None if the record must not be delivered: it is lost, expired or blocked.
        """
        batch = await self.reader.leased_batch(offset)
        return None if batch is None or self._gives_up(batch, offset) else batch

    def batch_at_hand(self, offset: int) -> Batch | None:
        """Return the batch with `offset` if that takes no waiting, else None."""
        return self.reader.batch_at_hand(offset)

    def used(self) -> None:
        """Restart the expiry time of a queue with `x-expires`."""
        if self.settings.expires_ms is not None and not self.deleted:
            if self._queue_expiry is None:
                self._queue_expiry = QueueExpiry(self)
            self._queue_expiry.end()

    # -- settling

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle leased records."""
        if self.deleted:
            return
        self.machine.settle(ranges)
        self.log.settle(ranges)
        if self.order is not None:
            self.order.settled(ranges)
        if self.machine.groups is not None:  # other messages of their groups may be ready now
            self.wake()

    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
        delay_ms: int | None = None,
    ) -> None:
        """Requeue leased records, after `delay_ms` if given.

        `failed`: their consumer failed to process them. For some causes the records go to the retry
        topic, if the settings say so.
        """
        if self.deleted:
            return
        if cause is not None and self.settings.retries(cause):
            self.give_up(ranges, cause)
            return
        now_ms = self.services.timers.wall_ms()
        refused = self.machine.return_(ranges, failed=failed, now_ms=now_ms, delay_ms=delay_ms)
        self.log.redelivered_stop = self.machine.redelivered_stop
        self.counters.moved = True
        if self.settings.counts_deliveries:
            self.log.note_returns(ranges)
        self._await_delayed()
        self.give_up(refused, Reason.DELIVERY_LIMIT)
        self._more_is_ready()

    def _await_delayed(self) -> None:
        """Set the timer for the first delayed message."""
        next_ms = self.machine.delayed.next_ms
        if self._retry_timer is None and next_ms is not None:
            self._retry_timer = self.services.timers.timer(self._release_delayed)
        if self._retry_timer is not None:
            self._retry_timer.set(next_ms)

    def _release_delayed(self) -> None:
        """Make messages ready whose delay is over."""
        if self.deleted:
            return
        released = self.machine.release(self.services.timers.wall_ms())
        self._await_delayed()
        if released:
            self._more_is_ready()

    def _more_is_ready(self) -> None:
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.expiry.more_is_ready()
        self._turn.touch(self)

    def give_up(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:
        """Discard or retry records that are leased to no consumer."""
        if not ranges:
            return
        if self._dead_letter_worker is None:
            self._dead_letter_worker = DeadLetterWorker(
                self, self.services.dead_letter, self.services.timers
            )
        self._dead_letter_worker.add(ranges, reason)

    def retry_dead_letters(self) -> None:
        """Retry dead letters now: a target may accept them."""
        if self._dead_letter_worker is not None:
            self._dead_letter_worker.try_again()

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Discard records that consumers rejected."""
        if not self.deleted:
            self.give_up(ranges, Reason.REJECTED)

    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """Note that this consumer, or any, may have more capacity."""
        machine = self.machine
        machine.wake(consumer)
        if machine.ledger.ready_count and not self.deleted:
            self._turn.touch(self)

    def purge(self) -> int:
        """Settle everything ready or delayed. Returns the number of messages."""
        if self.deleted:
            return 0
        ranges = list(self.machine.purge())
        self.counters.moved = True  # so that the lower message count is sampled
        self._await_delayed()
        self.log.settle(ranges)
        if self.order is not None:
            self.order.settled(ranges)
        return sum(stop - first for first, stop in ranges)

    # -- retries

    def _find_retry_topic(self) -> RetryTopic | None:
        topics = self.services.retry_topics
        return None if topics is None else topics.find(self)

    def _keep_order(self) -> None:
        """Enable or disable per-key ordering according to the settings."""
        retry_policy = self.settings.retry
        # A message group waits for its blocked messages, and would block those that are retried.
        if retry_policy is None or not retry_policy.keeps_order or self.settings.group_ordering:
            if self.order is not None:
                order, self.order = self.order, None
                order.end()
        elif self.order is None:
            self.order = KeyOrder(self)
            self._noted |= RecordFlag.RETRIED

    def unpark(self, ranges: list[tuple[int, int]]) -> None:
        """Make messages ready that were blocked by their key."""
        self.machine.ledger.return_(ranges)
        self._more_is_ready()

    def open_retry_topic(self) -> RetryTopic:
        """Return the topic of messages to be retried, created on demand. Raises StorageError."""
        if self.retry_topic is None:
            assert self.services.retry_topics is not None, "a broker's queues can retry"
            self.retry_topic = self.services.retry_topics.open(self)
        return self.retry_topic

    # -- messages delayed by a Celery ETA

    def _find_eta_hold(self) -> EtaHold | None:
        holds = self.services.eta_holds
        return None if holds is None else holds.of(self)

    # -- the end

    def mark_deleted(self) -> None:
        """Stop the queue: confirm waiting publishers, and notify its consumers."""
        self._let_publishers_go()
        self._let_parts_go()
        if self.retry_topic is not None:
            self.retry_topic.delete()
        if self.eta_hold is not None:
            self.eta_hold.delete()
        consumers: list[QueueConsumer] = self.machine.consumers  # type: ignore[assignment]
        say_farewell(self._turn, consumers)

    def _let_parts_go(self) -> None:
        """Drop all references to parts that refer to the queue, so that it is freed at once.

        Cycles would stay until the garbage collector has looked at all objects, and queues may be
        created and deleted by the thousand.
        """
        if self._backlog is not None:
            self._backlog.let_go()
        if self._queue_expiry is not None:
            self._queue_expiry.close()
        if self._retry_timer is not None:
            self._retry_timer.close()
        if self._expiry_and_limits is not None:
            self._expiry_and_limits.close()
        if self._dead_letter_worker is not None:
            self._dead_letter_worker.close()
        self.reader.close()
        self._backlog = self._queue_expiry = self._retry_timer = self._expiry_and_limits = (
            self._dead_letter_worker
        ) = None
        self._searching = self._filtered = None


def _nothing() -> None:
    """Return None: a paused queue has nothing to get."""
