"""Messages as the routing graph sees them, for routers that need more than the routing key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from leveret.ports.contents import decode_properties, encode_properties, headers_table
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_raw_table

if TYPE_CHECKING:
    from leveret.ports.definitions import Arguments
    from leveret.ports.tables import RawValue

__all__ = [
    "BLIND_COPIES",
    "OPEN_COPIES",
    "MadeMessage",
    "Message",
    "StoredMessage",
    "raw_headers",
]

OPEN_COPIES, BLIND_COPIES = "CC", "BCC"  # headers with more routing keys
DELIVERY_MODE_PERSISTENT = 2


class Message(Protocol):
    """One message. Its content header is parsed on demand."""

    @property
    def exchange(self) -> bytes:
        """Name of the exchange it was published to, as on the wire."""
        ...

    @property
    def routing_key(self) -> bytes:
        """Routing key it was published with, as on the wire."""
        ...

    @property
    def header(self) -> bytes:
        """Payload of its content header."""
        ...

    @property
    def body(self) -> bytes:
        """Payload of the message."""
        ...

    @property
    def flags(self) -> int:
        """RecordFlag bits of the message."""
        ...

    @property
    def headers(self) -> Arguments:
        """Headers of the message, empty if it has none."""
        ...

    def property(self, name: str) -> Any:
        """Return one property by its AMQP name (`message_id`); None if absent."""
        ...


@dataclass(frozen=True, slots=True)
class MadeMessage:
    """A message made by the broker."""

    exchange: bytes
    routing_key: bytes
    headers: Arguments
    body: bytes = b""
    persistent: bool = False
    timestamp_seconds: int | None = None
    content_type: str = ""
    correlation_id: str = ""

    @property
    def header(self) -> bytes:
        """Content header, built anew for each call."""
        properties = {
            "content_type": self.content_type or None,
            "headers": self.headers,
            "delivery_mode": DELIVERY_MODE_PERSISTENT if self.persistent else None,
            "correlation_id": self.correlation_id or None,
            "timestamp": self.timestamp_seconds,
        }
        return encode_properties(properties, len(self.body))

    @property
    def flags(self) -> int:
        """RecordFlag bits; PUT_BACK, as the broker's messages are never duplicates."""
        own = RecordFlag.HAS_HEADERS | RecordFlag.PUT_BACK
        return own | (RecordFlag.PERSISTENT if self.persistent else 0)

    def property(self, name: str) -> Any:
        """Return one property by its AMQP name; None if absent."""
        return decode_properties(self.header).get(name)


class StoredMessage:
    """A message as stored in a queue. Malformed properties count as absent."""

    __slots__ = ("_properties", "body", "exchange", "flags", "header", "routing_key")

    def __init__(
        self, exchange: bytes, routing_key: bytes, header: bytes, body: bytes, flags: int
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.header = header
        self.body = body
        self.flags = flags
        self._properties: dict[str, Any] | None = None

    @property
    def headers(self) -> Arguments:
        """Headers of the message, empty if it has none."""
        return self.property("headers") or {}

    @property
    def open_headers(self) -> Arguments:
        """Headers to show and to search: without BCC."""
        headers = self.headers
        if not self.flags & RecordFlag.BLIND_COPIED:
            return headers
        return {name: value for name, value in headers.items() if name != BLIND_COPIES}

    @property
    def properties(self) -> dict[str, Any]:
        """All properties by name."""
        if self._properties is None:
            try:
                self._properties = decode_properties(self.header)
            except MalformedFieldError:
                self._properties = {}
        return self._properties

    def property(self, name: str) -> Any:
        """Return one property by its AMQP name; None if absent."""
        return self.properties.get(name)


def raw_headers(header: bytes) -> dict[str, RawValue]:
    """Return the headers in a stored message's content header, undecoded; empty if malformed."""
    try:
        return decode_raw_table(headers_table(header))
    except MalformedFieldError:
        return {}  # unlikely, since they were valid at publish
