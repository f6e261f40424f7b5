"""Delayed messages of a cluster: each virtual host keeps them beside its queue `leveret.delayed`.

Any node takes a delayed message, and only one may keep it: whoever leads the partition of that
queue. So a message goes there as a message of the queue does, in an envelope with its due time, and
the leader takes it from the queue into the topic `leveret.delayed.waiting`, which has the replicas
of the partition:

    publish ──► leveret.delayed, confirmed ──► leveret.delayed.waiting ──► when due, to its queues
    any node    the queue's replicas           the same replicas, DelayedMessages

Both steps are at least once: a leader that fails between them leaves a message in both. The queue
is created with the first delayed message of a virtual host. The broker is its only publisher and
consumer; what others put into it is dropped.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from leveret.core.events import INTERNAL_USER, acting_as
from leveret.core.logs.internal_topics import PartitionName
from leveret.core.logs.log_writer import PendingCommit
from leveret.core.names import DELAYED_QUEUE, topic_beside
from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.core.queues.sending import send_each
from leveret.core.routing.message import raw_headers
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.errors import AmqpError, ChannelError, LeveretError, StorageError
from leveret.features.delay.delayed_messages import DelayedMessages
from leveret.features.delay.due_list import put_record
from leveret.features.delay.scheduled import MARKED, Draft, key_in
from leveret.features.delay.store import QUIET_MS
from leveret.ports.after_all import AfterAll
from leveret.ports.contents import encode_properties
from leveret.ports.definition_changes import AddQueue
from leveret.ports.definitions import QueueDefinition
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError
from leveret.ports.waiting import ended, until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.atomic import AtomicWrite
    from leveret.core.logs.log_writer import Committing
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.core.queues.sending import Runs
    from leveret.core.routing.message import Message
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.vhost import Vhost
    from leveret.features.dead_letter.topics import MakeChange
    from leveret.features.delay.store import DelayedMessageStores
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

__all__ = ["DelayedQueues", "waiting_topic"]

SUFFIX = ".waiting"
TAKEN_AT_ONCE_MAX = 1000  # messages on their way from the queue into the topic
RESTORED_POLL_MS = 20
RETRY_MS = 1000  # after the disk, or the replicas, have refused what was taken
# Bytes of messages that wait until the queue is there.
EARLY_BYTES_MAX = 16 * 1024 * 1024
ARRIVE_SECONDS_MAX = 30.0

ENVELOPE_VERSION: Final = 1
# Version, due time, flags; bytes of exchange, routing key and header. These follow, then the body.
ENVELOPE = struct.Struct(">BQIBBI")


def waiting_topic(queue: str, partition: int = 0) -> str:
    """Return the name of the topic beside a partition of the queue."""
    return topic_beside(queue, SUFFIX, partition)


def pack_envelope(draft: Draft) -> bytes:
    """Return a delayed message as the body of a message of the queue."""
    due_ms, flags, exchange, routing_key, header, body, _ = draft
    sizes = len(exchange), len(routing_key), len(header)
    head = ENVELOPE.pack(ENVELOPE_VERSION, max(due_ms, 0), flags, *sizes)
    return b"".join((head, exchange, routing_key, header, body))


def open_envelope(data: bytes) -> Draft:
    """Return the delayed message in an envelope. Raises ValueError."""
    try:
        version, due_ms, flags, *sizes = ENVELOPE.unpack_from(data)
    except struct.error as error:
        raise ValueError(str(error)) from error
    at, parts = ENVELOPE.size, []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    if version != ENVELOPE_VERSION or at > len(data):
        raise ValueError("no envelope of a delayed message")
    exchange, routing_key, header = parts
    try:
        key = key_in(raw_headers(header)) if flags & MARKED else None
    except MalformedFieldError as error:
        raise ValueError(str(error)) from error
    return Draft(due_ms, flags, exchange, routing_key, header, data[at:], key)


class Early(NamedTuple):
    """A message that waits until the queue is there."""

    draft: Draft
    commit: PendingCommit


class DelayedQueues(ExtensionKind):
    """Queues `leveret.delayed` of a node in a cluster.

    `make` is that of the node's DefinitionChanges; `unrouted(vhost, message)` gets a due message
    that no queue matches.
    """

    def __init__(
        self,
        core: CoreServices,
        stores: DelayedMessageStores,
        make: MakeChange,
        unrouted: Callable[[str, Message], None],
    ) -> None:
        self.core = core
        self.stores = stores
        self.unrouted = unrouted
        self._make = make
        self._early: dict[str, list[Early]] = {}  # by virtual host, while its queue is created
        self._early_bytes = 0
        self._led: dict[str, DelayedHold] = {}

    # -- taking messages, on any node

    def place(self, vhost: str) -> Any:
        """Return the only partition of a virtual host's queue, or what stands for it; or None."""
        found = self.core.vhosts.get(vhost)
        queue = None if found is None else found.queues.get(DELAYED_QUEUE)
        return None if queue is None else cast("DeclaredQueue", queue).places[0]

    def put(
        self, vhost: Vhost, draft: Draft, write: AtomicWrite | None = None
    ) -> Collection[Committing]:
        """Send a message to the leader. Returns what its confirm waits for.

        Raises ChannelError 506 where it cannot be kept until the queue is there.
        """
        place = self.place(vhost.name)
        if place is not None:
            self._send(place, draft, write)
            return () if write is not None else (place,)
        self._create(vhost)
        size = len(draft.body) + len(draft.header)
        if write is not None or self._early_bytes + size > EARLY_BYTES_MAX:
            raise ChannelError(506, f"queue '{DELAYED_QUEUE}' is being created: try again")
        self._early_bytes += size
        early = Early(draft, PendingCommit(self.core.report))
        self._early[vhost.name].append(early)
        return (early.commit,)

    def _send(self, place: Any, draft: Draft, write: AtomicWrite | None) -> None:
        records = place.builder if write is None else write.records_for(place)
        now, body = self.core.timers.wall_ms(), pack_envelope(draft)
        header = encode_properties({"delivery_mode": 2}, len(body))
        flags, name = int(RecordFlag.PERSISTENT), DELAYED_QUEUE.encode()
        put_record(records, 0, flags, now, b"", name, header, body)
        if write is None:
            self.core.turn.touch(place)

    # -- the queue

    def _create(self, vhost: Vhost) -> None:
        """Create the queue of a virtual host, unless that has begun."""
        if vhost.name in self._early:
            return
        self._early[vhost.name] = []
        self.core.spawn(self._created(vhost.name))

    async def _created(self, vhost: str) -> None:
        """Send all that waits for the queue once it is there."""
        definition = QueueDefinition(
            vhost, DELAYED_QUEUE, durable=True, arguments={QUEUE_TYPE: "quorum"}
        )
        try:
            with acting_as(INTERNAL_USER):
                asked = self._make(AddQueue(definition), None, lambda _: None)
            if asked is not None:
                await asked
        except (AmqpError, LeveretError) as error:
            self.core.report(f"queue {DELAYED_QUEUE!r} in vhost {vhost!r}", error)
        early, place = self._early.pop(vhost), self.place(vhost)
        for draft, commit in early:
            self._early_bytes -= len(draft.body) + len(draft.header)
            if place is None:
                commit.finish(failed=True)
            else:
                self._send(place, draft, None)
                place.await_commit(AfterAll(1, commit.finish))

    # -- as a kind of extension, on the leader

    def follow(
        self,
        queue: Queue,
        present: QueueExtension | None,
        demand: Demand,  # noqa: ARG002
    ) -> QueueExtension | None:
        """See ExtensionKind."""
        if present is not None or queue.name != DELAYED_QUEUE:
            return present
        vhost = self.core.vhosts.get(queue.definition.vhost)
        return None if vhost is None else DelayedHold(self, queue, vhost)

    def acts_alone(
        self, definition: QueueDefinition, _settings: QueueSettings, _partition: int
    ) -> bool:
        """Whether it is such a queue: its leader keeps messages beside it."""
        return definition.name == DELAYED_QUEUE

    def led(self, hold: DelayedHold) -> None:
        """Note that this node leads a queue."""
        self._led[hold.vhost.name] = hold

    def left(self, hold: DelayedHold) -> None:
        """Note that this node leads a queue no more."""
        if self._led.get(hold.vhost.name) is hold:
            del self._led[hold.vhost.name]

    def find(self, vhost: str) -> DelayedMessages | None:
        """Return what waits in a virtual host, if this node leads it."""
        hold = self._led.get(vhost)
        return None if hold is None else hold.messages

    async def arrived(self, vhost: str) -> None:
        """Wait until everything sent to the leader so far waits there, if this node leads."""
        hold = self._led.get(vhost)
        if hold is not None:
            await hold.arrived()


