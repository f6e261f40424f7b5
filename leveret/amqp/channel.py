"""One channel: its consumers, outstanding deliveries and unconfirmed publishes.

The reader keeps the channel's hot state in a slot; after each read the connection lets every
channel that something happened on `collect` it. Methods that are not hot are operations on it (see
leveret.amqp.operations).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import announcements, direct_reply, frames
from leveret.amqp.confirms import Confirms
from leveret.amqp.consumer import Getter, return_counts
from leveret.amqp.creating import KeptDefinitions, missing_queue
from leveret.amqp.destinations import find_destinations, send_back, submit
from leveret.amqp.methods import encode_method
from leveret.amqp.sender_selected import select_keys
from leveret.amqp.timeouts import DeliveryAges, Leases
from leveret.amqp.unacked import Unacked
from leveret.core.access.authentication import authorise, authorise_topic
from leveret.core.chores import drain
from leveret.core.clients import Origin
from leveret.core.names import resource, stripped
from leveret.core.publish_interceptors import InterceptedPublish
from leveret.core.queues.discarding import Reason
from leveret.core.queues.queue import Queue
from leveret.core.routing.message import StoredMessage
from leveret.core.routing.routes import RouteCache
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.features.retry.retrying import check_retry_headers
from leveret.ports.authentication import UnansweredError
from leveret.ports.contents import open_header
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from pamqp import base

    from leveret.amqp.connection import Connection
    from leveret.amqp.consumer import ChannelConsumer
    from leveret.amqp.destinations import Destinations
    from leveret.amqp.direct_reply import ReplyConsumer
    from leveret.amqp.frames import ChannelSlot, Publish
    from leveret.amqp.transaction import Transaction
    from leveret.broker.broker import Broker
    from leveret.core.logs.log_writer import Committing
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.ports.authentication import Kind, Permission, TopicPermission
    from leveret.ports.counters import Counters, DeliveryStatistics
    from leveret.ports.records import Batch

    LeaseHolder = ChannelConsumer | Getter
    Holding = tuple[LeaseHolder, int, int]

# What is done before somebody looks at the clock, where a client may have made it long: runs of
# deliveries that are settled or returned together, consumers that end. Some 0.2 ms each.
SLICE_RUNS = 256
SLICE_CONSUMERS = 16

# Where the copies of a message take more memory than some, so much of them is made at a time: some
# 0.2 ms. The first one in a queue's builder takes a page, however small it is.
COPIED_TOGETHER_BYTES = 1024 * 1024
COPIED_PORTION_BYTES = COPIED_TOGETHER_BYTES // 4
COPY_BYTES_MIN = 4096

DELIVERY_STATISTICS_MIN = (
    32  # queues that a channel counts for before it looks which of them are gone
)

BASIC_ACK = (60, 80)
BASIC_REJECT = (60, 90)
BASIC_NACK = (60, 120)


class Channel:
    """One open channel of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.broker: Broker = connection.broker
        self.vhost: Vhost = connection.vhost
        self.number = number
        self.alive = True  # until it is closed by either side
        self.slot: ChannelSlot = connection.reader.open_channel(number, self)
        self.slot.one_by_one = self.vhost.traced
        self.slot.escalates_unrouted = self.vhost.definition.creates_queues
        self.unacked: Unacked[ChannelConsumer | Getter] = Unacked()
        self.consumers: dict[str, ChannelConsumer] = {}
        self.reply_consumer: ReplyConsumer | None = None
        self.prefetch = 0  # shared by all consumers of the channel; 0 = no limit
        self.consumer_prefetch = 0  # of each consumer that is started from now on; 0 = no limit
        self.in_flight = 0  # unsettled deliveries to consumers
        self.last_queue: str | None = None  # what an empty queue name means
        self.delivery_ages = DeliveryAges()
        self.leases: Leases | None = None  # see needed_leases
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self._held_back: list[base.Frame] | None = None  # see holding_back_cancels
        self._collected = 0  # publishes that stand in a confirm group
        self._taken_by: set[Committing] = set()  # with whom publishes are that were not routed
        self._getters: dict[OpenQueue, Getter] = {}
        self.delivery_statistics_by_queue: dict[
            OpenQueue, dict[int, DeliveryStatistics]
        ] = {}  # see delivery_statistics
        self._delivery_statistics_max = DELIVERY_STATISTICS_MIN
        self._readable: tuple[str, Queue, int] | None = None  # see readable_queue

    @property
    def name(self) -> str:
        """Name of the channel: its connection's name and its number."""
        return f"{self.connection.name} ({self.number})"

    # -- what comes in

    def route_cache(self, exchange: bytes) -> RouteCache | None:
        """Return the routes of an exchange that the user may write to; called by the reader.

        None while the permission is not known yet, and for exchanges that take commands: what is
        published there leaves the fast path.
        """
        try:
            name = exchange.decode()
        except UnicodeDecodeError as error:
            raise ConnectionClosingError(501, "cannot decode the exchange name") from error
        try:
            self.require("write", "exchange", name)
        except UnansweredError:
            return None
        if exchange in self.broker.publish_interceptors.commands:
            return None
        cache = self.vhost.cache(name)
        exchange_ = cache.exchange
        if self._restricts_topics(exchange_) or exchange_.dedup_window_ms is not None:
            # Others share the exchange's routes, so this channel's messages are looked at singly.
            return RouteCache(
                cache.exchange, cache.lookup, cacheable=False, counters=cache.counters
            )
        return cache

    def collect(self) -> None:
        """Take what the reader gathered: the publishes to confirm, and settlements.

        Raises ChannelError for a tag that is not outstanding.
        """
        if self.confirms is not None and self.slot.published != self._collected:
            self._open_confirm_group(self.confirms)
        self.collect_settles()

    def collect_settles(self) -> None:
        """Take the settlements that the reader gathered. Raises as `collect`."""
        settles = self.slot.take_settles()
        if not settles or not self.alive:
            return
        settle = self.settle if self.transaction is None else self.transaction.buffer_settle
        for kind, first, last, multiple in settles:
            unknown = settle(kind, first, last, multiple=multiple)
            if unknown is not None:
                raise unknown_tag(kind, unknown)

    def _open_confirm_group(self, confirms: Confirms) -> None:
        slot = self.slot
        touched = slot.take_touched()
        self._collected = slot.published
        taken_by, self._taken_by = self._taken_by, set()
        group = confirms.open(slot.published, len(touched) + len(taken_by))
        for builder in touched:
            builder.owner.await_commit(group)
        for committing in taken_by:
            committing.await_commit(group)

    def start_confirming(self) -> None:
        """Number the publishes from now on."""
        if self.confirms is None:
            self.confirms = Confirms(self._answer_confirm)
            self.slot.confirming = True
            self.slot.published = self._collected = 0

    def refused(self, first: int, stop: int) -> None:
        """Note that a queue has refused the publishes [first, stop) of the open confirm group."""
        if self.confirms is not None:
            self.confirms.refuse(first, stop)

    def _answer_confirm(self, tag: int, multiple: bool, nack: bool) -> None:
        self.connection.outbox.confirm(self.slot, tag, multiple, nack)
        self.connection.touch()

    def choose_path(self) -> None:
        """Set whether the reader packs this channel's publishes itself or hands each one out."""
        self.slot.one_by_one = self.transaction is not None or self.vhost.traced
        self.slot.escalates_unrouted = self.vhost.definition.creates_queues

    def published(self, publish: Publish) -> bool:
        """Route a message that left the reader's fast path. Raises ChannelError 403.

        Returns whether a feature has taken it: then nothing of it goes back to its publisher.
        """
        self.require("write", "exchange", publish.exchange.decode())
        if publish.requests & RecordFlag.SELECTS_KEYS:
            select_keys(publish)
        if publish.flags & RecordFlag.HAS_RETRY:
            check_retry_headers(publish.header)
        self._check_topics(publish)
        if self.vhost.definition.creates_queues and not publish.exchange:
            self._create_missing(publish.routing_key)
        interceptors = self.broker.publish_interceptors
        found = interceptors.for_publish(self.vhost, publish.exchange, publish.requests)
        intercepted = InterceptedPublish(submit(self, publish), found) if found else None
        if self.transaction is not None and publish.exchange not in interceptors.commands:
            self.transaction.buffer_publish(publish, intercepted or self.route(publish))
        elif intercepted is not None and self._is_taken(intercepted):
            return True
        else:
            self.deposit(publish, self.route(publish))
        return False

    def _create_missing(self, key: bytes) -> None:
        """Create the missing queue that a message names, if its user may. Raises ChannelError 406.

        The message's confirm waits until a restart would find the queue.
        """
        if missing_queue(self, key) is not None:
            self._taken_by.add(KeptDefinitions(self.broker))

    def _is_taken(self, intercepted: InterceptedPublish) -> bool:
        """Whether a message is not to be routed now. Raises ChannelError."""
        committing = intercepted.intercept()
        if committing is None:
            return False
        self._taken_by.update(committing)
        self.connection.check_alarms()
        return True

    def _check_topics(self, publish: Publish) -> None:
        """Check topic permissions for each routing key of a message, CC and BCC included."""
        exchange = self.vhost.exchanges.get(publish.exchange.decode())
        if exchange is not None and self._restricts_topics(exchange):
            for key in (publish.routing_key, *publish.further_keys):
                self.require_topic("write", exchange.name, key.decode(errors="replace"))

    def deposit(self, publish: Publish, destinations: Destinations) -> None:
        """Put one message into its queues; return it to its publisher if it must be."""
        builders = destinations.builders
        bytes_each = max(len(publish.header) + len(publish.body), COPY_BYTES_MIN)
        if len(builders) * bytes_each > COPIED_TOGETHER_BYTES:
            self.connection.take_time(self._depositing(publish, destinations, bytes_each))
            return
        if builders:
            self.connection.reader.deposit(self.slot, builders, publish)
        self.answer(publish, destinations)

    def _depositing(
        self, publish: Publish, destinations: Destinations, bytes_each: int
    ) -> Iterator[None]:
        """Pack a message for its queues in portions, each of which is written before the next."""
        share = max(COPIED_PORTION_BYTES // bytes_each, 1)
        builders = list(destinations.builders)
        for at in range(0, len(builders), share):
            there = [each for each in builders[at : at + share] if not each.owner.deleted]
            self.connection.reader.deposit(self.slot, there, publish)
            self.connection.park_filled()
            yield
        self.answer(publish, destinations)

    def answer(self, publish: Publish, destinations: Destinations) -> None:
        """Deliver a message to its direct-reply consumers; count or return it if unroutable."""
        builders, replies = destinations
        reader = self.connection.reader
        if builders or replies:  # whoever awaits a reply may be gone
            reader.routed_singly(self.slot, publish.exchange, len(builders) + len(replies))
        else:
            reader.unroutable(self.slot, publish.exchange, publish.mandatory)
            if publish.mandatory and self.alive:
                send_back(self.connection, self.number, publish)
        for address in replies:
            direct_reply.answer(self.broker, address, publish)

    @property
    def confirms_publishes(self) -> bool:
        """Whether the channel is in confirm mode (see Publisher)."""
        return self.confirms is not None

    @property
    def is_transactional(self) -> bool:
        """Whether the channel is in transactional mode (see Publisher)."""
        return self.transaction is not None

    def close(self, error: ChannelError) -> None:
        """Close the channel with `error` (see Publisher)."""
        self.connection.channels.close(self.number, error)
        self.connection.touch()

    def send_back(self, message: Message) -> None:
        """Return to its publisher a mandatory message that was stored but is now unroutable."""
        self.connection.reader.unroutable(self.slot, message.exchange, True)
        send_back(self.connection, self.number, message)

    def route(self, publish: Publish) -> Destinations:
        """Return the destinations of one whole message, and trace it where the firehose is on."""
        destinations = find_destinations(self.vhost, publish)
        if self.vhost.traced:
            queues = [builder.owner.definition.name for builder in destinations.builders]
            message = StoredMessage(
                publish.exchange, publish.routing_key, publish.header, publish.body, publish.flags
            )
            keys = [publish.routing_key, *publish.further_keys]
            self.broker.tracer.published(self.vhost, message, keys, queues, self.origin)
        return destinations

    @property
    def origin(self) -> Origin:
        """Names by which the firehose identifies this channel."""
        return Origin(self.connection.name, self.number, self.connection.user)

    def trace_deliveries(
        self, queue: OpenQueue, batches: list[Batch], first: int, stop: int, *, redelivered: bool
    ) -> None:
        """Publish the delivered records [first, stop) to the firehose."""
        for batch in batches:
            for offset in range(max(first, batch.base_offset), min(stop, batch.stop_offset)):
                flags, _, exchange, routing_key, header, body = batch.record(offset)
                if flags & RecordFlag.BLIND_COPIED:
                    header = open_header(header)
                self.broker.tracer.delivered(
                    self.vhost,
                    StoredMessage(exchange, routing_key, header, body, flags),
                    queue.name,
                    self.origin,
                    redelivered=redelivered,
                )

    # -- settling

    def settle(self, kind: int, first: int, last: int, *, multiple: bool) -> int | None:
        """Settle, return or discard a run of delivery tags. Returns the first unknown one."""
        unacked = self.unacked
        unknown: int | None = None
        if multiple:
            # Every tag up to `last`, which must be outstanding itself unless it means "all".
            if last != frames.ALL_TAGS and not unacked.is_outstanding(last):
                unknown = last
                held: list[Holding] = []
            else:
                held = unacked.take_up_to(last, SLICE_RUNS)
        else:
            held, unknown = unacked.take(first, last)
        self.apply(kind, held)
        if multiple and len(held) == SLICE_RUNS:
            # What is delivered meanwhile is not meant by it.
            self.connection.take_time(self.settling(kind, min(last, self.slot.delivery_tag)))
        return unknown

    def settling(self, kind: int, last: int, cause: Reason = Reason.REQUEUED) -> Iterator[None]:
        """Settle, return or discard all outstanding deliveries up to tag `last`, in slices."""
        while held := self.unacked.take_up_to(last, SLICE_RUNS):
            self.apply(kind, held, cause)
            yield

    def apply(self, kind: int, held: list[Holding], cause: Reason = Reason.REQUEUED) -> None:
        """Release the credit of settled or returned deliveries and pass their ranges to the queues.

        `cause`: the reason of a return.
        """
        settles = kind == frames.SETTLE
        if len(held) == 1:  # whoever acknowledges one by one comes here once a message
            holder, first, stop = held[0]
            holder.release(stop - first)
            if settles:
                holder.counted.acknowledged(stop - first)
                holder.queue.settle([(first, stop)])
            else:
                _tell(holder.queue, kind, [(first, stop)], cause)
            if self.consumers:
                self._wake({holder: stop - first})
            return
        freed = release_held(held, acknowledged=settles)
        ranges: dict[OpenQueue, list[tuple[int, int]]] = {}
        for holder, first, stop in held:
            ranges.setdefault(holder.queue, []).append((first, stop))
        for queue, of_queue in ranges.items():
            if settles:
                queue.settle(of_queue)
            else:
                _tell(queue, kind, of_queue, cause)
        if self.consumers:
            self._wake(freed)

    def release_credit(self, held: list[Holding]) -> None:
        """Release the credit of acknowledged deliveries that their queues have settled already."""
        freed = release_held(held, acknowledged=True)
        if self.consumers:
            self._wake(freed)

    def _wake(self, freed: dict[LeaseHolder, int]) -> None:
        """Wake holders with new credit, or all consumers if the shared prefetch had run out."""
        if self.prefetch and self.in_flight + sum(freed.values()) >= self.prefetch:
            self.wake_consumers()  # there was nothing left of what they share
        else:
            for holder in freed:
                holder.wake()

    def wake_consumers(self) -> None:
        """Wake the queues of all the channel's consumers, so that they deliver again."""
        for consumer in self.consumers.values():
            consumer.queue.wake(consumer)

    def getter(self, queue: OpenQueue) -> Getter:
        """Return the lease holder for basic.get from `queue` on this channel."""
        getter = self._getters.get(queue)
        if getter is None or queue.deleted:
            getter = self._getters[queue] = Getter(queue, self)
        return getter

    def delivery_statistics(self, queue: OpenQueue, mode: int) -> DeliveryStatistics:
        """Return the counters of deliveries from a queue to this channel in one mode (get, …).

        All consumers of the channel and the queue share them. They stay when a consumer ends, since
        counters never become less.
        """
        of_queue = self.delivery_statistics_by_queue.get(queue)
        if of_queue is None:
            if len(self.delivery_statistics_by_queue) >= self._delivery_statistics_max:
                self._forget_deleted()
            of_queue = self.delivery_statistics_by_queue[queue] = {}
        found = of_queue.get(mode)
        if found is None:
            found = of_queue[mode] = self.broker.statistics.delivery_statistics(
                mode, queue, self.slot.counters
            )
        return found

    def _forget_deleted(self) -> None:
        """Forget the counters of deleted queues, so that short-lived queues do not take memory.

        Called when there may be as many deleted ones as others, or a few.
        """
        self.delivery_statistics_by_queue = {
            q: of for q, of in self.delivery_statistics_by_queue.items() if not q.deleted
        }
        self._getters = {q: getter for q, getter in self._getters.items() if not q.deleted}
        self._delivery_statistics_max = max(
            DELIVERY_STATISTICS_MIN, 2 * len(self.delivery_statistics_by_queue)
        )

    def pairs(self) -> Iterator[Counters]:
        """Iterate over all counters of publishes to an exchange and of deliveries from a queue."""
        yield from self.slot.publish_statistics_by_exchange.values()
        for of_queue in self.delivery_statistics_by_queue.values():
            yield from of_queue.values()

    def send_got(
        self, queue: OpenQueue, batch: Batch, offset: int, *, redelivered: bool, no_ack: bool
    ) -> None:
        """Write basic.get-ok for a record that `queue.get` has leased."""
        connection = self.connection
        getter = self.getter(queue)
        connection.outbox.get_ok(
            self.slot,
            batch,
            offset,
            redelivered,
            queue.message_count,
            return_counts(queue) if redelivered else None,
            getter.counted_no_ack if no_ack else getter.counted,
        )
        connection.touch()
        if self.vhost.traced:
            self.trace_deliveries(queue, [batch], offset, offset + 1, redelivered=redelivered)
        if no_ack:
            self.slot.has_free_tags = True
            queue.settle([(offset, offset + 1)])
        else:
            self.unacked.add(self.slot.delivery_tag, 1, offset, getter)
            term_ms = queue.settings.visibility_timeout_ms
            if term_ms is not None:
                self.needed_leases().begin(getter, self.slot.delivery_tag, 1, term_ms)

    def send_empty(self, queue: OpenQueue) -> None:
        """Answer a basic.get with basic.get-empty."""
        self.getter(queue).counted.found_empty()
        self.send(commands.Basic.GetEmpty())

    def needed_leases(self) -> Leases:
        """Return the channel's lease timers; create them when the first delivery needs one."""
        if self.leases is None:
            self.leases = Leases(self)
        return self.leases

    # -- consumers

    def check_new_tag(self, tag: str) -> None:
        """Refuse (530) a consumer tag that is in use on this channel."""
        in_use = self.reply_consumer is not None and self.reply_consumer.tag == tag
        if in_use or tag in self.consumers:
            raise ConnectionClosingError(530, f"attempt to reuse consumer tag '{tag}'")

    def add_consumer(self, consumer: ChannelConsumer, *, exclusive: bool) -> None:
        """Register a consumer on the channel and on its queue."""
        self.consumers[consumer.tag] = consumer
        if consumer.no_ack:
            self.slot.has_free_tags = True
        consumer.queue.add_consumer(consumer, exclusive=exclusive)
        announcements.consumer_started(consumer, exclusive=exclusive)

    def cancel_consumer(self, consumer: ChannelConsumer) -> None:
        """Stop serving a consumer; its unacked deliveries stay outstanding on the channel."""
        self.consumers.pop(consumer.tag, None)
        queue = consumer.queue
        announcements.consumer_ended(consumer)
        if not queue.deleted:
            queue.remove_consumer(consumer)
            if queue.definition.auto_delete and not queue.consumer_count:
                self.broker.delete_queue(self.vhost, queue)

    # -- answers

    @contextmanager
    def holding_back_cancels(self) -> Iterator[list[base.Frame]]:
        """Collect the basic.cancels of this channel's consumers, to be sent after the answer.

        As in RabbitMQ, a client that deletes a queue it consumes gets the delete-ok first.
        """
        cancels: list[base.Frame] = []
        self._held_back = cancels
        try:
            yield cancels
        finally:
            self._held_back = None

    def tell_cancelled(self, tag: str) -> None:
        """Send basic.cancel for a consumer whose queue is gone, if the client supports it."""
        if self.connection.client_understands("consumer_cancel_notify"):
            cancel = commands.Basic.Cancel(consumer_tag=tag, nowait=True)
            if self._held_back is None:
                self.send(cancel)
            else:
                self._held_back.append(cancel)

    def send_all(self, methods: list[base.Frame]) -> None:
        """Queue methods for the client, in order."""
        for method in methods:
            self.send(method)

    def send(self, method: base.Frame) -> None:
        """Queue a method for the client."""
        self.connection.outbox.write(encode_method(self.number, method))
        self.connection.touch()

    def queue(self, name: str) -> OpenQueue:
        """Return a queue that this connection may use. Raises ChannelError 404 and 405."""
        return self.broker.find_queue(self.vhost, name, self.connection)

    def reply(
        self, method: base.Frame, *, nowait: bool = False, kept: bool = True
    ) -> Awaitable[None] | None:
        """Answer a method; after the definitions are flushed if it changed a durable one (`kept`).

        Other methods do not wait for a flush, which a full disk may prevent.
        """
        if kept and self.broker.metadata.pending:
            return self._reply_kept(None if nowait else method)
        if not nowait:
            self.send(method)
        return None

    async def _reply_kept(self, method: base.Frame | None) -> None:
        await self.broker.metadata.flush()
        if method is not None:
            self.send(method)

    def when_caught_up(
        self, queue: OpenQueue, then: Callable[[], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Call `then` when all that was published to `queue` so far is committed and delivered.

        So a client reads its own writes, except what went to waiting consumers. A queue that is
        deleted meanwhile looks empty to `then`.
        """
        self.broker.turn.catch_up(queue)
        return then() if queue.is_caught_up else self._after_commit([queue], then)

    def take_time_before(
        self, steps: Iterator[None], then: Callable[[], Awaitable[None] | None]
    ) -> None:
        """Run `steps`, which may be long, then `then`; the connection is not read meanwhile."""
        self.connection.take_time(self._taking_time_before(steps, then))

    def _taking_time_before(
        self, steps: Iterator[None], then: Callable[[], Awaitable[None] | None]
    ) -> Iterator[None]:
        yield from steps
        if self.connection.is_open:
            self.connection.wait_for(then())

    def when_effective(
        self, queues: Collection[OpenQueue], then: Callable[[], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Call `then` when this client's earlier publishes to `queues` have taken effect.

        They go to the consumers as they were before. Publishes of other clients are not waited for,
        so a client that only consumes does not wait for a disk.
        """
        for queue in queues:
            self.broker.turn.catch_up(queue)
        if self.connection.reader.published.messages:
            uncommitted = [queue for queue in queues if not queue.is_caught_up]
            if uncommitted:
                return self._after_commit(uncommitted, then)
        return then()

    async def _after_commit(
        self, queues: Collection[OpenQueue], then: Callable[[], Awaitable[None] | None]
    ) -> None:
        await self.connection.committed(queues)
        if not self.alive:
            return  # nobody is left to be answered, or to hold a message
        for queue in queues:
            self.broker.turn.catch_up(queue)
        work = then()
        if work is not None:
            await work

    def require(self, permission: Permission, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless the user has this permission on the resource."""
        authorise(self.connection.rights, self.vhost.name, kind, name, permission)

    def require_any(self, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless the user has some permission on the resource.

        For passive declarations, which must not disclose to other users what exists.
        """
        access, user, vhost = self.broker.access, self.connection.user, self.vhost.name
        others: tuple[Permission, ...] = ("write", "read")
        if not any(access.allows(user, vhost, kind, name, permission) for permission in others):
            self.require("configure", kind, name)

    def require_topic(self, permission: TopicPermission, exchange_name: str, key: str) -> None:
        """Raise ChannelError 403 unless the user's topic permissions allow a routing key."""
        exchange = self.vhost.exchanges.get(exchange_name)
        if exchange is not None and exchange.definition.type == "topic":
            authorise_topic(self.connection.rights, self.vhost.name, exchange_name, key, permission)

    def _restricts_topics(self, exchange: Exchange) -> bool:
        """Whether topic permissions may deny the user some routing keys of an exchange."""
        return exchange.definition.type == "topic" and self.connection.rights.restricts_topics(
            self.vhost.name, exchange.name
        )

    def readable_queue(self, name: str) -> Queue:
        """Return a queue to get from. Raises ChannelError 403, 404 and 405, and 540 for a stream.

        The result is cached until the queue or a permission changes, because each basic.get asks.
        """
        generation = self.connection.rights.generation
        if self._readable is not None:
            known, queue, answered = self._readable
            if known == name and answered == generation and not queue.deleted:
                return queue
        resolved = self.queue_named(stripped(name))
        if direct_reply.is_volatile(resolved):
            raise direct_reply.refuse_get(resource("queue", resolved, self.vhost.name))
        self.require("read", "queue", resolved)
        found = self.queue(resolved)
        if not isinstance(found, Queue):
            raise not_for_streams("basic.get", found)
        self._readable = (name, found, generation) if name else None
        return found

    def queue_named(self, name: str) -> str:
        """Return `name`, or the queue declared last on this channel if empty. Raises 404."""
        if name:
            return name
        if self.last_queue is None:
            raise ChannelError(404, "no previously declared queue")
        return self.last_queue

    # -- the end

    def releasing(self, *, failed: bool = True) -> Iterator[None]:
        """Release everything that the channel holds, once: consumers and outstanding deliveries.

        In steps, of which the first leaves the channel dead.

        `failed`: the return counts as a failed delivery; a message may have broken the client.
        """
        if not self.alive:
            return
        self.alive = False
        self.slot.closing = True
        self.connection.reader.drop_content(self.slot)
        if self.confirms is not None:
            self.confirms.forget()
        if self.leases is not None:
            self.leases.close()
        direct_reply.cancel(self)
        for number, consumer in enumerate(drain(self.consumers.values())):
            self.cancel_consumer(consumer)
            if number % SLICE_CONSUMERS == SLICE_CONSUMERS - 1:
                yield
        if self.transaction is not None:
            yield from self.transaction.rolling_back()
        kind = frames.RETURN | frames.REJECT if failed else frames.RETURN
        cause = Reason.DISCONNECTED if failed else Reason.TIMED_OUT
        yield from self.settling(kind, frames.ALL_TAGS, cause)
        announcements.channel_closed(self)
        self._let_go()

    def _let_go(self) -> None:
        """Drop references from and to the channel, so that no garbage collector is needed."""
        self.slot.end()
        self.leases = self.transaction = None
        self.unacked = Unacked()
        self._getters.clear()


def release_held(held: list[Holding], *, acknowledged: bool) -> dict[LeaseHolder, int]:
    """Release the credit of settled deliveries, summed by holder. Returns the sums."""
    freed: dict[LeaseHolder, int] = {}
    for holder, first, stop in held:
        freed[holder] = freed.get(holder, 0) + stop - first
    for holder, count in freed.items():
        holder.release(count)
        if acknowledged:
            holder.counted.acknowledged(count)
    return freed


def _tell(queue: OpenQueue, kind: int, ranges: list[tuple[int, int]], cause: Reason) -> None:
    """Settle, return or discard ranges of unsettled records in a queue."""
    if kind & frames.RETURN:
        queue.return_(ranges, failed=bool(kind & frames.REJECT), cause=cause)
    else:
        queue.discard(ranges)


def not_for_streams(method: str, queue: OpenQueue) -> ConnectionClosingError:
    """Build the error 540 of a method that streams do not support."""
    name = resource("queue", queue.name, queue.definition.vhost)
    return ConnectionClosingError(540, f"{method} not supported by stream queues {name}")


def unknown_tag(kind: int, tag: int) -> ChannelError:
    """Build the 406 for a delivery tag that is not outstanding."""
    error = ChannelError(406, f"unknown delivery tag {tag}")
    if kind & frames.REJECT:
        error.method_ids = BASIC_REJECT
    else:
        error.method_ids = BASIC_ACK if kind == frames.SETTLE else BASIC_NACK
    return error
