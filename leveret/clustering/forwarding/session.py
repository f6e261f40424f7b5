"""Leader's side of forwarding: what the clients of another node do with a partition led here."""

from __future__ import annotations

import contextlib
from asyncio import TaskGroup
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.clustering.forwarding.buffered import CREDIT_BYTES
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
    PrepareOutcome,
    PrepareTransaction,
    PublishRecords,
    PurgeAnswer,
    PurgeRequest,
    QueueFigures,
    RecordReturns,
    RecordsCommitted,
    RecordsFailed,
    RecordsRefused,
    RefreshRequest,
    ResolveTransaction,
    SettlementOutcome,
    SettleRecords,
    TransactionPrepared,
    TransactionResolved,
    pack,
    parse_to_leader,
)
from leveret.core.queues.queue import Queue
from leveret.core.settings.arguments import check_consumer_arguments
from leveret.errors import ChannelError, ConnectionClosingError, LeveretError, StorageError
from leveret.features.range_reads.bounds import offset_row
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.clustering.forwarding.transaction_parts import TransactionParts
    from leveret.clustering.forwarding.wire import FromLeader, ToLeader
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.links.streams import LinkStream
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

__all__ = ["PartitionSession"]

LACKS_SHARED: Final = -1  # capacity of a consumer that waits for room in the stream


class CommitGroup:
    """Records of one message that wait to be committed (see Waiter)."""

    __slots__ = ("_session", "failed", "first", "is_done", "stop")

    def __init__(self, session: PartitionSession, first: int, stop: int) -> None:
        self._session = session
        self.first, self.stop = first, stop
        self.is_done = self.failed = False

    def done(self, *, failed: bool) -> None:
        """Note that the records are committed, or not stored."""
        self.is_done, self.failed = True, failed
        self._session.answer_commits()


