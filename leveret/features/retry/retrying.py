"""Retry topics: `<queue>.retry`, where a queue's failed messages wait before they come back.

A queue with retries creates its topic when the first message fails, and finds it again after a
restart. `leveret.features.retry.rules` computes the delay. Both directions are at least once: a
message leaves its queue when the topic has committed it, and the topic when the queue has.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from leveret.core.logs.log_scan import LogScan
from leveret.core.logs.log_writer import PatientWaiter
from leveret.core.names import topic_beside
from leveret.core.queues.discarding import BatchSlice
from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.core.routing.message import raw_headers
from leveret.core.settings.discard_reasons import Reason
from leveret.core.settings.queue_settings import Overflow
from leveret.core.settings.retry_policy import RetryPolicy
from leveret.errors import ChannelError
from leveret.features.retry.failed_records import FailedRecord, exhausted, failed_records
from leveret.features.retry.key_order import KeyOrder, key_of
from leveret.features.retry.originals import Originals
from leveret.features.retry.rules import (
    Attempts,
    attempts_of,
    failed_headers,
    header_problem,
    message_retry_policy,
)
from leveret.ports.contents import with_properties
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.features.delay.store import (
        DelayedMessageStore,
        DelayedMessageStores,
        PendingMessage,
    )
    from leveret.ports import LogName
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch

__all__ = ["RetryTopic", "RetryTopics", "check_retry_headers", "retries_waiting", "retry_topic"]

SUFFIX = ".retry"
RETRY_MS = 5_000  # until the queue is offered messages again that it has refused
PAGE_RECORDS = 1000  # records in memory at a time when scanning a topic


def retry_topic(queue: str, partition: int = 0) -> str:
    """Return the name of a partition's retry topic."""
    return topic_beside(queue, SUFFIX, partition)


def check_retry_headers(header: bytes) -> None:
    """Raise ChannelError 406 if a message's retry headers are invalid."""
    problem = header_problem(raw_headers(header))
    if problem is not None:
        raise ChannelError(406, problem)


class RetryTopics(ExtensionKind):
    """Retry topics of a node. `chance()` is a random number in [0, 1)."""

    def __init__(self, stores: DelayedMessageStores, chance: Callable[[], float]) -> None:
        self._stores = stores
        self.chance = chance

    def follow(self, queue: Queue, present: RetryTopic | None, demand: Demand) -> RetryTopic | None:
        """See ExtensionKind. An opened queue has the topic that an earlier run has left."""
        if present is not None or not demand.opening:
            return present
        if not self.logs(queue.definition, queue.settings, queue.number):
            return None
        return RetryTopic(queue, self._stores, self.chance)

    def logs(
        self, definition: QueueDefinition, _settings: QueueSettings, partition: int
    ) -> Sequence[LogName]:
        """Return the log of the topic that an earlier run has left."""
        topic = retry_topic(definition.topic, partition)
        return self._stores.logs(definition.vhost, topic, definition.incarnation)

    def of(self, queue: Queue) -> RetryTopic:
        """Return the topic of a queue, created on demand. Raises StorageError."""
        topic = queue.extension(RetryTopic)
        if topic is None:
            topic = RetryTopic(queue, self._stores, self.chance)
            queue.adopt(self, topic)
        return topic


def retries_waiting(queue: DeclaredQueue) -> int | None:
    """Return the number of messages that wait for their retry; None if none ever did."""
    found = [part.extension(RetryTopic) for part in queue.partitions]
    topics = [topic for topic in found if topic is not None]
    return sum(topic.pending_count for topic in topics) if topics else None


class RetryOutcome(Enum):
    """Result for a failed message that can be retried."""

    AWAY = 1  # moved to the retry topic
    PARKED = 2  # stays in the queue, blocked by its key


