"""Destinations of one message that left the fast path: queues, direct replies, or its publisher.

Called by the message's channel once it has checked what its user may do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pamqp import commands

from leveret.amqp.direct_reply import is_reply_address
from leveret.amqp.methods import build, encode_content
from leveret.amqp.received import ReceivedMessage
from leveret.core.names import not_found
from leveret.core.publish_interceptors import PublishContext
from leveret.core.topology.graph import check_key_count
from leveret.errors import ConnectionClosingError
from leveret.ports.contents import open_header
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.amqp.channel import Channel
    from leveret.amqp.connection import Connection
    from leveret.amqp.frames import Publish
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.ports.records import BatchBuilder


class Destinations(NamedTuple):
    """Batch builders of queues, and addresses of direct replies.

    A reply's address may be gone; the message counts as routed all the same.
    """

    builders: Sequence[BatchBuilder]
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


def submit(channel: Channel, publish: Publish) -> PublishContext:
    """Return a message as the publish steps of the broker's features take it."""
    message = ReceivedMessage(publish)
    message.flags, message.header = stored_form(publish)
    return PublishContext(
        channel.vhost,
        message,
        (publish.routing_key, *publish.further_keys),
        publish.requests,
        publish.mandatory,
        channel.slot.published,
        channel.connection.user,
        channel,
    )


def send_back(connection: Connection, number: int, publish: Publish | Message) -> None:
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
    connection.outbox.write(
        encode_content(number, method, header, publish.body, connection.tuned.frame_max)
    )
    connection.touch()
