"""Pull API: messages are received in batches, with a visibility timeout.

    receive ──► messages, each with a receipt handle ──► settle, return or discard by handle
                                                     └─► extend, or let the time run out

A waiting receive is served like a consumer of the queue. Received messages are leased for the
visibility timeout: the lease ends by time, not with a connection. While it lasts the message counts
as unacknowledged; afterwards it is requeued like any return. A restart ends all leases, and the
messages are delivered again.

Called by the HTTP API. Times and randomness are the broker's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leveret.core.queues.queue import Queue
from leveret.core.queues.sending import send_each
from leveret.core.routing.message import StoredMessage
from leveret.core.settings.arguments import TERM_MS_MAX
from leveret.core.settings.discard_reasons import Reason
from leveret.core.telemetry.usage import accounts_of_client
from leveret.errors import ChannelError
from leveret.features.filters.filtered import check_filterable
from leveret.features.filters.rules import FILTER_CHECKS, FILTER_SQL, FILTER_TAGS
from leveret.features.pull.receipts import Receipt, parse_receipt, queue_digest, token_from
from leveret.features.pull.rules import LeaseTable
from leveret.ports.contents import open_header
from leveret.ports.counters import GET, Counters
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.sending import Runs
    from leveret.core.statistics.statistics import Statistics
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.ports.counters import DeliveryStatistics
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch
    from leveret.ports.usage import Account

__all__ = ["HANDLES_MAX", "Drawn", "Outcome", "Pulled", "Pulls", "Receive", "Wanted"]

COUNT_MAX = 1000  # messages of one receive
HANDLES_MAX = 1000  # of one settlement
WAIT_MS_MAX = 20_000  # as in SQS: shorter than the idle timeouts of proxies
BYTES_DEFAULT = 4 * 1024 * 1024  # of headers and bodies together; a single message may be larger
BYTES_MAX = 64 * 1024 * 1024
TERM_MS_DEFAULT = 30 * 60_000  # RabbitMQ's consumer timeout
# Individual leases of one queue, at some 200 bytes each; SQS has the same limit.
LEASES_MAX = 120_000
# A receive without a wait still waits this long for a device read or a commit.
PATIENCE_MS = 1_000
LOOK_MS = 20  # interval of checks whether it still must
ADDRESS_LENGTH_BYTES = 2  # of two short strings


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parameters of a receive. Raises ValueError, with a text for the client."""

    count: int = 1
    wait_ms: int = 0
    bytes_max: int = BYTES_DEFAULT
    visibility_timeout_ms: int | None = None  # None: the queue's, else half an hour
    filter_tags: str | None = None  # filter of messages (see features.filters); None: all
    filter_sql: str | None = None

    def __post_init__(self) -> None:
        _check("count", self.count, 1, COUNT_MAX)
        _check("wait_ms", self.wait_ms, 0, WAIT_MS_MAX)
        _check("bytes_max", self.bytes_max, 1, BYTES_MAX)
        if self.visibility_timeout_ms is not None:
            _check("visibility_timeout_ms", self.visibility_timeout_ms, 1, TERM_MS_MAX)
        for key, value in self.arguments.items():
            problem = FILTER_CHECKS[key](value, self.arguments)
            if problem is not None:
                raise ValueError(f"{key[2:].replace('-', '_')}: {problem}")

    @property
    def arguments(self) -> Arguments:
        """The filters as arguments of a consumer."""
        filters = {FILTER_TAGS: self.filter_tags, FILTER_SQL: self.filter_sql}
        return {key: value for key, value in filters.items() if value is not None}

    def term_ms(self, queue: DeclaredQueue) -> int:
        """Return the visibility timeout in ms."""
        own, given = self.visibility_timeout_ms, queue.settings.visibility_timeout_ms
        return own or given or TERM_MS_DEFAULT


def _check(name: str, value: int, minimum: int, maximum: int) -> None:
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{name} is a whole number from {minimum} to {maximum}")