class RetryTopic(QueueExtension):
    """Messages of one queue that wait for their next attempt."""

    outlives_reordering = True

    def __init__(
        self, queue: Queue, stores: DelayedMessageStores, chance: Callable[[], float]
    ) -> None:
        definition = queue.definition
        self._queue = queue
        self._stores = stores
        self._chance = chance
        self._timers = queue.services.timers
        self._coming: set[int] = set()  # offsets in the topic of messages on their way back
        self._topic_scan: LogScan | None = None  # see recover
        self._originals: Originals | None = None  # where the queue keeps them
        self.store: DelayedMessageStore = stores.open(
            definition.vhost,
            retry_topic(definition.topic, queue.number),
            self.come_back,
            incarnation=definition.incarnation,
        )
        self.store.on_lost = self._lost
        self.store.on_forgotten = self._stayed
        self.reconfigure(queue.settings)

    @property
    def holds_messages(self) -> bool:  # type: ignore[override]
        """Whether messages wait for their next attempt."""
        return self.pending_count > 0

    @property
    def builder(self) -> BatchBuilder:
        """Builder of the messages that `take` moves to the topic."""
        return self.store.builder

    @property
    def pending_count(self) -> int:
        """Number of waiting messages."""
        return self.store.pending_count

    # -- originals of what is retried

    def _follow_retention(self, settings: QueueSettings) -> None:
        if settings.retention is None:
            self._originals = None
        elif self._originals is None:
            self._originals = Originals()

    def reconfigure(self, settings: QueueSettings) -> None:
        """Have as many copies as the queue, and note originals if it keeps settled messages."""
        # A message must not come to stand on fewer disks when it fails.
        self.store.log.require_copies(settings.copies_min)
        self._follow_retention(settings)

    @property
    def indexed_features(self) -> RecordFlag:  # type: ignore[override]
        """Flag of the attempts whose originals it must know."""
        return RecordFlag(0) if self._originals is None else RecordFlag.RETRIED

    @property
    def needs_backlog(self) -> bool:  # type: ignore[override]
        """Whether it must see the attempts of an earlier run before any can be deleted."""
        return self._originals is not None

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """Estimated memory of the originals' offsets."""
        return 0 if self._originals is None else self._originals.held_bytes

    def appended(self, batch: Batch, settled: RangeSet | None) -> None:
        """Note the originals of attempts."""
        if self._originals is not None:
            self._originals.appended(batch, settled)

    def truncated(self, offset: int) -> None:
        """Forget attempts that were lost."""
        if self._originals is not None:
            self._originals.truncated(offset)

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Forget attempts that were settled; erase originals whose attempts were deleted before."""
        due = [] if self._originals is None else self._originals.settled(ranges)
        if due:
            self._queue.erase(due)

    def earlier_copies(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return where the queue has the originals of attempts."""
        return [] if self._originals is None else self._originals.of(ranges)

    def copies_erased(self, ranges: list[tuple[int, int]]) -> None:
        """Erase originals that are not settled, those that a consumer has when they are."""
        if self._originals is not None:
            self._originals.doom(ranges)
            self._queue.erase_waiting(ranges)

    # -- failures

    def take(
        self, slices: Sequence[BatchSlice], reason: Reason
    ) -> tuple[list[tuple[int, int]], list[BatchSlice]]:
        """Move retryable records to the topic. Returns (their offsets, the exhausted records).

        The headers of exhausted records have the failure.
        """
        retry_policy = self._queue.settings.retry
        assert retry_policy is not None, "the queue retries"
        waiting = RangeSet()
        exhausted: list[BatchSlice] = []
        now_ms = self._timers.wall_ms()
        for part in slices:
            for record in failed_records(part):
                outcome = self._fail(record, retry_policy, reason, now_ms)
                if isinstance(outcome, BatchSlice):
                    exhausted.append(outcome)
                elif outcome is RetryOutcome.AWAY:
                    waiting.add(record.offset, record.offset + 1)
        return list(waiting), exhausted

    def _fail(
        self, record: FailedRecord, retry_policy: RetryPolicy, reason: Reason, now_ms: int
    ) -> RetryOutcome | BatchSlice:
        """Move a failed record to the topic, or return it with failure headers if exhausted."""
        headers = raw_headers(record.header)
        if record.flags & RecordFlag.HAS_RETRY:
            retry_policy = message_retry_policy(retry_policy, headers)
        # Clients may write such headers, too: only the broker's own count.
        known = record.flags & RecordFlag.RETRIED
        attempts = attempts_of(headers) if known else Attempts(original=record.offset)
        count = attempts.count + 1
        if count > retry_policy.attempts_max:
            return exhausted(record, failed_headers(headers, attempts, reason, now_ms // 1000))
        order = self._queue.extension(KeyOrder)
        key = b""
        if order is not None:
            key = key_of(record.flags, record.exchange, record.routing_key, record.header)
            if not order.failed(record.offset, key):
                return RetryOutcome.PARKED
        attempts = Attempts(count, attempts.first_at, attempts.original)
        table = encode_table(failed_headers(headers, attempts, reason, now_ms // 1000))
        topic_offset = self.store.add(
            now_ms + retry_policy.wait_ms(count, self._chance()),
            record.flags | RecordFlag.HAS_HEADERS | RecordFlag.RETRIED,
            record.exchange,
            record.routing_key,
            with_properties(record.header, table=table),
            record.body,
        )
        if order is not None:
            order.left(record.offset, key, topic_offset)
        if self._originals is not None and attempts.original is not None:
            self._originals.away[topic_offset] = attempts.original
        return RetryOutcome.AWAY

    # -- return

    def come_back(self, due: Sequence[PendingMessage]) -> None:
        """Append messages to their queue: they are due, or an operator wants it."""
        queue = self._queue
        if queue.deleted:
            return
        coming = RetryReenqueue(self)
        now = self._timers.wall_ms()
        builder = queue.builder
        for record in due:
            if record.offset in self._coming:
                continue
            _, _, flags, exchange, routing_key, header, body = record
            builder.add(flags, now, exchange, routing_key, header, body)
            if builder.publish_tags is not None:
                builder.publish_tags.add(coming, len(coming.records), builder.count - 1)
            self._coming.add(record.offset)
            coming.records.append(record)
        if coming.records:
            queue.touch()
            queue.await_commit(coming)

    def arrived(self, records: Sequence[PendingMessage], missing: Sequence[PendingMessage]) -> None:
        """Settle `records`, which the queue has committed, and retry `missing` ones later.

        Those that were brought back before they are due just stay in the topic until then.
        """
        self._coming.difference_update(record.offset for record in (*records, *missing))
        if self._queue.deleted:
            return
        self.store.settle([(record.offset, record.offset + 1) for record in records])
        if self._originals is not None:
            for record in records:
                self._originals.away.pop(record.offset, None)
        order = self._queue.extension(KeyOrder)
        if order is not None:
            for record in records:
                order.came_back(record.offset)
        # Not all that are due by the clock were handed out as due ones: it may have been set.
        refused = [record.offset for record in missing if not self.store.waits(record.offset)]
        again_ms = self._timers.wall_ms() + RETRY_MS
        self.store.retry_later([(offset, offset + 1) for offset in refused], again_ms)

    @property
    def is_refusal_final(self) -> bool:
        """Whether messages refused by the full queue went to its dead-letter exchange."""
        settings = self._queue.settings
        return settings.overflow is Overflow.REJECT_PUBLISH_DLX and settings.dead_letters(
            Reason.MAX_LENGTH
        )

    # -- operations

    async def bring_back(self, offsets: Sequence[int] | None) -> int:
        """Return messages to the queue now; None: all. Returns their number.

        Raises StorageError.
        """
        count = 0
        for page in self._pages(offsets):
            records = [r for r in await self.store.read(page) if r.offset not in self._coming]
            self.come_back(records)
            count += len(records)
        return count

    def cancel(self, offsets: Sequence[int] | None) -> int:
        """Delete waiting messages, without dead letters; None: all. Returns their number."""
        return sum(self.clear()) if offsets is None else self._cancel(offsets)

    def clear(self) -> Iterator[int]:
        """Delete all messages waiting now, some at each step, yielding their numbers."""
        stop = self.store.log.end + self.builder.count
        for page in self._pages(None):
            yield self._cancel([offset for offset in page if offset < stop])

    def _cancel(self, offsets: Sequence[int]) -> int:
        count = 0
        for offset in offsets:
            if offset not in self._coming and self.store.cancel(offset):
                self._cancelled(offset)
                count += 1
        return count

    def _lost(self, unreadable: RangeSet) -> None:
        """Free the keys of messages that can no longer be read."""
        order = self._queue.extension(KeyOrder)
        if order is not None:
            for offset in order.away:
                if offset in unreadable:
                    order.cancelled(offset)

    def _stayed(self, stop: int) -> None:
        """Note that messages stayed in the queue, which were to stand from `stop` on."""
        order = self._queue.extension(KeyOrder)
        if order is not None:
            order.stayed(stop)

    def _cancelled(self, offset: int) -> None:
        original = None if self._originals is None else self._originals.away.pop(offset, None)
        order = self._queue.extension(KeyOrder)
        if order is not None:
            order.cancelled(offset)
        if original is None:
            return
        if original in self._queue.log.settled:
            self._queue.erase([(original, original + 1)])
        else:
            self.copies_erased([(original, original + 1)])

    @property
    def recovers(self) -> bool:  # type: ignore[override]
        """Whether its messages block keys of the queue, or their originals must be known."""
        return self._originals is not None or self._queue.extension(KeyOrder) is not None

    async def recover(self) -> None:
        """Block the keys of messages that an earlier run has left here, and note their originals.

        Raises StorageError; the next call goes on where it was.
        """
        if not self.recovers:
            return
        log = self.store.log
        if self._topic_scan is None:
            report = partial(self._queue.services.report, self._queue)
            self._topic_scan = LogScan(log, report, self.store.lose)
        while batches := await self._topic_scan.read():
            order = self._queue.extension(KeyOrder)
            for batch in batches:
                for at, flags, _, exchange, routing_key, header, _ in batch.records():
                    if at in log.settled:
                        continue
                    if order is not None:
                        order.found_away(at, key_of(flags, exchange, routing_key, header))
                    if self._originals is not None:
                        self._originals.found_away(at, header)
        self._topic_scan = None  # another order that is asked for later has to be told again

    def _pages(self, offsets: Sequence[int] | None) -> Iterator[Sequence[int]]:
        """Yield these offsets, or all waiting ones in pages."""
        if offsets is not None:
            yield offsets
            return
        after: tuple[int, int] | None = None
        while not self.store.deleted and (page := self.store.scan(after, None, PAGE_RECORDS)):
            yield [offset for _, offset in page]
            after = page[-1]

    # -- the end

    def delete(self) -> None:
        """Delete the topic with the deleted queue."""
        definition = self._queue.definition
        topic = retry_topic(definition.topic, self._queue.number)
        self._stores.delete(definition.vhost, topic, definition.incarnation)


class RetryReenqueue(PatientWaiter):
    """Messages on their way from the retry topic to the queue."""

    def __init__(self, topic: RetryTopic) -> None:
        self.records: list[PendingMessage] = []
        self._topic = topic
        self._refused = RangeSet()

    def refused(self, first: int, stop: int) -> None:
        """Note that the queue refused these messages (see leveret.core.logs.publish_tags)."""
        if not self._topic.is_refusal_final:
            self._refused.add(first, stop)

    def done(self, *, failed: bool) -> None:
        """Handle the queue's commit, as a Waiter."""
        arrived: list[PendingMessage] = []
        missing: list[PendingMessage] = []
        for index, record in enumerate(self.records):
            (missing if failed or index in self._refused else arrived).append(record)
        self._topic.arrived(arrived, missing)