class DelayedHold(QueueExtension):
    """Leader's side: takes messages from the queue into the topic beside it."""

    def __init__(self, queues: DelayedQueues, queue: Queue, vhost: Vhost) -> None:
        """Open the topic soon, when the queue is complete."""
        self.vhost = vhost
        self._queues = queues
        self._queue = queue
        self._topic = waiting_topic(queue.definition.topic, queue.number)
        self._partition = PartitionName(queue.definition.incarnation, queue.number)
        self._consumer = _Taker(self)
        self._coming = RangeSet()  # taken, not committed in the topic
        self._ended = False
        self.messages: DelayedMessages | None = None
        self._timer = queue.services.timers.timer(self._open)
        self._timer.set(0)
        self._resume_timer = queue.services.timers.timer(self._resume)
        queues.led(self)

    def _open(self) -> None:
        """Open the topic; begin to take messages once its ids are restored."""
        queues, services = self._queues, self._queue.services
        if self.messages is not None:
            if self.messages.is_restored:
                self._queue.add_consumer(self._consumer, exclusive=True)
            else:
                self._timer.set(services.timers.wall_ms() + RESTORED_POLL_MS)
            return
        try:
            self.messages = DelayedMessages(
                self.vhost,
                queues.core,
                queues.stores,
                queues.unrouted,
                topic=self._topic,
                of=self._partition,
            )
        except StorageError as error:
            services.report(self._queue, error)
            self._timer.set(services.timers.wall_ms() + RETRY_MS)
        else:
            self._open()

    # -- taking

    @property
    def room(self) -> int:
        """Number of messages that may be taken now."""
        messages = self.messages
        if self._ended or messages is None or messages.store.is_quiet:
            return 0
        return max(TAKEN_AT_ONCE_MAX - self._coming.count, 0)

    @property
    def coming_count(self) -> int:
        """Number of messages that were taken and are not committed in the topic."""
        return self._coming.count

    def take(self, batch: Batch, first: int, stop: int) -> None:
        """Store records [first, stop) of the queue in the topic, and settle them."""
        messages, is_stored = self.messages, False
        assert messages is not None, "it takes once it is open"
        for offset in range(first, stop):
            try:
                draft = open_envelope(batch.record(offset)[-1])
            except ValueError as error:
                text = f"a message that the broker has not put there is dropped: {error}"
                self._queue.services.report(self._queue, LeveretError(text))
            else:
                messages.add(draft)
                is_stored = True
        self._coming.add(first, stop)
        stored = partial(self._stored, first, stop)
        if is_stored:
            messages.store.await_commit(AfterAll(1, stored))
        else:  # not while the queue delivers them
            self._queue.services.timers.after(0, partial(stored, failed=False))

    def _stored(self, first: int, stop: int, *, failed: bool) -> None:
        if self._ended:
            return
        self._coming.remove(first, stop)
        if failed:
            self._queue.return_([(first, stop)], failed=False, delay_ms=RETRY_MS)
        else:
            self._queue.settle([(first, stop)])
        self._queue.wake(self._consumer)

    async def arrived(self) -> None:
        """Wait until everything in the queue so far waits in the topic, or the node leads no more.

        Raises StorageError where that takes too long.
        """
        await ended(self._queue.await_commit)
        log = self._queue.log
        stop = log.committed
        try:
            await until(lambda: self._ended or self._has_taken(stop), ARRIVE_SECONDS_MAX)
        except TimeoutError:
            raise StorageError(f"{self._queue} is not read: see the node's log") from None

    def _has_taken(self, stop: int) -> bool:
        log, messages = self._queue.log, self.messages
        is_open = messages is not None and messages.is_restored
        return is_open and not log.settled.gaps(log.first, stop)

    @property
    def holds_messages(self) -> bool:  # type: ignore[override]
        """Whether messages wait."""
        return self.messages is not None and self.messages.store.pending_count > 0

    @property
    def is_calm(self) -> bool:  # type: ignore[override]
        """Whether no message is on its way to the topic, or from there to its queues."""
        return not self._coming and (self.messages is None or self.messages.is_calm)

    # -- the end

    def quiesce(self) -> None:
        """Take and deliver nothing for a moment."""
        if self.messages is not None:
            self.messages.store.quiesce()
            self._resume_timer.set(self._queue.services.timers.wall_ms() + QUIET_MS)

    def _resume(self) -> None:
        self._queue.wake(self._consumer)

    def _end(self) -> None:
        self._ended = True
        self._timer.set(None)
        self._resume_timer.set(None)
        self._queues.left(self)
        if self.messages is not None:
            self.messages.close()

    def step_down(self) -> None:
        """Leave the topic to the next leader."""
        self._end()
        self._queues.stores.leave(self.vhost.name, self._topic, self._partition)

    def delete(self) -> None:
        """Delete the topic with the deleted queue."""
        self._end()
        self._queues.stores.delete(self.vhost.name, self._topic, self._partition)


class _Taker:
    """The only consumer of the queue (see QueueConsumer)."""

    no_ack = False
    priority = 0
    arguments: Arguments = {}  # as nobody changes it

    def __init__(self, hold: DelayedHold) -> None:
        self._hold = hold

    @property
    def in_flight(self) -> int:
        """Number of messages that it has not settled."""
        return self._hold.coming_count

    def capacity(self) -> int:
        """Return how many messages it may take."""
        return self._hold.room

    credit = capacity

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:  # noqa: ARG002
        """Take records [first, stop), as far as they are in the batches."""
        at = first
        for batch in batches:
            if batch.stop_offset <= at:
                continue
            if batch.base_offset > at or at >= stop:
                break
            until = min(stop, batch.stop_offset)
            self._hold.take(batch, at, until)
            at = until
        return at

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Take several runs."""
        return send_each(self.send, batches, runs, redelivered=redelivered)

    def queue_gone(self) -> None:
        """Do nothing: the topic goes with the queue."""

    def share(self, partition: object) -> _Taker:
        """Return itself: it is a consumer of one partition."""
        raise AssertionError(f"{partition} is a partition of its own")
