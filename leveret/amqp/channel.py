"""One channel: its consumers, outstanding deliveries and unconfirmed publishes.

The reader keeps the channel's hot state in a slot; after each read the connection lets every
channel that something happened on `collect` it. Methods that are not hot are operations on it (see
leveret.amqp.operations).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import announcements, frames
from leveret.amqp.confirms import Confirms
from leveret.amqp.creating import KeptDefinitions, missing_queue
from leveret.amqp.destinations import deposit, route, send_back, stored_form
from leveret.amqp.methods import encode_payload
from leveret.amqp.received import ReceivedMessage
from leveret.amqp.sender_selected import select_keys
from leveret.amqp.settling import ChannelDeliveries
from leveret.core.chores import drain
from leveret.core.publish_interceptors import InterceptedPublish, PublishContext
from leveret.core.routing.routes import RouteCache
from leveret.core.settings.discard_reasons import Reason
from leveret.errors import AmqpError, ChannelError, ConnectionClosingError
from leveret.features.retry.retrying import check_retry_headers
from leveret.ports.authentication import UnansweredError
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pamqp import base

    from leveret.amqp.consumer import ChannelConsumer
    from leveret.amqp.direct_reply import ReplyConsumer
    from leveret.amqp.frames import Publish
    from leveret.amqp.getting import Getting
    from leveret.amqp.protocol import ConnectionBase
    from leveret.amqp.transaction import Transaction
    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message

# Repeated basic.gets that a channel remembers, before it begins anew.
GETTINGS_MAX = 64
# Consumers that end before somebody looks at the clock. Some 0.2 ms.
SLICE_CONSUMERS = 16


class Channel(ChannelDeliveries):
    """One open channel of a connection."""

    consumers: dict[str, ChannelConsumer]  # by tag
    transaction: Transaction | None  # None: settlements have effect at once

    def __init__(self, connection: ConnectionBase, number: int) -> None:
        super().__init__(connection, number)
        self.slot = connection.reader.open_channel(number, self)
        self.reply_consumer: ReplyConsumer | None = None
        self.consumer_prefetch = 0  # of each consumer that is started from now on; 0 = no limit
        self._held_back: list[base.Frame] | None = None  # see holding_back_cancels
        self.choose_path()

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

    def remember(self, method: commands.Basic.Get, getting: Getting) -> None:
        """Have the same basic.get answered by `getting` if the client repeats it."""
        gettings = self.slot.gettings
        if gettings is None or len(gettings) >= GETTINGS_MAX:
            gettings = self.slot.gettings = {}
        gettings[encode_payload(method)] = getting

    def start_confirming(self) -> None:
        """Number the publishes from now on."""
        if self.confirms is None:
            self.slot.published = 0
            self.slot.confirms = Confirms(self.slot, self.connection.outbox, self.connection.touch)

    def refused(self, first: int, stop: int) -> None:
        """Note that a queue has refused the publishes [first, stop) of the open confirm group."""
        if self.confirms is not None:
            self.confirms.refuse(first, stop)

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
        intercepted = InterceptedPublish(self._context(publish), found) if found else None
        if self.transaction is not None and publish.exchange not in interceptors.commands:
            self.transaction.buffer_publish(publish, intercepted or route(self, publish))
        elif intercepted is not None and self._is_taken(intercepted):
            return True
        else:
            deposit(self, publish, route(self, publish))
        return False

    def _context(self, publish: Publish) -> PublishContext:
        """Return a message as the publish interceptors of the broker's features take it."""
        message = ReceivedMessage(publish)
        message.flags, message.header = stored_form(publish)
        return PublishContext(
            self.vhost,
            message,
            (publish.routing_key, *publish.further_keys),
            publish.requests,
            publish.mandatory,
            self.slot.published,
            self.connection.user,
            self,
            self.broker.timers.wall_ms(),
        )

    def _create_missing(self, key: bytes) -> None:
        """Create the missing queue that a message names, if its user may. Raises ChannelError 406.

        The message's confirm waits until a restart would find the queue.
        """
        if missing_queue(self, key) is not None and self.confirms is not None:
            self.confirms.wait_also([KeptDefinitions(self.broker)])

    def _is_taken(self, intercepted: InterceptedPublish) -> bool:
        """Whether a message is not to be routed now. Raises ChannelError."""
        committing = intercepted.intercept()
        if committing is None:
            return False
        if self.confirms is not None:
            self.confirms.wait_also(committing)
        self.connection.check_alarms()
        return True

    def _check_topics(self, publish: Publish) -> None:
        """Check topic permissions for each routing key of a message, CC and BCC included."""
        exchange = self.vhost.exchanges.get(publish.exchange.decode())
        if exchange is not None and self._restricts_topics(exchange):
            for key in (publish.routing_key, *publish.further_keys):
                self.require_topic("write", exchange.name, key.decode(errors="replace"))

    @property
    def confirms(self) -> Confirms | None:
        """Its confirms, in confirm mode."""
        return self.slot.confirms

    @property
    def confirms_publishes(self) -> bool:
        """Whether the channel is in confirm mode (see Publisher)."""
        return self.confirms is not None

    @property
    def is_transactional(self) -> bool:
        """Whether the channel is in transactional mode (see Publisher)."""
        return self.transaction is not None

    def close(self, error: AmqpError) -> None:
        """Close the channel, or its connection, with `error` (see Publisher)."""
        if not self.alive:
            return  # its number may be another one's
        if isinstance(error, ChannelError):
            self.connection.close_channel(self.number, error)
        else:
            self.connection.shut(error)
        self.connection.touch()

    def send_back(self, message: Message) -> None:
        """Return to its publisher a mandatory message that was stored but is now unroutable."""
        self.connection.reader.unroutable(self.slot, message.exchange, True)
        send_back(self, message)

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
        consumer.end()
        queue = consumer.queue
        announcements.consumer_ended(consumer)
        if not queue.deleted:
            queue.remove_consumer(consumer)
            if queue.definition.auto_delete and not queue.consumer_count:
                self.broker.delete_queue(self.vhost, queue.whole)

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

    def consumer_gone(self, tag: str) -> None:
        """Forget a consumer whose queue is gone; send basic.cancel if the client supports it."""
        announcements.consumer_ended(self.consumers.pop(tag))
        if self.connection.client_understands("consumer_cancel_notify"):
            cancel = commands.Basic.Cancel(consumer_tag=tag, nowait=True)
            if self._held_back is None:
                self.send(cancel)
            else:
                self._held_back.append(cancel)

    def cancel_replies(self) -> None:
        """Cancel the consumer of direct replies, if there is one; its address becomes invalid."""
        if self.reply_consumer is not None:
            self.reply_consumer.close()
            self.reply_consumer = None

    def _restricts_topics(self, exchange: Exchange) -> bool:
        """Whether topic permissions may deny the user some routing keys of an exchange."""
        return exchange.definition.type == "topic" and self.connection.rights.restricts_topics(
            self.vhost.name, exchange.name
        )

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
        self.cancel_replies()
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
        self.slot.end()
        self.transaction = None
        self.forget_deliveries()