class Pulled(NamedTuple):
    """A received message. `return_count` is how often it was returned, None if not counted."""

    handle: str
    message: StoredMessage
    redelivered: bool
    return_count: int | None

    @property
    def stored_bytes(self) -> int:
        """Size of content header, body and address, as counted for usage."""
        message = self.message
        address = len(message.exchange) + len(message.routing_key) + ADDRESS_LENGTH_BYTES
        return address + len(message.header) + len(message.body)


class Drawn(NamedTuple):
    """Usage of one receive, charged to its user (core.telemetry.usage.Metered)."""

    vhost: str
    user: str
    usage: Usage

    def accounts(self) -> Sequence[Account]:
        """Return the accounts that the usage is charged to."""
        return accounts_of_client(self.vhost, self.user)

    def total_usage(self) -> Usage:
        """Return the usage of the receive."""
        return self.usage


class Outcome(StrEnum):
    """Result of a request for one handle."""

    DONE = "ok"
    STALE = "stale"  # the lease was over; nothing was changed
    INVALID = "invalid"  # not a handle of this queue


class Taken(NamedTuple):
    """A record that a receive has taken. `time_ms` is when it was stored."""

    part: Queue
    offset: int
    message: StoredMessage
    redelivered: bool
    time_ms: int


Done: TypeAlias = Callable[["list[Pulled] | None"], None]


class Pulls:
    """All receives and leases of a node. `random_name()` must be unpredictable."""

    def __init__(
        self,
        turn: Turn,
        timers: Timers,
        random_name: Callable[[], str],
        statistics: Statistics,
    ) -> None:
        self.turn = turn
        self.timers = timers
        self.statistics = statistics
        self._random_name = random_name
        self.under_way: set[Receive] = set()
        self._closing = False
        self._leases: dict[Queue, PartitionLeases] = {}

    def receive(self, queue: DeclaredQueue, wanted: Wanted, done: Done) -> Receive:
        """Start a receive; `done` is called once with messages, or None if the queue is deleted.

        Raises ChannelError 403 if the queue has an exclusive consumer, 406 if too many messages are
        leased already, or for a filter on a queue with message groups.
        """
        check_filterable(queue, wanted.arguments)
        if not queue.admits(exclusive=False):
            name, vhost = queue.name, queue.definition.vhost
            raise ChannelError(403, f"queue '{name}' in vhost '{vhost}' in exclusive use")
        held = (self._leases.get(part, ()) for part in _queues(queue))
        room = LEASES_MAX - sum(map(len, held))
        if room <= 0:
            raise ChannelError(406, f"{LEASES_MAX} messages of the queue are held by receipt")
        if self._closing:
            wanted = replace(wanted, wait_ms=0)
        receive = Receive(self, queue, wanted, min(wanted.count, room), done)
        receive.begin()
        return receive

    def close(self) -> None:
        """Finish all receives: the node stops."""
        self._closing = True
        for receive in list(self.under_way):
            receive.finish()

    def leases(self, queue: DeclaredQueue) -> QueueLeases:
        """Return the leases of one queue."""
        return QueueLeases([self.leases_of(part) for part in _queues(queue)])

    def leases_of(self, part: Queue) -> PartitionLeases:
        """Return the leases of one partition."""
        leases = self._leases.get(part)
        if leases is None:
            counted = self.statistics.delivery_statistics(GET, part.whole, Counters())
            leases = self._leases[part] = PartitionLeases(part, self.timers, self._forget, counted)
        return leases

    def _forget(self, part: Queue) -> None:
        self._leases.pop(part, None)

    def draw_token(self) -> int:
        """Return a token that identifies the leases of one receive."""
        return token_from(self._random_name())