class ForwardedConsumer:
    """A consumer of a client on another node (see QueueConsumer).

    It always acknowledges: without acknowledgements its node does, once the client is sent to.
    """

    no_ack = False

    def __init__(self, session: PartitionSession, begun: BeginConsuming) -> None:
        self._session = session
        self.number = begun.consumer
        self.priority = begun.priority
        self.arguments: Arguments = begun.arguments
        self.held = RangeSet()
        self._messages = begun.credit
        self._bytes = CREDIT_BYTES

    @property
    def in_flight(self) -> int:
        """Number of its messages that are neither settled nor returned."""
        return self.held.count

    def grant(self, messages: int, size: int) -> None:
        """Add to its credit."""
        self._messages += messages
        self._bytes += size

    def capacity(self) -> int:
        """Return how many messages may be sent; negative: the stream has no room."""
        if self._messages <= 0 or self._bytes <= 0:
            return 0
        return self._messages if self._session.writable else LACKS_SHARED

    def credit(self) -> int:
        """Return its capacity."""
        return max(self.capacity(), 0)

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Send records [first, stop), or as many as its credit in bytes allows."""
        cut: list[Batch] = []
        at = first
        for batch in batches:
            if batch.stop_offset <= at:
                continue
            if batch.base_offset > at or at >= stop or self._bytes <= 0:
                break  # the first: it was cut short, for want of credit
            part = batch.cut(at, min(stop, batch.stop_offset), self._bytes)
            cut.append(part)
            self._bytes -= part.size
            at = part.stop_offset
        self._messages -= at - first
        self.held.add(first, at)
        self._session.deliver(self, cut, [(first, at)], redelivered=redelivered)
        return at

    def send_runs(
        self, batches: list[Batch], runs: list[tuple[int, int]], *, redelivered: bool
    ) -> int:
        """Send several runs, which the batches contain, as `send`."""
        reached = runs[0][0]
        for first, stop in runs:
            reached = self.send(batches, first, stop, redelivered=redelivered)
            if reached < stop or self.capacity() <= 0:
                break
        return reached

    def queue_gone(self) -> None:
        """Do nothing: each node tells its own clients."""

    def share(self, partition: object) -> ForwardedConsumer:
        """Return itself: it is a consumer of one partition."""
        raise AssertionError(f"{partition} is a partition of its own")


class PartitionSession:
    """One stream of a partition. `left(queue)` is called when a consumer has left the queue.

    `received` has the sequence number of the next record of each (node, session).

    A node sends what it has no commit of once more when its stream was lost; what came before is
    not stored again.
    """

    def __init__(
        self,
        stream: LinkStream,
        part: OpenQueue,
        received: dict[tuple[int, int], int],
        transactions: TransactionParts,
        *,
        left: Callable[[DeclaredQueue], None],
    ) -> None:
        self._stream = stream
        self._part = part
        self._transactions = transactions
        self._has_ended = False
        self._received = received
        self._left = left
        self._origin = (stream.peer.node, stream.peer.session)
        self._commits: deque[CommitGroup] = deque()
        self._consumers: dict[int, ForwardedConsumer] = {}
        self._got = RangeSet()  # leased by basic.get, or by consumers that have ended
        self._unsent: deque[FromLeader] = deque()
        self._is_paused = self._is_finished = False

    async def serve(self, sequence: int) -> None:
        """Serve until the stream ends. Raises LeveretError where it fails."""
        self._received.setdefault(self._origin, sequence)
        self._stream.on_writable(self._resume)
        try:
            async with TaskGroup() as tasks:
                while (payload := await self._stream.receive()) is not None:
                    message = parse_to_leader(payload)
                    if self._is_paused:
                        self._pass_on(message)
                    else:
                        self._handle(message, tasks)
        finally:
            self._end()

    def pause(self) -> None:
        """Take nothing more, as the partition is handed over: the next leader is sent it again.

        Settlements are for that one, too.
        """
        self._is_paused = True

    def finish(self) -> None:
        """End the stream once everything is sent. The other node ends it as well then."""
        self._is_finished = True
        if not self._unsent:
            self._stream.end()

    def _handle(self, message: ToLeader, tasks: TaskGroup) -> None:
        match message:
            case PublishRecords(batch):
                self._publish(batch)
            case SettleRecords():
                self._settle(message)
            case GrantCredit(number, messages, size):
                self._grant(number, messages, size)
            case BeginConsuming():
                self._consume(message)
            case EndConsuming(number):
                self._cancel(number)
            case GetRequest() | LookUpOffsets():
                tasks.create_task(self._read(message))
            case RefreshRequest(request):
                self._part.await_commit(Refreshing(self, request))
            case PurgeRequest(request):
                self._purge(request)
            case PrepareTransaction() | ResolveTransaction():
                self._take_part(message)

    def _grant(self, number: int, messages: int, size: int) -> None:
        consumer = self._consumers.get(number)
        if consumer is not None:
            consumer.grant(messages, size)
            self._part.wake(consumer)

    def _purge(self, request: int) -> None:
        purged = self._part.purge() if isinstance(self._part, Queue) else 0
        self.post(PurgeAnswer(request, purged))

    async def _read(self, asked: GetRequest | LookUpOffsets) -> None:
        if isinstance(asked, GetRequest):
            await self._get(asked.request)
        else:
            await self._look_up(asked)

    async def _look_up(self, asked: LookUpOffsets) -> None:
        """Tell the other node what can be read."""
        request, time_ms, sizes = asked
        try:
            row = await offset_row(self._part, time_ms, sizes=sizes)
        except StorageError:
            self.post(LogOffsets(request, 0, 0, None, None, is_unreadable=True))
            return
        self.post(
            LogOffsets(request, row["first"], row["end"], row.get("offset"), row.get("bytes"))
        )

    # -- transactions

    def _take_part(self, message: PrepareTransaction | ResolveTransaction) -> None:
        if isinstance(message, PrepareTransaction):
            self._prepare(message)
            return
        transaction, committed = message
        told = partial(self.post, TransactionResolved(transaction))
        self._transactions.resolve(transaction, committed=committed, resolved=told)

    def _prepare(self, asked: PrepareTransaction) -> None:
        """Prepare a part, which takes the leases of what it settles."""
        leased, others = self._release(asked.ranges)
        if others and isinstance(self._part, Queue):
            self._got.add_all(leased)
            text = "what is acknowledged was delivered again, or will be"
            self._prepared(asked.transaction, PrepareOutcome.FAILED, text)
            return
        answer = partial(self._prepared, asked.transaction)
        self._transactions.prepare(asked, leased, self, answer)

    def _prepared(self, transaction: int, outcome: PrepareOutcome, text: str) -> None:
        if not self._has_ended:
            self.post(TransactionPrepared(transaction, outcome, text))

    def take_back(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Hold leases again of what is not settled after all (see LeaseKeeper)."""
        if self._has_ended:
            return False
        self._got.add_all(ranges)
        return True

    # -- sending

    @property
    def writable(self) -> bool:
        """Whether the stream takes more."""
        return not self._unsent and self._stream.writable

    def post(self, message: FromLeader) -> None:
        """Send a message, once there is room for it."""
        if self.writable:
            self._send(message)
        else:
            self._unsent.append(message)

    def _send(self, message: FromLeader) -> None:
        with contextlib.suppress(LeveretError):  # lost: its receiving end finds that as well
            self._stream.send(pack(message))

    def _resume(self) -> None:
        while self._unsent and self._stream.writable:
            self._send(self._unsent.popleft())
        if self._is_finished and not self._unsent:
            self._stream.end()
        elif not self._unsent and not self._is_paused:
            for consumer in self._consumers.values():
                self._part.wake(consumer)

    # -- publishing

    def _publish(self, batch: Batch) -> None:
        received = self._received[self._origin]
        first, stop = batch.base_offset, batch.stop_offset
        if first < received < stop:
            batch = batch.cut(received, stop, batch.size)
        part = self._part
        builder = part.builder
        if stop > received:
            at = builder.count
            builder.add_batch(batch)
            if builder.publish_tags is not None:
                builder.publish_tags.add_run(self, batch.base_offset, at, at + batch.count)
            self._received[self._origin] = stop
        group = CommitGroup(self, first, stop)
        self._commits.append(group)
        part.await_commit(group)

    def answer_commits(self) -> None:
        """Tell the other node what is committed, in order."""
        sequence: int | None = None
        commits = self._commits
        while commits and commits[0].is_done:
            group = commits.popleft()
            if group.failed:
                if sequence is not None:
                    self.post(RecordsCommitted(sequence))
                    sequence = None
                self.post(RecordsFailed([(group.first, group.stop)]))
            else:
                sequence = group.stop
        if sequence is not None:
            self.post(RecordsCommitted(sequence))

    def refreshed(self, request: int) -> None:
        """Tell the other node the figures of the queue."""
        self._part.whole.used()
        self.post(figures_of(self._part)._replace(request=request))

    def refused(self, first: int, stop: int) -> None:
        """Note that the queue has refused records, by their sequence numbers (see Publisher)."""
        self.post(RecordsRefused([(first, stop)]))

    # -- delivering

    def _consume(self, begun: BeginConsuming) -> None:
        part = self._part
        try:
            check_consumer_arguments(part.definition, begun.arguments)
            is_admitted = part.admits(exclusive=begun.exclusive)
        except (ChannelError, ConnectionClosingError):
            is_admitted = False
        if not is_admitted or begun.consumer in self._consumers:
            self.post(ConsumerRefused(begun.consumer))
            return
        consumer = self._consumers[begun.consumer] = ForwardedConsumer(self, begun)
        part.add_consumer(consumer, exclusive=begun.exclusive)
        offset = part.resume_points().get(consumer)
        if offset is not None:
            self.post(ConsumerPlaced(begun.consumer, offset))
        part.whole.used()

    def _cancel(self, number: int) -> None:
        consumer = self._consumers.pop(number, None)
        if consumer is not None:
            self._got.add_all(consumer.held)
            if not self._part.deleted:
                self._part.remove_consumer(consumer)
                self._left(self._part.whole)

    def deliver(
        self,
        consumer: ForwardedConsumer,
        batches: Sequence[Batch],
        runs: Sequence[tuple[int, int]],
        *,
        redelivered: bool,
    ) -> None:
        """Send records to a consumer."""
        counts = self._counts(runs) if redelivered else []
        self.post(DeliverRecords(consumer.number, redelivered, counts, batches))

    def _counts(self, runs: Sequence[tuple[int, int]]) -> list[RecordReturns]:
        counts = self._part.return_counts
        if counts is None:
            return []
        failures, acquired = counts
        return [
            RecordReturns(offset, failures.get(offset, 0), acquired.get(offset, 0))
            for first, stop in runs
            for offset in range(first, stop)
        ]

    async def _get(self, request: int) -> None:
        part = self._part
        if self._is_paused:
            return
        got = GotRecord(request, False, 0, [], None)
        while isinstance(part, Queue) and (leased := part.get()) is not None:
            offset, redelivered = leased
            run = [(offset, offset + 1)]
            try:
                batch = await part.record_batch(offset)
            except StorageError:
                part.return_(run, failed=False)
                break
            if batch is not None:
                self._got.add(offset, offset + 1)
                counts = self._counts(run) if redelivered else []
                one = batch.cut(offset, offset + 1, batch.size)
                got = GotRecord(request, redelivered, part.message_count, counts, one)
                break
        self.post(got)

    # -- settling

    def _settle(self, told: SettleRecords) -> None:
        leased, others = self._release(told.ranges)
        part, outcome = self._part, told.outcome
        if leased:
            match outcome:
                case SettlementOutcome.SETTLED:
                    part.settle(leased)
                case SettlementOutcome.DISCARDED:
                    part.discard(leased)
                case _:
                    failed = outcome is SettlementOutcome.FAILED
                    part.return_(leased, failed=failed, cause=told.cause)
        is_discarded = outcome is SettlementOutcome.DISCARDED
        is_final = is_discarded or outcome is SettlementOutcome.SETTLED
        if others and is_final and isinstance(part, Queue):
            part.settle_unleased(others, rejected=is_discarded)

    def _pass_on(self, message: ToLeader) -> None:
        """Tell the next leader what is settled; everything else it returns, or is sent, anew."""
        successor = self._part.successor
        match message:
            case SettleRecords(SettlementOutcome.SETTLED, _, ranges):
                successor.settle(ranges)
            case SettleRecords(SettlementOutcome.DISCARDED, _, ranges):
                successor.discard(ranges)

    def _release(
        self, ranges: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Release these offsets. Returns (those that the stream holds, the others)."""
        rest = RangeSet(ranges)
        leased: list[tuple[int, int]] = []
        for held in (*(each.held for each in self._consumers.values()), self._got):
            if not rest:
                break
            for first, stop in list(rest):
                for low, high in _inside(held, first, stop):
                    leased.append((low, high))
                    held.remove(low, high)
                    rest.remove(low, high)
        return leased, list(rest)

    # -- the end

    def close(self, code: int, text: str) -> None:
        """End the session: the partition is led elsewhere, or deleted."""
        self._stream.fail(code, text)

    def _end(self) -> None:
        """Return to the queue what the other node's clients held."""
        part = self._part
        self._has_ended = True
        self._transactions.abandoned(self)
        for number in list(self._consumers):
            self._cancel(number)
        held = list(self._got)
        self._got.clear()
        if held and not part.deleted:
            part.return_(held, failed=False)


def figures_of(part: OpenQueue) -> QueueFigures:
    """Return the figures of a partition that is led here."""
    return QueueFigures(
        0,
        part.message_count,
        part.leased_count,
        part.consumer_count,
        not part.admits(exclusive=False),
        part.log.end,
    )


class Refreshing:
    """A node that waits for the figures (see Waiter)."""

    def __init__(self, session: PartitionSession, request: int) -> None:
        self._session = session
        self._request = request

    def done(self, *, failed: bool) -> None:  # noqa: ARG002  # the figures are as they are
        """Answer with the figures."""
        self._session.refreshed(self._request)


def _inside(held: RangeSet, first: int, stop: int) -> list[tuple[int, int]]:
    """Return the ranges of [first, stop) that are held."""
    missing = held.gaps(first, stop)
    return list(missing.gaps(first, stop))
