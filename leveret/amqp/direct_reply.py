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

from pamqp import commands

from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from leveret.amqp.channel import Channel
    from leveret.amqp.frames import Publish
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

    def __init__(self, channel: Channel, tag: str, address: bytes) -> None:
        self.tag = tag
        self.address = address
        self._channel = channel

    def deliver(self, publish: Publish) -> None:
        """Write an answer into the channel's connection."""
        connection, slot = self._channel.connection, self._channel.slot
        if connection.outbox.size > ANSWERS_BYTES_MAX:
            return
        builder = BatchBuilder()  # as a record of its own, an answer is written like any delivery
        builder.add(publish.flags, 0, publish.exchange, self.address, publish.header, publish.body)
        batch = builder.seal(0)
        connection.outbox.deliver(slot, self.tag.encode(), [batch], 0, 1, False)
        connection.touch()


def answer(broker: Broker, address: bytes, publish: Publish) -> None:
    """Deliver an answer to the channel at `address`, if it still exists."""
    consumer = broker.reply_consumers.get(address)
    if consumer is not None:
        consumer.deliver(publish)


def consume(channel: Channel, method: commands.Basic.Consume) -> None:
    """Start a channel's consumer of direct replies: at most one, without acknowledgements."""
    tag = method.consumer_tag or channel.broker.random_name("amq.ctag-")
    channel.check_new_tag(tag)
    if not method.no_ack:
        raise ChannelError(406, "reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise ChannelError(406, "reply consumer already set")
    address = new_address(channel.broker.node_name, channel.broker.random_name(""))
    channel.reply_consumer = ReplyConsumer(channel, tag, address)
    channel.slot.reply_address = address
    channel.slot.has_free_tags = True
    channel.broker.reply_consumers[address] = channel.reply_consumer
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=tag))


def cancel(channel: Channel) -> None:
    """Cancel a channel's consumer of direct replies; its address becomes invalid."""
    if channel.reply_consumer is not None:
        del channel.broker.reply_consumers[channel.reply_consumer.address]
        channel.reply_consumer = channel.slot.reply_address = None


def is_awaited(channel: Channel, queue_name: str) -> bool:
    """Whether a direct-reply name has a consumer that waits for answers."""
    return queue_name == REPLY_NAME or queue_name.encode() in channel.broker.reply_consumers


def check_bindable(queue_name: str) -> None:
    """Raise ChannelError 403 if `name` is a direct-reply name, which cannot be bound or unbound."""
    if is_volatile(queue_name):
        raise ChannelError(403, "cannot bind or unbind to a volatile (direct reply-to) queue")


def refuse_get(described: str) -> ConnectionClosingError:
    """Build the 540 of a basic.get from a direct-reply name."""
    return ConnectionClosingError(540, f"basic.get not supported by volatile {described}")
