"""Firehose: a copy of every message that enters or leaves a traced virtual host.

The copies go to the exchange `amq.rabbitmq.trace` of the virtual host, with the keys
`publish.EXCHANGE` and `deliver.QUEUE`; their headers describe the message, with RabbitMQ's names
and types. Tracing is off after a restart, as in RabbitMQ, since it costs a message per message.

Called by channels while `Vhost.traced` is set. Deliveries of the copies are not traced.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from leveret.core.routing.message import OPEN_COPIES, MadeMessage
from leveret.core.topology.predeclared import TRACE_EXCHANGE
from leveret.ports.contents import decode_properties
from leveret.ports.fields import INT32_MAX, INT32_MIN
from leveret.ports.tables import MalformedFieldError, RawValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.clients import Origin
    from leveret.core.internal_publisher import InternalPublisher
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost

__all__ = ["Tracer"]

KEY_BYTES_MAX = 255  # a prefix and a name can exceed a short string


class Tracer:
    """Publisher of the copies, for a node's traced virtual hosts."""

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
        """Trace a client's message that was routed to these queues by these keys."""
        self._trace(
            vhost,
            b"publish." + message.exchange,
            message,
            {**_whereabouts(vhost, origin), "routing_keys": keys, "routed_queues": queues},
        )

    def delivered(
        self, vhost: Vhost, message: Message, queue: str, origin: Origin, *, redelivered: bool
    ) -> None:
        """Trace a delivery to a client: to a consumer, or for basic.get."""
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
            properties = decode_properties(message.header, raw_headers=True)
        except MalformedFieldError:
            properties = {}  # malformed: clients' tables are not checked before
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
    """Return the routing key, and those of the header CC."""
    more = message.headers.get(OPEN_COPIES)
    return [message.routing_key, *(more if isinstance(more, list) else [])]


def _typed(value: Any) -> object:
    return _signed(value) if isinstance(value, int) else value


def _signed(value: int) -> object:
    """Encode an integer in 32 bits, as RabbitMQ's firehose does; larger ones in 64."""
    if INT32_MIN <= value <= INT32_MAX:
        return RawValue(b"I" + struct.pack(">i", value))
    return RawValue(b"l" + struct.pack(">q", value)) if value < 1 << 63 else str(value)
