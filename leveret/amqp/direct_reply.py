"""Direct reply-to: answers go straight to the requester's channel, through no queue.

A channel that consumes from `amq.rabbitmq.reply-to` gets an address of its own. The reader puts it
into the reply-to of each message that the channel publishes with a reply-to of that name; what
others publish to the address over the default exchange is delivered to the channel at once. The
address is `amq.rabbitmq.reply-to.NODE.SECRET`: the node tells a cluster where the channel is, and
knowledge of the secret permits to answer. An answer for which no channel waits is dropped.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from leveret.amqp.frames import Publish
    from leveret.amqp.protocol import ChannelBase
    from leveret.broker.broker import Broker

REPLY_NAME = "amq.rabbitmq.reply-to"
ADDRESS_PREFIX = f"{REPLY_NAME}."
ADDRESS_PREFIX_BYTES = ADDRESS_PREFIX.encode()
NODE_DIGEST_BYTES = 8  # of the node's name, which may be too long for a routing key
# Answers for a client that does not read wait in memory, and may be lost as all answers may: more
# than this is not worth it.
ANSWERS_BYTES_MAX = 64 * 1024 * 1024


def is_reply_address(key: bytes) -> bool:
    """Whether a routing key of the default exchange is a direct-reply address."""
    return key.startswith(ADDRESS_PREFIX_BYTES)


def is_volatile(queue_name: str) -> bool:
    """Whether a queue name is the pseudo-queue of direct replies or one of their addresses."""
    return queue_name == REPLY_NAME or queue_name.startswith(ADDRESS_PREFIX)


def new_address(node_name: str, secret: str) -> bytes:
    """Return a direct-reply address for a channel of this node. `secret` must be unguessable."""
    node = blake2b(node_name.encode(), digest_size=NODE_DIGEST_BYTES).hexdigest()
    return f"{ADDRESS_PREFIX}{node}.{secret}".encode()


class ReplyConsumer:
    """Consumer of direct replies on a channel."""

    def __init__(self, channel: ChannelBase, tag: str) -> None:
        self.tag = tag
        self._channel = channel
        broker = channel.broker
        self._address = new_address(broker.node_name, broker.random_name(""))
        channel.slot.reply_address = self._address
        channel.slot.has_free_tags = True
        broker.reply_consumers[self._address] = self

    def close(self) -> None:
        """Make the address invalid."""
        del self._channel.broker.reply_consumers[self._address]
        self._channel.slot.reply_address = None

    def deliver(self, publish: Publish) -> None:
        """Write an answer into the channel's connection."""
        connection, slot = self._channel.connection, self._channel.slot
        if connection.outbox.size > ANSWERS_BYTES_MAX:
            return
        builder = BatchBuilder()  # as a record of its own, an answer is written like any delivery
        builder.add(publish.flags, 0, publish.exchange, self._address, publish.header, publish.body)
        batch = builder.seal(0)
        connection.outbox.deliver(slot, self.tag.encode(), [batch], 0, 1, False)
        connection.touch()


def answer(broker: Broker, address: bytes, publish: Publish) -> None:
    """Deliver an answer to the channel at `address`, if it still exists."""
    consumer = broker.reply_consumers.get(address)
    if consumer is not None:
        consumer.deliver(publish)


def is_awaited(broker: Broker, queue_name: str) -> bool:
    """Whether a direct-reply name has a consumer that waits for answers."""
    return queue_name == REPLY_NAME or queue_name.encode() in broker.reply_consumers


def check_bindable(queue_name: str) -> None:
    """Raise ChannelError 403 if `name` is a direct-reply name, which cannot be bound or unbound."""
    if is_volatile(queue_name):
        raise ChannelError(403, "cannot bind or unbind to a volatile (direct reply-to) queue")


def refuse_get(described: str) -> ConnectionClosingError:
    """Build the 540 of a basic.get from a direct-reply name."""
    return ConnectionClosingError(540, f"basic.get not supported by volatile {described}")
