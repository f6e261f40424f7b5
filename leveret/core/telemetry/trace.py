"""The firehose: every message that enters or leaves a traced virtual host, as a copy.

The copies go to the exchange `amq.rabbitmq.trace` of the virtual host, with the keys
`publish.EXCHANGE` and `deliver.QUEUE`; all that is known of the message stands in their headers,
with RabbitMQ's names and types. Whether a virtual host is traced is forgotten at a restart, as in
RabbitMQ: it costs a message for each message, and somebody who looks.

Called by channels while `Vhost.traced` is set. Deliveries of the copies themselves are not traced.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.core.routing.message import MadeMessage, read_properties
from leveret.ports.fields import INT32_MAX, INT32_MIN
from leveret.ports.tables import MalformedFieldError, RawValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.routing.message import Message
    from leveret.core.routing.publishing import InternalPublisher
    from leveret.core.vhost import Vhost

__all__ = ["TRACE_EXCHANGE", "Origin", "Tracer"]

TRACE_EXCHANGE = "amq.rabbitmq.trace"
KEY_BYTES_MAX = 255  # a prefix and a name can be longer than a short string
CARBON_COPY = "CC"


class Origin(NamedTuple):
    """The channel that a message came from or went to."""

    connection: str
    channel: int
    user: str


class Tracer:
    """Publishes the copies of a node's traced virtual hosts."""

    def __init__(self, publisher: InternalPublisher, node_name: str) -> None:
        self._publisher = publisher
        self._node_name = node_name

    def published(
        self,
        vhost: Vhost,
        message: Message,
        keys: Sequence[bytes],
        queues: Sequence[str],
        origin: Origin,
    ) -> None:
        """A client's message was routed to these queues by these keys."""
        self._trace(
            vhost,
            b"publish." + message.exchange,
            message,
            {**_whereabouts(vhost, origin), "routing_keys": keys, "routed_queues": queues},
        )

    def delivered(
        self, vhost: Vhost, message: Message, queue: str, origin: Origin, *, redelivered: bool
    ) -> None:
        """A message of a queue was sent to a client: to a consumer, or for basic.get."""
        if message.exchange == TRACE_EXCHANGE.encode():
            return
        self._trace(
            vhost,
            b"deliver." + queue.encode(),
            message,
            {
                **_whereabouts(vhost, origin),
                "routing_keys": _routing_keys(message),
                "redelivered": _signed(int(redelivered)),
            },
        )

    def _trace(self, vhost: Vhost, key: bytes, message: Message, more: dict[str, object]) -> None:
        try:
            properties = read_properties(message.header, raw_headers=True)
        except MalformedFieldError:
            properties = {}  # a field table that nobody has read before
        headers = {
            "exchange_name": message.exchange,
            "properties": {name: _typed(value) for name, value in properties.items()},
            "node": self._node_name,
        }
        copy = MadeMessage(
            TRACE_EXCHANGE.encode(), key[:KEY_BYTES_MAX], {**headers, **more}, message.body
        )
        self._publisher.publish(vhost, copy)


def _whereabouts(vhost: Vhost, origin: Origin) -> dict[str, object]:
    return {
        "vhost": vhost.name,
        "connection": origin.connection,
        "channel": _signed(origin.channel),
        "user": origin.user,
    }


def _routing_keys(message: Message) -> list[object]:
    """The key, and those that its sender has added for all to see."""
    more = message.headers.get(CARBON_COPY)
    return [message.routing_key, *(more if isinstance(more, list) else [])]


def _typed(value: Any) -> object:
    return _signed(value) if isinstance(value, int) else value


def _signed(value: int) -> object:
    """An integer of 32 bits, as RabbitMQ's firehose writes them all; larger ones take 64."""
    if INT32_MIN <= value <= INT32_MAX:
        return RawValue(b"I" + struct.pack(">i", value))
    return RawValue(b"l" + struct.pack(">q", value)) if value < 1 << 63 else str(value)
