"""Destinations of one message that left the fast path: queues, direct replies, or its publisher.

Called by the message's channel once it has checked what its user may do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pamqp import commands

from leveret.amqp import direct_reply
from leveret.amqp.direct_reply import is_reply_address
from leveret.amqp.methods import build, encode_content
from leveret.amqp.received import ReceivedMessage
from leveret.core.names import not_found
from leveret.core.routing.message import StoredMessage
from leveret.core.topology.graph import check_key_count
from leveret.errors import ConnectionClosingError
from leveret.ports.contents import open_header
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.amqp.frames import Publish
    from leveret.amqp.protocol import ChannelBase
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.ports.partitioner import RecordTarget

# Where the copies of a message take more memory than some, so much of them is made at a time: some
# 0.2 ms. The first one in a queue's builder takes a page, however small it is.
COPIED_TOGETHER_BYTES = 1024 * 1024
COPIED_PORTION_BYTES = COPIED_TOGETHER_BYTES // 4
COPY_BYTES_MIN = 4096


class Destinations(NamedTuple):
    """Batch builders of queues, and addresses of direct replies.

    A reply's address may be gone; the message counts as routed all the same.
    """

    builders: Sequence[RecordTarget]
    replies: Sequence[bytes]


def find_destinations(vhost: Vhost, publish: Publish) -> Destinations:
    """Return the destinations of a message, each queue and each reply once.

    Raises ChannelError 404, 406 where the message has very many keys, ConnectionClosingError 501.
    """
    name = publish.exchange.decode()
    exchange = vhost.exchanges.get(name)
    if exchange is None:  # gone since the reader looked it up
        raise not_found("exchange", name, vhost.name)
    keys = dict.fromkeys((publish.routing_key, *publish.further_keys))
    check_key_count(len(keys))
    replies = [] if name else [key for key in keys if is_reply_address(key)]
    try:
        texts = [key.decode() for key in keys if name or not is_reply_address(key)]
    except UnicodeDecodeError as error:
        raise ConnectionClosingError(501, "cannot decode the routing key") from error
    queues = vhost.route(exchange, texts, ReceivedMessage(publish)) if texts else []
    return Destinations([queue.builder for queue in queues], replies)


def stored_form(publish: Publish) -> tuple[int, bytes]:
    """Return flags and content header of the record that a message is stored as."""
    if publish.blind_header is None:
        return publish.flags, publish.header
    return publish.flags | RecordFlag.BLIND_COPIED, publish.blind_header


def route(channel: ChannelBase, publish: Publish) -> Destinations:
    """Return the destinations of one whole message, and trace it where the firehose is on."""
    vhost = channel.vhost
    destinations = find_destinations(vhost, publish)
    if vhost.traced:
        queues = [builder.owner.definition.name for builder in destinations.builders]
        message = StoredMessage(
            publish.exchange, publish.routing_key, publish.header, publish.body, publish.flags
        )
        keys = [publish.routing_key, *publish.further_keys]
        channel.broker.tracer.published(vhost, message, keys, queues, channel.origin)
    return destinations


def deposit(channel: ChannelBase, publish: Publish, destinations: Destinations) -> None:
    """Put one message into its queues; return it to its publisher if it must be."""
    builders = destinations.builders
    bytes_each = max(len(publish.header) + len(publish.body), COPY_BYTES_MIN)
    if len(builders) * bytes_each > COPIED_TOGETHER_BYTES:
        channel.connection.take_time(_depositing(channel, publish, destinations, bytes_each))
        return
    if builders:
        channel.connection.reader.deposit(channel.slot, builders, publish)
    answer(channel, publish, destinations)


def _depositing(
    channel: ChannelBase, publish: Publish, destinations: Destinations, bytes_each: int
) -> Iterator[None]:
    """Pack a message for its queues in portions, each of which is written before the next."""
    share = max(COPIED_PORTION_BYTES // bytes_each, 1)
    builders = list(destinations.builders)
    for at in range(0, len(builders), share):
        there = [each for each in builders[at : at + share] if not each.owner.deleted]
        channel.connection.reader.deposit(channel.slot, there, publish)
        channel.connection.hand_over(large=True)
        yield
    answer(channel, publish, destinations)


def answer(channel: ChannelBase, publish: Publish, destinations: Destinations) -> None:
    """Deliver a message to its direct-reply consumers; count or return it if unroutable."""
    builders, replies = destinations
    reader = channel.connection.reader
    if builders or replies:  # whoever awaits a reply may be gone
        reader.routed_singly(channel.slot, publish.exchange, len(builders) + len(replies))
    else:
        reader.unroutable(channel.slot, publish.exchange, publish.mandatory)
        if publish.mandatory and channel.alive:
            send_back(channel, publish)
    for address in replies:
        direct_reply.answer(channel.broker, address, publish)


def send_back(channel: ChannelBase, publish: Publish | Message) -> None:
    """Return an unroutable mandatory message to its publisher (basic.return)."""
    header = (
        open_header(publish.header) if publish.flags & RecordFlag.BLIND_COPIED else publish.header
    )
    method = build(
        commands.Basic.Return,
        reply_code=312,
        reply_text="NO_ROUTE",
        exchange=publish.exchange.decode(errors="replace"),
        routing_key=publish.routing_key.decode(errors="replace"),
    )
    connection = channel.connection
    connection.outbox.write(
        encode_content(channel.number, method, header, publish.body, connection.tuned.frame_max)
    )
    connection.touch()