class Receive:
    """A receive in progress: a consumer until it gets messages or its time is up."""

    priority = 0
    no_ack = False

    def __init__(
        self, pulls: Pulls, queue: DeclaredQueue, wanted: Wanted, count: int, done: Done
    ) -> None:
        self._pulls = pulls
        self._queue = queue
        self._wanted = wanted
        self.arguments = wanted.arguments
        self._missing = count
        self._bytes_left = wanted.bytes_max
        self._done = done
        self._taken: list[Taken] = []
        self._parts = _queues(queue)
        self._shares: dict[Queue, ReceiveShare] = {}
        self.in_flight = 0
        self._timer = pulls.timers.timer(self._look)
        self._until_ms = 0
        self.touched = False  # by the turn, as a sender
        self.open = True

    def begin(self) -> None:
        """Start as a consumer, from the next turn on."""
        queue, wait_ms = self._queue, self._wanted.wait_ms
        self._pulls.under_way.add(self)
        queue.used()
        queue.add_consumer(self)
        self._until_ms = self._pulls.timers.wall_ms() + (wait_ms or PATIENCE_MS)
        self._timer.set(self._until_ms)
        self._pulls.turn.touch_sender(self)

    def capacity(self) -> int:
        """Return how many more messages it may take."""
        return self._missing

    def credit(self) -> int:
        """Return how many more messages it may take."""
        return self._missing

    def share(self, partition: Any) -> ReceiveShare | None:
        """Return what one partition serves: none where another node leads it, or does so now.

        Its leases are the leader's, so that it must be received there.
        """
        if not isinstance(partition, Queue):
            if not _queues(self._queue):
                self._until_ms = 0  # nothing can come any more
                self._pulls.turn.touch_sender(self)
            return None
        share = self._shares[partition] = ReceiveShare(self, partition)
        return share

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Copy records of a queue that is its own partition."""
        return self.take(self._parts[0], batches, first, stop, redelivered=redelivered)

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Copy records of several runs. Returns the offset reached."""
        return send_each(self.send, batches, runs, redelivered=redelivered)

    def take(  # as `send`, and of which partition
        self, part: Queue, batches: list[Batch], first: int, stop: int, *, redelivered: bool
    ) -> int:
        """Copy records, within the limit of bytes, but at least one. Returns the offset reached."""
        self._pulls.turn.touch_sender(self)
        for batch in batches:
            for offset in range(max(first, batch.base_offset), min(stop, batch.stop_offset)):
                if not self._keep(part, batch, offset, redelivered=redelivered):
                    return offset
        return min(stop, batches[-1].stop_offset)

    def _keep(self, part: Queue, batch: Batch, offset: int, *, redelivered: bool) -> bool:
        flags, time_ms, exchange, routing_key, header, body = batch.record(offset)
        size = len(header) + len(body)
        if size > self._bytes_left and self._taken:
            self._missing = 0
            return False
        if flags & RecordFlag.BLIND_COPIED:
            header = open_header(header)
        message = StoredMessage(exchange, routing_key, header, body, flags)
        self._taken.append(Taken(part, offset, message, redelivered, time_ms))
        self.in_flight += 1
        self._bytes_left -= size
        self._missing -= 1
        return True

    def send_pending(self) -> None:
        """Check for results after the turn has offered what is ready (see turn.Sender)."""
        if self.open:
            self._look()

    def _look(self) -> None:
        """Finish if there are messages, or nothing to wait for."""
        now_ms = self._pulls.timers.wall_ms()
        in_vain = not self._wanted.wait_ms and not self._may_be_offered()
        if self._taken or in_vain or now_ms >= self._until_ms:
            self.finish()
        elif not self._wanted.wait_ms:
            self._timer.set(min(now_ms + LOOK_MS, self._until_ms))

    def _may_be_offered(self) -> bool:
        """Whether a partition may still have messages for it, without outside events."""
        if self._shares:
            return any(part.may_offer(share) for part, share in self._shares.items())
        return bool(self._parts) and self._parts[0].may_offer(self)

    def finish(self) -> None:
        """Return the messages taken so far, possibly none."""
        taken = self._taken
        self._close()
        self._queue.remove_consumer(self)
        if not taken:
            self._done([])
            return
        token, term_ms = self._pulls.draw_token(), self._wanted.term_ms(self._queue)
        pulled = []
        for part, offsets in self._offsets().items():
            self._pulls.leases_of(part).begin(offsets, token, term_ms)
        for one in taken:
            pulled.append(self._told(token, one))
            counted = self._pulls.leases_of(one.part).counted
            counted.delivered(1, pulled[-1].stored_bytes, one.redelivered, one.time_ms)
        self._done(pulled)

    def _offsets(self) -> dict[Queue, list[int]]:
        """Return the offsets that were taken, by partition."""
        offsets: dict[Queue, list[int]] = {}
        for one in self._taken:
            offsets.setdefault(one.part, []).append(one.offset)
        return offsets

    def _told(self, token: int, one: Taken) -> Pulled:
        counted = one.part.settings.counts_deliveries
        return Pulled(
            self._pulls.leases_of(one.part).receipt(one.offset, token),
            one.message,
            one.redelivered,
            one.part.state.acquired.get(one.offset, 0) if counted else None,
        )

    def cancel(self) -> None:
        """Requeue everything: the client has disconnected."""
        if not self.open:
            return
        self._close()
        self._queue.remove_consumer(self)
        for part, offsets in self._offsets().items():
            part.return_(_ranges(offsets), failed=False)

    def queue_gone(self) -> None:
        """End without messages: the queue was deleted."""
        if self.open:
            self._close()
            self._done(None)

    def _close(self) -> None:
        self._pulls.under_way.discard(self)
        self.open = False
        self._missing = 0
        self._timer.set(None)


