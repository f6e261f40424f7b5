"""Stand-in on a node for a partition that another node leads, or nobody for now.

It takes what clients do with the partition and sends it to the leader over one stream
(`ForwardingChannel`). Records that the leader has not committed stay here: if it goes, they are
sent to the next leader once more. A message may then be stored twice, and none is lost.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.clustering.forwarding.buffered import BufferedDeliveries
from leveret.clustering.forwarding.questions import LeaderQuestions
from leveret.clustering.forwarding.remote_parts import RemotePart, RemoteParts
from leveret.clustering.forwarding.wire import (
    BeginConsuming,
    ConsumerPlaced,
    ConsumerRefused,
    DeliverRecords,
    EndConsuming,
    GetRequest,
    GotRecord,
    GrantCredit,
    LogOffsets,
    LookUpOffsets,
    PublishRecords,
    PurgeAnswer,
    PurgeRequest,
    QueueFigures,
    RecordsCommitted,
    RecordsFailed,
    RecordsRefused,
    RefreshRequest,
    SettlementOutcome,
    SettleRecords,
    TransactionPrepared,
    TransactionResolved,
)
from leveret.core.logs.log_writer import GONE, tell_each
from leveret.core.logs.publish_tags import PublishTags
from leveret.core.names import not_found
from leveret.core.queues.consumer import say_farewell
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.queues.places import purge_place
from leveret.core.settings.discard_reasons import Reason
from leveret.core.settings.stream_offsets import STREAM_OFFSET, FromOffset, Place, parse_start
from leveret.errors import StorageError
from leveret.features.range_reads.bounds import offset_row
from leveret.ports.records import BatchBuilder
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.clustering.forwarding.wire import FromLeader, RecordReturns, ToLeader
    from leveret.core.blocked_publishers import BlockedPublishers
    from leveret.core.logs.log_writer import HandedOver, Waiter
    from leveret.core.logs.publish_tags import Publisher
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.partitioned_queue import PartitionedQueue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.turn import Turn
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

__all__ = ["RemotePartition"]

# Bytes of records without a commit, beyond which publishers to the partition are blocked.
UNCOMMITTED_BYTES_MAX: Final = 16 << 20
# Time without a leader after which they are, so that those of a short while are not told.
PATIENCE_MS: Final = 250
# Bytes of one message to the leader: links take larger ones, but others would wait for them.
PUBLISH_BYTES_MAX: Final = 4 << 20


def _is_final(message: ToLeader) -> bool:
    """Whether a message says what another leader must know, too."""
    finals = (SettlementOutcome.SETTLED, SettlementOutcome.DISCARDED)
    return isinstance(message, SettleRecords) and message.outcome in finals


class SentRecords(NamedTuple):
    """Records that are not committed yet.

    `tags` are (first index, stop index, publisher, first tag) of those who hear of refusals.
    """

    batch: Batch
    tags: Sequence[tuple[int, int, Publisher, int]]

    @property
    def stop(self) -> int:
        """Sequence number behind the last record."""
        return self.batch.stop_offset


class RemotePartition(DeclaredQueue):
    """A partition of `whole` that is led elsewhere. It has the builder of the one that is led here.

    `send(message)` sends to the leader and returns False while there is none or it takes no more;
    `resume` is called when it does again.
    """

    is_opened = False
    is_led_here = False
    touched = False
    searches = False
    may_gather = False
    passed_over_in = 0
    held = False
    settles_in_log = True
    successor: OpenQueue | None = None  # the partition, once it is led here

    def __init__(
        self,
        whole: PartitionedQueue,
        number: int,
        builder: BatchBuilder,
        publishers: BlockedPublishers,
        send: Callable[[ToLeader], bool],
    ) -> None:
        self.number = number
        self._whole = whole
        self._definition, self._policy = whole.definition, whole.policy
        self.settings = whole.settings.of_partition()
        self.services = whole.services
        self.owner = whole.owner
        self.gone = self.deleted = False
        self.counters = whole.counters
        self.opened_ms = whole.opened_ms
        self.rates: Any = None
        self._builder = builder
        self._publishers = publishers
        self._send = send
        self._is_connected = False
        # Publishes.
        self._next = 0  # sequence number of the next record
        self._sent = 0  # records below it were sent to the present leader
        self._uncommitted: deque[SentRecords] = deque()
        self._uncommitted_bytes = 0
        self._gathered: list[Waiter] = []  # for records in the builder
        self._waiters: deque[tuple[int, list[Waiter]]] = deque()
        # Deliveries.
        self._consumers: dict[QueueConsumer, BufferedDeliveries] = {}
        self._by_number: dict[int, BufferedDeliveries] = {}
        self._numbers = 0
        self.questions = LeaderQuestions(self.post)
        self._figures = QueueFigures(0, 0, 0, 0, False)
        self._log_end: int | None = None  # offset of the next record, as of the last `refresh`
        self.failures: dict[int, int] = {}  # returns of delivered records, by offset
        self.acquired: dict[int, int] = {}
        self._unsent: deque[ToLeader] = deque()  # for want of room in the stream, in order
        self.leader = (0, 0)  # the last one's node and epoch, or the session where a queue lives
        self.log = self.parts = RemoteParts(self)
        self._take_builder()

    def _take_builder(self) -> None:
        builder = self._builder
        builder.owner = self
        builder.counters = None  # the leader counts what it stores
        builder.publish_tags = PublishTags() if self.settings.rejects else None
        if builder.count:
            self.turn.touch(self)

    # -- the leader

    def connected(self) -> None:
        """Begin with a leader: send it what is not committed, and the consumers."""
        self._is_connected = True
        self.questions.connected()
        self._sent = self._uncommitted[0].batch.base_offset if self._uncommitted else self._next
        self._by_number.clear()
        for consumer, buffered in list(self._consumers.items()):
            self._numbers += 1
            buffered.number = self._numbers
            self._by_number[buffered.number] = buffered
            self._begin_consuming(consumer, buffered)
        self.resume()
        self.parts.connected()

    @property
    def is_connected(self) -> bool:
        """Whether there is a stream to the leader."""
        return self._is_connected

    @property
    def leading_node(self) -> int | None:
        """Node that leads, as far as there is a stream to it."""
        return self.leader[0] if self._is_connected else None

    def post(self, message: ToLeader) -> None:
        """Send a message after those that wait for room in the stream."""
        if self._unsent or not self._send(message):
            self._unsent.append(message)

    def _begin_consuming(self, consumer: QueueConsumer, buffered: BufferedDeliveries) -> None:
        self.post(
            BeginConsuming(
                buffered.number,
                buffered.exclusive,
                consumer.priority,
                buffered.restart(),
                self._arguments(buffered),
            )
        )

    def _arguments(self, buffered: BufferedDeliveries) -> Arguments:
        """Return the arguments of a consumer, with which it goes on where it is in a stream."""
        arguments = buffered.consumer.arguments
        if not self.settings.is_stream or buffered.next_offset is None:
            return arguments
        return {**arguments, STREAM_OFFSET: buffered.next_offset}

    @property
    def first_uncommitted(self) -> int:
        """Sequence number of the first record that a leader is to be sent."""
        return self._uncommitted[0].batch.base_offset if self._uncommitted else self._next

    def disconnected(self, reason: str) -> None:
        """Note that the leader is gone: what was asked of it is not answered."""
        self._is_connected = False
        # The next leader is told what clients are done with, else it would deliver that again.
        self._unsent = deque(each for each in self._unsent if _is_final(each))
        self.failures.clear()
        self.acquired.clear()
        self.questions.disconnected(reason)
        self.parts.leader_gone(reason)
        for buffered in self._consumers.values():
            buffered.drop()
        if self._uncommitted:
            self.services.timers.after(PATIENCE_MS, self._block_if_away)

    def _block_if_away(self) -> None:
        if not self._is_connected and not self.deleted and self._uncommitted:
            self._publishers.block(self, f"no leader of {self}")

    def resume(self) -> None:
        """Send what waits for room in the stream."""
        while self._unsent and self._send(self._unsent[0]):
            self._unsent.popleft()
        self._send_records()
        self.turn.touch(self)

    def handle(self, message: FromLeader) -> None:
        """Handle a message of the leader."""
        match message:
            case RecordsCommitted(sequence):
                self._committed(sequence)
            case DeliverRecords(consumer, redelivered, counts, batches):
                self._came(consumer, batches, counts, redelivered=redelivered)
            case RecordsFailed(ranges) | RecordsRefused(ranges):
                self._not_stored(ranges, failed=isinstance(message, RecordsFailed))
            case ConsumerPlaced(consumer, offset):
                self._placed(consumer, offset)
            case ConsumerRefused(consumer):
                self._cancelled(consumer)
            case TransactionPrepared() | TransactionResolved():
                self.parts.handle(message)
            case GotRecord() | QueueFigures() | PurgeAnswer() | LogOffsets():
                self.questions.answered(message)

    # -- publishing

    def flush(self) -> None:
        """Send the gathered records as one batch."""
        builder = self._builder
        if not builder.count or self.deleted:
            return
        tags = [] if builder.publish_tags is None else builder.publish_tags.take()
        batch = builder.seal(self._next)
        self._keep(batch, tags)
        if self._gathered:
            self._waiters.append((self._next, self._gathered))
            self._gathered = []
        self._send_records()
        if not self._is_connected:
            self.services.timers.after(PATIENCE_MS, self._block_if_away)
        if self._uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            self._publishers.block(self, f"the leader of {self} is slow")

    def _keep(self, batch: Batch, tags: Sequence[tuple[int, int, Publisher, int]]) -> None:
        self._next = batch.stop_offset
        self._uncommitted_bytes += batch.size
        if batch.size <= PUBLISH_BYTES_MAX:
            self._uncommitted.append(SentRecords(batch, tags))
            return
        first = batch.base_offset
        while first < batch.stop_offset:
            part = batch.cut(first, batch.stop_offset, PUBLISH_BYTES_MAX)
            low, high = first - batch.base_offset, part.stop_offset - batch.base_offset
            its = [
                (max(begin, low) - low, min(end, high) - low, publisher, tag + max(low - begin, 0))
                for begin, end, publisher, tag in tags
                if begin < high and low < end
            ]
            self._uncommitted.append(SentRecords(part, its))
            first = part.stop_offset

    def _send_records(self) -> None:
        if not self._is_connected or self._sent == self._next or self._unsent:
            return
        for records in self._uncommitted:
            if records.batch.base_offset >= self._sent:
                if not self._send(PublishRecords(records.batch)):
                    return
                self._sent = records.stop

    def _committed(self, sequence: int) -> None:
        self._forget(sequence)
        while self._waiters and self._waiters[0][0] <= sequence:
            tell_each(self._waiters.popleft()[1], self.services.report, failed=False)

    def _forget(self, sequence: int) -> None:
        while self._uncommitted and self._uncommitted[0].stop <= sequence:
            self._uncommitted_bytes -= self._uncommitted.popleft().batch.size
        if self._uncommitted_bytes <= UNCOMMITTED_BYTES_MAX // 2:
            self._publishers.release(self)

    def _not_stored(self, ranges: Sequence[tuple[int, int]], *, failed: bool) -> None:
        for first, stop in ranges:
            if failed:
                self._failed(first, stop)
            else:
                self._refused(first, stop)

    def _failed(self, first: int, stop: int) -> None:
        """Nack those who wait for records [first, stop)."""
        self._forget(stop)
        kept: deque[tuple[int, list[Waiter]]] = deque()
        for at, waiters in self._waiters:
            if first < at <= stop:
                tell_each(waiters, self.services.report, failed=True)
            else:
                kept.append((at, waiters))
        self._waiters = kept

    def _refused(self, first: int, stop: int) -> None:
        """Tell the publishers of records that the queue has refused."""
        for records in self._uncommitted:
            base = records.batch.base_offset
            for begin, end, publisher, tag in records.tags:
                low, high = max(first - base, begin), min(stop - base, end)
                if low < high:
                    publisher.refused(tag + low - begin, tag + high - begin)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published here so far is committed."""
        if self.deleted:
            waiter.done(failed=False)
        elif self._builder.count:
            self._gathered.append(waiter)
            self.turn.touch(self)
        elif self._uncommitted:
            self._waiters.append((self._next, [waiter]))
        else:
            waiter.done(failed=False)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published here so far is committed."""
        return not (self._builder.count or self._uncommitted)

    def has_room(self, records: BatchBuilder) -> bool:  # noqa: ARG002  # only the leader knows
        """Return True: the leader refuses what is too much."""
        return True

    # -- deliveries

    def admits(self, *, exclusive: bool) -> bool:
        """Whether a consumer may be added, as of the last `refresh`."""
        if self.settings.is_stream:
            return True  # everybody reads for himself: `exclusive` means nothing
        if self.settings.single_active:
            return not exclusive
        figures = self._figures
        return not figures.exclusive and not (exclusive and figures.consumers)

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Have the leader deliver to a consumer."""
        self._numbers += 1
        buffered = BufferedDeliveries(self._numbers, consumer, exclusive=exclusive)
        if self.settings.is_stream:
            buffered.next_offset = self._known_start(consumer)
        self._consumers[consumer] = self._by_number[buffered.number] = buffered
        if self._is_connected:
            self._begin_consuming(consumer, buffered)

    def _known_start(self, consumer: QueueConsumer) -> int | None:
        """Return where a reader of a stream begins, whoever leads by then; None if only he knows.

        Messages from now on are those after the refresh that a consumer begins with.
        """
        start = parse_start(consumer.arguments.get(STREAM_OFFSET, Place.NEXT.value))
        if start is Place.NEXT:
            return self._log_end
        return start.offset if isinstance(start, FromOffset) else None

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Have the leader deliver nothing more; return what the consumer has not got yet."""
        buffered = self._consumers.pop(consumer, None)
        if buffered is None:
            return
        self._by_number.pop(buffered.number, None)
        self.post(EndConsuming(buffered.number))
        self._put_back(list(buffered.drop()))

    def _put_back(self, ranges: Sequence[tuple[int, int]]) -> None:
        if ranges:
            self.post(SettleRecords(SettlementOutcome.RETURNED, Reason.REQUEUED, ranges))

    def _cancelled(self, number: int) -> None:
        buffered = self._by_number.pop(number, None)
        if buffered is not None:
            self._consumers.pop(buffered.consumer, None)
            buffered.consumer.queue_gone()

    def _placed(self, number: int, offset: int) -> None:
        buffered = self._by_number.get(number)
        if buffered is not None:
            buffered.next_offset = offset

    def _came(
        self,
        number: int,
        batches: Sequence[Batch],
        counts: Sequence[RecordReturns],
        *,
        redelivered: bool,
    ) -> None:
        buffered = self._by_number.get(number)
        if buffered is None:  # it was cancelled meanwhile
            self._put_back([(batch.base_offset, batch.stop_offset) for batch in batches])
            return
        self._note_counts(counts)
        for batch in batches:
            buffered.came(batch, redelivered=redelivered)
        self.turn.touch(self)

    def _note_counts(self, counts: Sequence[RecordReturns]) -> None:
        for offset, failures, acquired in counts:
            self.failures[offset], self.acquired[offset] = failures, acquired

    def resume_points(self) -> dict[QueueConsumer, int]:
        """Return the offsets that a stream's consumers are delivered next (see OpenQueue)."""
        if not self.settings.is_stream:
            return {}
        return {
            consumer: buffered.next_offset
            for consumer, buffered in self._consumers.items()
            if buffered.next_offset is not None
        }

    def pump(self) -> bool:
        """Deliver what has come, and ask for more where consumers have capacity."""
        for consumer, buffered in list(self._consumers.items()):
            taken = buffered.deliver()
            if taken and consumer.no_ack:
                self.settle(taken)
            credit = buffered.credit() if self._is_connected else None
            if credit is not None:
                self.post(GrantCredit(buffered.number, *credit))
        return False

    def wake(self, consumer: QueueConsumer | None = None) -> None:  # noqa: ARG002  # all are asked
        """Note that a consumer may have more capacity."""
        self.turn.touch(self)

    def gathers(self) -> bool:
        """Return False: records are sent in each turn."""
        return False

    async def get(self) -> GotRecord | None:
        """Lease one message at the leader, if there is one. Raises ChannelError 404.

        Returns None where another place stands for the partition by then, or none does.
        """
        got: GotRecord | None = await self.questions.ask(GetRequest, self.definition)
        if got is not None:
            self._note_counts(got.counts)
            self._figures = self._figures._replace(ready=got.ready)
        return got

    async def refresh(self) -> None:
        """Have the figures as of now, with what was published. Raises ChannelError 404."""
        figures: QueueFigures | None = await self.questions.ask(RefreshRequest, self.definition)
        if figures is not None:
            self._log_end = figures.end
            self.note_figures(figures)
        elif self.successor is not None:
            await self.successor.refresh()

    def note_figures(self, figures: QueueFigures) -> None:
        """Take what the leader tells of the partition."""
        self._figures = figures

    async def purge(self) -> int:
        """Purge the partition; return the number of messages. Raises ChannelError 404."""
        purged: PurgeAnswer | None = await self.questions.ask(PurgeRequest, self.definition)
        if purged is not None:
            return purged.messages
        return 0 if self.successor is None else await purge_place(self.successor)

    async def offset_row(self, time_ms: int | None, *, sizes: bool) -> dict[str, int]:
        """Return what can be read at the leader (see features.range_reads.bounds).

        Raises ChannelError 404, StorageError.
        """
        found: LogOffsets | None = await self.questions.ask(
            lambda number: LookUpOffsets(number, time_ms, sizes), self.definition
        )
        if found is None and self.successor is not None:
            return await offset_row(self.successor, time_ms, sizes=sizes)
        if found is None:
            raise not_found("queue", self.name, self.definition.vhost)
        if found.is_unreadable:
            raise StorageError(f"the leader of {self} cannot read its log now")
        row = {"partition": self.number, "first": found.first, "end": found.end}
        if found.offset is not None:
            row["offset"] = found.offset
        if found.size is not None:
            row["bytes"] = found.size
        return row

    # -- settling

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle delivered records."""
        if self.successor is not None:
            self.successor.settle_unleased(ranges)
            return
        self.post(SettleRecords(SettlementOutcome.SETTLED, Reason.REQUEUED, ranges))
        self._forget_counts(ranges)

    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
    ) -> None:
        """Return delivered records to the queue."""
        if self.successor is None:
            outcome = SettlementOutcome.FAILED if failed else SettlementOutcome.RETURNED
            self.post(SettleRecords(outcome, cause or Reason.REQUEUED, ranges))
            self._forget_counts(ranges)

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Discard records that consumers rejected."""
        if self.successor is not None:
            self.successor.settle_unleased(ranges, rejected=True)
            return
        self.post(SettleRecords(SettlementOutcome.DISCARDED, Reason.REJECTED, ranges))
        self._forget_counts(ranges)

    def _forget_counts(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self.acquired:
            for first, stop in ranges:
                for offset in range(first, stop):
                    self.failures.pop(offset, None)
                    self.acquired.pop(offset, None)

    # -- atomic writes (see LogWriter)

    @property
    def limited_with(self) -> RemotePartition:
        """Return itself: the leader knows the limits."""
        return self

    def take_in(self, records: BatchBuilder) -> None:
        """Do nothing: the leader drops duplicates."""

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        seen: Waiter,
    ) -> None:
        """Have the leader prepare a part. Raises StorageError."""
        self.parts.prepare(transaction, records, ranges, RemotePart(prepared, seen))

    def carry_out(
        self, transaction: int, ranges: Sequence[tuple[int, int]], seen: Waiter | None = None
    ) -> None:
        """Have the leader apply a committed atomic write."""
        self._forget_counts(ranges)
        self.parts.carry_out(transaction, seen)

    def undo(self, transaction: int, first: int, stop: int) -> None:  # noqa: ARG002
        """Have the leader undo a failed atomic write."""
        self.parts.undo(transaction)

    # -- the end

    def hand_over(self, part: OpenQueue) -> None:
        """Give everything to the partition, which is led here from now on.

        It has the builder and is in its place: what was not committed is published there, in order.
        """
        self.flush()
        self.successor, self.deleted = part, True
        for records in self._uncommitted:
            tags, at = part.builder.publish_tags, part.builder.count
            part.builder.add_batch(records.batch)
            if tags is not None:
                for first, stop, publisher, tag in records.tags:
                    tags.add_run(publisher, tag, at + first, at + stop)
        waiters = [waiter for _, each in self._waiters for waiter in each]
        self._end()
        part.turn.touch(part)
        for waiter in waiters:
            part.await_commit(waiter)

    def take_over(self, handed_over: HandedOver, batches: Sequence[Batch] | None) -> None:
        """Take over from the partition, which was led here until now.

        `batches` are not committed, and those who wait for them do not know whether the next leader
        has them: they are sent to it once more. Without them (None), their publishers are nacked.
        """
        for batch in batches or ():
            again = BatchBuilder()
            again.add_batch(batch)
            self._keep(again.seal(self._next), [])
        if batches is None:
            tell_each(handed_over.uncommitted, self.services.report, failed=True)
        elif handed_over.uncommitted:
            self._waiters.append((self._next, handed_over.uncommitted))
        self._gathered += handed_over.gathered

    def _end(self) -> None:
        self._publishers.release(self)
        self._uncommitted.clear()
        self._waiters.clear()
        self._consumers.clear()
        self._by_number.clear()
        self.questions.end("this node leads, or the queue is deleted")
        self.parts.leader_gone("this node leads, or the queue is deleted", with_unsent=True)

    def mark_deleted(self) -> None:
        """Stop: confirm waiting publishers, and notify the consumers."""
        self.deleted = True
        self._builder.clear()
        self._builder.owner = GONE
        consumers = list(self._consumers)
        waiters = [*self._gathered, *(waiter for _, each in self._waiters for waiter in each)]
        self._gathered = []
        self._end()
        tell_each(waiters, self.services.report, failed=False)
        say_farewell(self.turn, consumers)

    # -- what it is

    @property
    def definition(self) -> Any:
        """Definition of the whole queue."""
        return self._definition

    @definition.setter
    def definition(self, definition: Any) -> None:
        self._definition = definition

    @property
    def policy(self) -> Any:
        """Policy of the whole queue."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy

    @property
    def turn(self) -> Turn:
        """Turn that flushes and pumps it."""
        return self.services.turn

    @property
    def builder(self) -> BatchBuilder:
        """Builder in which records gather, wherever the partition is led."""
        return self._builder

    @property
    def whole(self) -> DeclaredQueue:
        """Queue that clients know by the name."""
        return self._whole

    @property
    def partitions(self) -> Sequence[OpenQueue]:
        """Return none: it is led elsewhere."""
        return ()

    @property
    def places(self) -> Sequence[Any]:
        """Return itself."""
        return (self,)

    def in_turn(self) -> Sequence[OpenQueue]:
        """Return none: it is led elsewhere."""
        return ()

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings."""
        self.settings = settings
        if not self._builder.count:
            self._builder.publish_tags = PublishTags() if settings.rejects else None

    can_reorder = True

    def reorder(self, settings: QueueSettings) -> None:
        """Apply settings that change the order at the leader."""
        self.reconfigure(settings)

    @property
    def message_count(self) -> int:
        """Number of ready messages, as of the last `refresh`."""
        return self._figures.ready

    @property
    def leased_count(self) -> int:
        """Number of leased messages, as of the last `refresh`."""
        return self._figures.leased

    @property
    def consumer_count(self) -> int:
        """Number of consumers, as of the last `refresh`, at least those of this node."""
        return max(self._figures.consumers, len(self._consumers))

    @property
    def return_counts(self) -> tuple[dict[int, int], dict[int, int]] | None:  # type: ignore[override]
        """Returns of records that are delivered here, if the queue counts them."""
        return (self.failures, self.acquired) if self.settings.counts_deliveries else None

    delayed_count = dead_letters_waiting = died_count = held_bytes = 0

    @property
    def position(self) -> int:
        """Number of records that were published here."""
        return self._next + self._builder.count

    def total_usage(self) -> Usage:
        """Return no usage: the leader counts it."""
        return Usage()
