"""Queue: its definition, log, state and consumers combined.

Called by the channels (declare, get, settle), by the turn (flush, pump) and by the log when a flush
to disk has advanced the committed offset. The order of deliveries is decided by the state, files
are the log's; what it shares with streams is in `OpenQueue`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.logs.publish_tags import PublishTags
from leveret.core.logs.unopened_log import UNOPENED_LOG
from leveret.core.queues.backlog import Backlog
from leveret.core.queues.consumer import say_farewell
from leveret.core.queues.delivering_queue import DeliveringQueue
from leveret.core.queues.extensions import Demand, QueueExtension
from leveret.core.queues.open_queue import NOTHING_MORE
from leveret.core.queues.queue_expiry import QueueExpiry
from leveret.core.queues.queue_logs import UNOPENED_BYTES, may_stay_unopened
from leveret.core.queues.reading import QueueReader
from leveret.core.queues.state import QueueState
from leveret.core.settings.discard_reasons import Reason
from leveret.ports.after_all import tell_each
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.discarding import DiscardedMessages
    from leveret.core.queues.open_queue import PartOf
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.timers import Timer
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch, BatchBuilder

__all__ = ["Queue", "Reason"]


class Queue(DeliveringQueue):
    """A queue that delivers each message once.

    Without a log it is unopened: it holds nothing but gathered records, and nobody may consume from
    it. It gets its log in `logs` when its first records are flushed, or when somebody has waited
    for `opened`: at once if the log is new, and otherwise when a thread has recovered it.

    `retries_in_place`: failed messages are retried by `retry`, and not by way of a retry topic.
    """

    retries_in_place = False

    __slots__ = (
        "_backlog",
        "_discarded",
        "_is_opening",
        "_queue_expiry",
        "_retry_timer",
        "died_count",
    )

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        log: TopicLog | None,
        services: QueueServices,
        *,
        part_of: PartOf | None = None,
    ) -> None:
        super().__init__(definition, settings, owner, None, services, part_of=part_of)
        self.died_count = 0  # messages discarded since it was opened, for any reason
        self.is_restoring = False
        # Parts that few queues need are created on demand, since there may be many queues.
        self._backlog: Backlog | None = None
        self._discarded: DiscardedMessages | None = None
        self._queue_expiry: QueueExpiry | None = None
        self._retry_timer: Timer | None = None
        self._undone_stop = 0
        self._is_opening = False  # for its publishers
        self._is_paused = True  # until it is opened
        self._follow_overflow()
        if log is not None:
            self.attach(log)

    # -- opening

    def attach(self, log: TopicLog) -> None:
        """Have a log, new or recovered: make state, reader and extensions of it.

        Records that were gathered before are flushed in the next turn. Raises StorageError.
        """
        self._attach(log)
        settings = self.settings
        log.require_copies(settings.copies_min, waits=settings.waits_for_copies)
        self.held = False
        self._follow_settings()
        self.state = self._make_state()
        self.reader = self._make_reader()
        self._delivering = None
        self.used()
        self._extend(Demand(opening=True))
        self._take_up_backlog()
        if self.builder.count:  # parked: thousands may be opened at once
            self._turn.touch_packed([self.builder], large=True)
        if not self.held:  # by an extension
            self._release()

    @property
    def is_opened(self) -> bool:
        """Whether it has its log and its state."""
        return self.log is not UNOPENED_LOG

    def open(self) -> bool:
        """Open its log if that need not be recovered; return whether it is opened, or deleted.

        Raises StorageError.
        """
        if not self.is_opened and not self.deleted:
            assert self.logs is not None, "a queue without a log knows where it is"
            if self.logs.must_recover(self):
                return False
            self.attach(self.logs.open(self.definition, self.settings, self.number))
        return True

    async def opened(self) -> None:
        """Wait until it is opened, and open it if nobody does. Raises StorageError."""
        while not self.open():
            assert self.logs is not None
            await self.logs.recover([self])

    def _begin_release(self) -> None:
        """Open the queue for its publishers, and for atomic writes."""
        if self.is_opened or self._is_opening or self.deleted:
            return
        try:
            if self.open():
                self.flush()
                return
        except Exception as error:  # noqa: BLE001  # publishers must be nacked, whatever the error
            self._refuse_gathered(error)
            return
        self._is_opening = True
        self._turn.opening_count += 1
        self._spawn(self._open_for_publishers())

    async def _open_for_publishers(self) -> None:
        try:
            await self.opened()
        except Exception as error:  # noqa: BLE001  # publishers must be nacked, whatever the error
            self._refuse_gathered(error)
        finally:
            self._is_opening = False
            self._turn.opening_count -= 1

    def _refuse_gathered(self, error: Exception) -> None:
        """Refuse what was published, as the log cannot be opened."""
        waiting, self._waiting = self._waiting, []
        self.builder.clear()
        self._report(self, error)
        tell_each(waiting, self._report, failed=True)
        self._notify_release(error)

    async def delete_log(self) -> None:
        """Delete its log, after `mark_deleted`. Raises StorageError."""
        if self.is_opened:
            await self.log.delete()
        elif self.logs is not None:
            await self.logs.delete(self)

    def _take_up_backlog(self) -> None:
        """Make the messages left by an earlier run ready, once their records are indexed."""
        log, extensions = self.log, self._extensions
        has_backlog = bool(log.settled.gaps(0, log.committed))
        needs_index = bool(self.state.indexed_features) or any(e.needs_backlog for e in extensions)
        recovers = any(extension.recovers for extension in extensions)
        self.is_restoring = needs_index and (has_backlog or recovers)
        if has_backlog or recovers:
            self._read_backlog()
        else:
            self.state.commit(log.committed)

    def _read_backlog(self) -> Backlog:
        """Read unsettled records whose properties must be known."""
        if self._backlog is None:
            self._backlog = Backlog(self)
        self._backlog.read()
        return self._backlog

    def backlog_restored(self) -> None:
        """Make the backlog ready for delivery, now that it is indexed."""
        for extension in self._extensions:
            extension.recovered()
        self.is_restoring = False
        self._show_committed()

    def _follow_settings(self) -> None:
        """Note what each delivery must know of the settings."""
        self._is_paused = self.settings.is_paused
        self._expires = self.settings.expires_ms is not None

    def _follow_overflow(self) -> None:
        """Have publish tags of gathered records noted if the queue may refuse some of them."""
        self.builder.publish_tags = PublishTags() if self.settings.rejects else None

    def _make_state(self) -> QueueState:
        """Return a new state for the settings, without consumers."""
        every = self.services.counts_every_return
        return QueueState.of_log(self.log, self.settings, counts_every_return=every)

    def _make_reader(self) -> QueueReader:
        scattered = self.settings.group_ordering  # groups take turns
        return QueueReader(self, self.services, self.touch, scattered=scattered)

    # -- extensions

    def _extend(self, demand: Demand = NOTHING_MORE) -> None:
        """Have the extensions that the settings and `demand` ask for."""
        super()._extend(demand)
        self._ready_filters = tuple(filter(_filters_ready, self._extensions))
        self._noted = self.state.indexed_features | self._demanding
        for extension in self._extensions:
            self._noted |= extension.indexed_features

    @property
    def _indexes_all(self) -> bool:
        return any(extension.indexes_all for extension in self._extensions)

    @property
    def can_reorder(self) -> bool:
        """Whether `reorder` may be called: nothing is leased, everything is read and committed."""
        if not self.is_opened:
            return self.is_caught_up
        return (
            self.is_caught_up
            and self.log.committed == self.log.end  # what was refused may be committed yet
            and (self._backlog is None or not self._backlog.is_being_read)
            and not self.state.has_leases
            and not any(extension.needs_backlog for extension in self._extensions)
        )

    def reorder(self, settings: QueueSettings) -> None:
        """Change the order of messages. The backlog is read again, as at a start."""
        if not self.is_opened:
            self.reconfigure(settings)
            return
        assert self.can_reorder, "what is leased would be forgotten"
        consumers, exclusive = self.state.consumers, self.state.is_exclusive
        self._close_extensions(keep_lasting=True)
        super().reconfigure(settings)
        self._follow_settings()
        self.state = self._make_state()
        self.reader = self._make_reader()
        self._delivering = None
        self._extend()
        for consumer in consumers:
            self.add_consumer(consumer, exclusive=exclusive)  # type: ignore[arg-type]  # were added so
        self._take_up_backlog()
        for extension in self._extensions:
            extension.reconfigure(settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, except message groups."""
        if not self.is_opened:
            self._reconfigure_unopened(settings)
            return
        # Those gathered so far have no publish tags if the settings refused nothing.
        self._turn.flush_queue(self)
        # Message groups can only change when the queue is opened: its ledger depends on them.
        settings = replace(settings, group_ordering=self.state.has_groups)
        super().reconfigure(settings)
        self.state.reconfigure(settings)
        self._follow_settings()
        indexed_all = self._indexes_all
        self._extend()
        for extension in self._extensions:
            extension.reconfigure(settings)
        if self._indexes_all and not indexed_all:
            self._read_backlog()
        if self._queue_expiry is not None:
            self._queue_expiry.forget()
        self.used()

    def _reconfigure_unopened(self, settings: QueueSettings) -> None:
        """Apply other settings, which may be of a kind that needs an opened queue."""
        if self.deleted:
            return
        if self.builder.count:  # gathered under other settings
            self.when_released(lambda _: self.reconfigure(settings))
            return
        self.settings = settings
        self._follow_overflow()
        if not may_stay_unopened(self.definition, settings, self.services, self.number):
            self._begin_release()

    def touch(self) -> None:
        """Schedule the queue for the next turn."""
        if not self.deleted:
            self._turn.touch(self)

    # -- contents

    @property
    def leased_count(self) -> int:
        """Number of messages delivered and neither settled nor returned."""
        return self.state.leased_count - self._parked_count if self.is_opened else 0

    @property
    def _parked_count(self) -> int:
        return sum(extension.parked_count for extension in self._extensions)

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed, and of messages blocked by their key."""
        return self.state.delayed_count + self._parked_count if self.is_opened else 0

    @property
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them; they are leased."""
        return 0 if self._discarded is None else self._discarded.waiting_count

    @property
    def held_bytes(self) -> int:
        """Estimated memory in bytes, see OpenQueue."""
        if not self.is_opened:
            return UNOPENED_BYTES
        return super().held_bytes + self.state.held_bytes + self.reader.held_bytes

    @property
    def waiting(self) -> tuple[int, int]:
        """Count of messages that are not leased, and the bytes of their bodies, for length limits.

        Bytes are known with a limit of bytes only. An unread backlog may include settled ones.
        """
        state, log = self.state, self.log
        first, stop = state.committed, log.end
        uncommitted = stop - first - log.settled.overlap(first, stop)
        return state.waiting_count + uncommitted, state.waiting_bytes + state.bytes_of(first, stop)

    def waits(self, offset: int) -> bool:
        """Whether a leased message belongs to no consumer because it is delayed or blocked."""
        if self.state.is_delayed(offset):
            return True
        return any(extension.holds_back(offset) for extension in self._extensions)

    @property
    def consumer_count(self) -> int:
        """Number of consumers, with or without capacity."""
        if not self.is_opened:
            return 0
        own = self.state.consumer_count
        return own + sum(each.consumer_count for each in self._extensions)

    # -- publishing

    def _admit(self) -> None:
        """Let the extensions admit records, and index the accepted ones."""
        builder = self.builder
        noted = RecordFlag(builder.features & self._noted)
        if noted & self._demanding:
            self._extend(Demand(noted))
        for extension in self._extensions:
            stored_by = extension.admit(builder)
            if stored_by is not None:
                self._await_also(stored_by)
        self.take_in(builder)

    def has_room(self, count: int, body_bytes: int) -> bool:
        """Whether the limits allow so many more records, with so many bytes in their bodies."""
        if not self.is_opened:
            return not self.settings.rejects or self._fit_when_empty(count, body_bytes)
        return all(extension.has_room(count, body_bytes) for extension in self._extensions)

    def _fit_when_empty(self, count: int, body_bytes: int) -> bool:
        length, size = self.settings.max_length, self.settings.max_length_bytes
        count, body_bytes = count + self.builder.count, body_bytes + self.builder.body_bytes()
        return (length is None or count <= length) and (size is None or body_bytes <= size)

    def take_in(self, records: BatchBuilder) -> None:
        """Prepare records for being appended: drop duplicates, and index the others."""
        if not records.count:
            return
        super().take_in(records)
        if records.count and (records.features & self._noted or self._indexes_all):
            self.index(records.preview(self.log.end))

    def index(self, batch: Batch, settled: RangeSet | None = None) -> None:
        """Index the properties of a batch's records, except `settled` ones."""
        self.state.index(batch, settled)
        if batch.features & self._demanding:
            self._extend(Demand(RecordFlag(batch.features)))
        for extension in self._extensions:
            if extension.indexes_all or batch.features & extension.indexed_features:
                extension.appended(batch, settled)

    def _forget_uncommitted(self) -> None:
        self.state.truncate(self.log.end)
        super()._forget_uncommitted()

    def _pass_over_undone(self) -> None:
        """Make committed records ready, except those of undone atomic writes."""
        first, stop = self.state.committed, self.log.committed
        self.state.commit(stop)
        self.state.lose(self.log.undone.gaps(first, stop).gaps(first, stop))
        if stop >= self._undone_stop:
            self._undone_stop = 0

    def undo(self, transaction: int, first: int, stop: int) -> None:
        """Undo an atomic write; its records will not become ready."""
        self._undone_stop = max(self._undone_stop, stop)
        super().undo(transaction, first, stop)
        if first < stop:  # the log has settled them
            for extension in self._extensions:
                extension.settled([(first, stop)])

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called; see QueueState.admits."""
        return self.state.admits(exclusive=exclusive)

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Add `consumer`, from the next turn on. Call `admits` first."""
        self.state.add_consumer(consumer, exclusive=exclusive)
        if consumer.arguments:
            self._extend(Demand(consumer=consumer))
        if self._extensions:
            for extension in self._extensions:
                extension.consumer_added(consumer)
            self._follow_delivering()
        self._turn.touch(self)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove `consumer`; what it holds stays leased."""
        self.state.remove_consumer(consumer)
        if self._extensions:
            for extension in self._extensions:
                extension.consumer_removed(consumer)
            self._follow_delivering()
        self.used()
        self._turn.touch(self)

    def _follow_delivering(self) -> None:
        """Update whether an extension delivers instead of the queue."""
        self._delivering = next((each for each in self._extensions if each.delivers), None)
        self.searches = self._delivering is not None

    def used(self) -> None:
        """Restart the expiry time of a queue with `x-expires`."""
        if self.settings.expires_ms is not None and not self.deleted:
            if self._queue_expiry is None:
                self._queue_expiry = QueueExpiry(self)
            self._queue_expiry.end()

    # -- settling

    def erase(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Erase leased and settled records: consumer groups and range reads have them no more."""
        if self.deleted:
            return
        leased = [part for each in ranges for part in self.state.leased_in(*each)]
        self.state.settle(leased)
        self._write_erased(ranges)
        if self.state.has_groups:
            self.wake()

    def erase_waiting(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Erase those of these records that no consumer has: they are ready, or parked."""
        if self.deleted:
            return
        for extension in self._extensions:
            extension.let_go(ranges)
        self._write_erased(self.state.lose(ranges))

    def with_copies(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return ranges to be erased, and those of settled records of the same messages."""
        everything = RangeSet(ranges)
        for first, stop in self._earlier_copies(ranges):
            everything.add_all(list(self.log.settled.gaps(first, stop).gaps(first, stop)))
        return list(everything)

    def _earlier_copies(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [part for each in self._extensions for part in each.earlier_copies(ranges)]

    def _write_erased(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Erase in the log what the state has settled, or the log had; tell the extensions."""
        if ranges:
            settled, copies = self.log.settled, self._earlier_copies(ranges)
            unsettled = [part for each in ranges for part in settled.gaps(*each)]
            self._owned_log.erase(self.with_copies(ranges))
            for extension in self._extensions if unsettled else ():
                extension.settled(unsettled)
            brought_back = [part for each in copies for part in settled.gaps(*each)]
            for extension in self._extensions if brought_back else ():
                extension.copies_erased(brought_back)

    def lose(self, unreadable: RangeSet, *, unseen: bool = False) -> RangeSet:
        """Settle the ready part of records that nobody will get, and return it.

        `unseen`: and what the state does not know yet, because the backlog is being read.
        """
        if self.deleted:
            return RangeSet()
        lost = RangeSet(self.state.lose(unreadable))
        if unseen:
            committed = self.state.committed
            for first, stop in unreadable:
                lost.add(max(first, committed), max(stop, committed))
        self._write_settled(list(lost))
        return lost

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
        refused = self.state.return_(ranges, failed=failed, now_ms=now_ms, delay_ms=delay_ms)
        self.log.redelivered_stop = self.state.redelivered_stop
        self.counters.moved = True
        if self.settings.counts_deliveries:
            self.log.note_returns(ranges)
        self._await_delayed()
        self.give_up(refused, Reason.DELIVERY_LIMIT)
        self._more_is_ready(ranges)

    def retry(self, ranges: Sequence[tuple[int, int]], delay_ms: int) -> None:
        """Have failed records delivered again after a delay, and count the retry."""
        self.state.count_retries(ranges)
        self.return_(ranges, delay_ms=delay_ms)

    def _await_delayed(self) -> None:
        """Set the timer for the first delayed message."""
        next_ms = self.state.next_delayed_ms
        if self._retry_timer is None and next_ms is not None:
            self._retry_timer = self.services.timers.timer(self._release_delayed)
        if self._retry_timer is not None:
            self._retry_timer.set(next_ms)

    def _release_delayed(self) -> None:
        """Make messages ready whose delay is over."""
        if self.deleted:
            return
        released = self.state.release(self.services.timers.wall_ms())
        self._await_delayed()
        if released:
            self._more_is_ready(released)

    def _more_is_ready(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: ARG002
        """Have messages delivered that came back, unless some of `ranges` are delayed."""
        for extension in self._extensions:
            extension.returned()
        self._turn.touch(self)

    def give_up(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:
        """Discard or retry records that are leased to no consumer."""
        if not ranges:
            return
        self.discarded.add(ranges, reason)

    @property
    def discarded(self) -> DiscardedMessages:
        """Discarded messages of the queue."""
        if self._discarded is None:
            self._discarded = self.services.discarded(self)
        return self._discarded

    def retry_dead_letters(self) -> None:
        """Retry dead letters now: a target may accept them."""
        if self._discarded is not None:
            self._discarded.try_again()

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Discard records that consumers rejected."""
        if not self.deleted:
            self.give_up(ranges, Reason.REJECTED)

    def purge(self) -> int:
        """Erase everything ready or delayed. Returns the number of messages."""
        if self.deleted or not self.is_opened:
            return 0
        ranges = list(self.state.purge())
        self.counters.moved = True  # so that the lower message count is sampled
        self._await_delayed()
        self._write_erased(ranges)
        return sum(stop - first for first, stop in ranges)

    def unpark(self, ranges: list[tuple[int, int]]) -> None:
        """Make messages ready that were blocked by their key."""
        self.state.unblock(ranges)
        self._more_is_ready(ranges)

    # -- the end

    def mark_deleted(self) -> None:
        """Stop the queue: confirm waiting publishers, and notify its consumers."""
        self._close_publishing()
        if not self.is_opened:
            return
        self._close_parts()
        consumers: list[QueueConsumer] = self.state.consumers  # type: ignore[assignment]
        say_farewell(self._turn, consumers)

    def _close_parts(self) -> None:
        """Drop all references to parts that refer to the queue, so that it is freed at once.

        Cycles would stay until the garbage collector has looked at all objects, and queues may be
        created and deleted by the thousand.
        """
        if self._backlog is not None:
            self._backlog.close()
        if self._queue_expiry is not None:
            self._queue_expiry.close()
        if self._retry_timer is not None:
            self._retry_timer.close()
        self._close_extensions()
        if self._discarded is not None:
            self._discarded.close()
        self.reader.close()
        self._backlog = self._queue_expiry = self._retry_timer = self._discarded = None
        self._delivering, self._ready_filters = None, ()


def _filters_ready(extension: QueueExtension) -> bool:
    """Whether an extension must see records before they are delivered."""
    kind, base = type(extension), QueueExtension
    return kind.filter_ready is not base.filter_ready or kind.withholds is not base.withholds