class ReceiveShare:
    """Part of a receive that one of a queue's partitions serves."""

    priority = 0
    no_ack = False

    def __init__(self, receive: Receive, part: Queue) -> None:
        self.arguments = receive.arguments
        self.in_flight = 0
        self._receive = receive
        self._part = part

    def capacity(self) -> int:
        """Return how many more messages the receive may take."""
        return self._receive.capacity()

    credit = capacity

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Copy records. Returns the offset reached."""
        return self._receive.take(self._part, batches, first, stop, redelivered=redelivered)

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Copy records of several runs. Returns the offset reached."""
        return send_each(self.send, batches, runs, redelivered=redelivered)

    def queue_gone(self) -> None:
        """End the receive: the queue was deleted."""
        self._receive.queue_gone()

    def share(self, partition: OpenQueue) -> ReceiveShare:  # noqa: ARG002  # as of any consumer
        """Return itself: a partition is its own only one."""
        return self


class QueueLeases:
    """Leases of messages received from one queue, by their handles."""

    def __init__(self, parts: Sequence[PartitionLeases]) -> None:
        self._parts = {part.digest: part for part in parts}

    def settle(self, handles: Sequence[object]) -> list[Outcome]:
        """Settle messages."""
        return self._each(handles, PartitionLeases.settle)

    def return_(self, handles: Sequence[object], delay_ms: int = 0) -> list[Outcome]:
        """Requeue messages, after a delay."""
        return self._each(handles, lambda part, receipts: part.return_(receipts, delay_ms))

    def discard(self, handles: Sequence[object]) -> list[Outcome]:
        """Discard messages: dead-letter or drop them."""
        return self._each(handles, PartitionLeases.discard)

    def extend(self, handles: Sequence[object], for_ms: int) -> list[Outcome]:
        """Extend or shorten leases to end in `for_ms`; 0: return the messages now."""
        return self._each(handles, lambda part, receipts: part.extend(receipts, for_ms))

    def _each(
        self,
        handles: Sequence[object],
        act: Callable[[PartitionLeases, Sequence[Receipt]], list[Outcome]],
    ) -> list[Outcome]:
        """Let each partition act on its own handles. Returns the outcomes in order."""
        outcomes = [Outcome.INVALID] * len(handles)
        places: dict[PartitionLeases, list[tuple[int, Receipt]]] = {}
        for at, receipt in enumerate(map(parse_receipt, handles)):
            part = None if receipt is None else self._parts.get(receipt.queue)
            if receipt is not None and part is not None:
                places.setdefault(part, []).append((at, receipt))
        for part, found in places.items():
            told = act(part, [receipt for _, receipt in found])
            for (at, _), outcome in zip(found, told, strict=True):
                outcomes[at] = outcome
        return outcomes


