"""A message as the routing graph sees it, for the exchanges that look at more than its key."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from leveret.ports.records import RecordFlag
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from leveret.ports.definitions import Arguments

__all__ = ["MadeMessage", "Message"]

CLASS_BASIC = 60
# Bits of a content header's property flags.
HEADERS_BIT, DELIVERY_MODE_BIT, TIMESTAMP_BIT = 1 << 13, 1 << 12, 1 << 6
DELIVERY_MODE_PERSISTENT = 2


class Message(Protocol):
    """One message. Its content header is read when somebody asks, and only then."""

    @property
    def exchange(self) -> bytes:
        """Name of the exchange it was published to, as on the wire."""
        ...

    @property
    def routing_key(self) -> bytes:
        """The key it was published with, as on the wire."""
        ...

    @property
    def header(self) -> bytes:
        """Its content header's payload."""
        ...

    @property
    def body(self) -> bytes:
        """Its payload."""
        ...

    @property
    def flags(self) -> int:
        """Its RecordFlags."""
        ...

    @property
    def headers(self) -> Arguments:
        """Its headers, empty where it has none."""
        ...

    def property(self, name: str) -> Any:
        """One of its properties by the name it has in AMQP (`message_id`); None where absent."""
        ...


@dataclass(frozen=True, slots=True)
class MadeMessage:
    """A message of the broker's own making: all it says stands in its headers and its body."""

    exchange: bytes
    routing_key: bytes
    headers: Arguments
    body: bytes = b""
    persistent: bool = False
    timestamp_seconds: int | None = None

    @property
    def header(self) -> bytes:
        """The content header, built anew for each call."""
        bits, fields = HEADERS_BIT, encode_table(self.headers)
        if self.persistent:
            bits |= DELIVERY_MODE_BIT
            fields += bytes((DELIVERY_MODE_PERSISTENT,))
        if self.timestamp_seconds is not None:
            bits |= TIMESTAMP_BIT
            fields += struct.pack(">Q", self.timestamp_seconds)
        return struct.pack(">HHQH", CLASS_BASIC, 0, len(self.body), bits) + fields

    @property
    def flags(self) -> int:
        """See Message."""
        return RecordFlag.HAS_HEADERS | (RecordFlag.PERSISTENT if self.persistent else 0)

    def property(self, name: str) -> Any:
        """See Message."""
        return {"timestamp": self.timestamp_seconds, "headers": self.headers}.get(name)