class PartitionLeases:
    """Leases of messages received from one partition of a queue.

    `idle(queue)` is called when nothing is leased any more.
    """

    def __init__(
        self,
        queue: Queue,
        timers: Timers,
        idle: Callable[[Queue], None],
        counted: DeliveryStatistics,
    ) -> None:
        definition = queue.definition
        self.counted = counted
        self._queue = queue
        self.digest = queue_digest(
            definition.vhost, definition.topic, definition.incarnation, queue.number
        )
        self._table = LeaseTable()
        self._timers = timers
        self._timer = timers.timer(self._end_due)
        self._idle = idle

    def __len__(self) -> int:
        return len(self._table)

    def receipt(self, offset: int, token: int) -> str:
        """Return the handle of a lease."""
        return Receipt(self.digest, offset, token).text

    def begin(self, offsets: list[int], token: int, term_ms: int) -> None:
        """Lease messages that were received together."""
        self._table.begin(offsets, token, self._timers.wall_ms() + term_ms)
        self._timer.set(self._table.next_ms)

    def settle(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        """Settle messages."""
        outcomes, ended = self._end(receipts)
        if ended:
            self.counted.acknowledged(len(ended))
            self._queue.settle(_ranges(ended))
        return outcomes

    def return_(self, receipts: Sequence[Receipt], delay_ms: int = 0) -> list[Outcome]:
        """Requeue messages, after a delay."""
        outcomes, ended = self._end(receipts)
        if ended:
            # A stated delay overrides those of the queue's retry policy.
            cause = None if delay_ms else Reason.REQUEUED
            self._queue.return_(
                _ranges(ended), failed=False, cause=cause, delay_ms=delay_ms or None
            )
        return outcomes

    def discard(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        """Discard messages: dead-letter or drop them."""
        outcomes, ended = self._end(receipts)
        if ended:
            self._queue.discard(_ranges(ended))
        return outcomes

    def extend(self, receipts: Sequence[Receipt], for_ms: int) -> list[Outcome]:
        """Extend or shorten leases to end in `for_ms`; 0: return the messages now."""
        if for_ms == 0:
            return self.return_(receipts)
        end_ms = self._timers.wall_ms() + for_ms
        outcomes = []
        for receipt in receipts:
            extended = self._table.extend(receipt.offset, receipt.token, end_ms)
            outcomes.append(Outcome.DONE if extended else Outcome.STALE)
        self._timer.set(self._table.next_ms)
        return outcomes

    def _end(self, receipts: Sequence[Receipt]) -> tuple[list[Outcome], list[int]]:
        """End leases.

        Returns outcomes, and the offsets of leases that were active.
        """
        outcomes, ended = [], []
        for receipt in receipts:
            outcome = Outcome.STALE
            if self._table.end(receipt.offset, receipt.token):
                outcome = Outcome.DONE
                ended.append(receipt.offset)
            outcomes.append(outcome)
        self._mind_time()
        return outcomes, ended

    def _end_due(self) -> None:
        """Requeue the messages whose visibility timeout is over; it counts as a failure."""
        due = self._table.take_due(self._timers.wall_ms())
        self._mind_time()
        if due:
            self._queue.return_(_ranges(due), cause=Reason.TIMED_OUT)

    def _mind_time(self) -> None:
        if len(self._table) and not self._queue.deleted:
            self._timer.set(self._table.next_ms)
        else:
            self._timer.set(None)
            self._idle(self._queue)


def _queues(queue: DeclaredQueue) -> list[Queue]:
    """Return the partitions of a queue that is no stream."""
    return [part for part in queue.partitions if isinstance(part, Queue)]


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    return list(RangeSet((offset, offset + 1) for offset in offsets))
