"""Changes that a shovel makes to a message: exchange, routing key, properties, headers.

Headers of RabbitMQ's shovel: `x-shovelled`, an array with a table for each shovel that a message
has passed, the last one first, and `x-shovelled-timestamp`, in seconds since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.ports.contents import decode_properties, encode_properties
from leveret.ports.tables import RawValue, Timestamp, decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.features.shovels.parameters import ShovelDefinition

__all__ = ["MessageRewriter"]

ROUTES: Final = "x-shovelled"
TIMESTAMP: Final = "x-shovelled-timestamp"


class MessageRewriter:
    """Rewrites the messages of one shovel between two URIs, which have no credentials."""

    def __init__(
        self, shovel: ShovelDefinition, cluster_name: str, source_uri: str, destination_uri: str
    ) -> None:
        self._properties: Mapping[str, Any] = {
            name: Timestamp(value) if name == "timestamp" else value
            for name, value in shovel.properties.items()
        }
        self._adds_timestamp = shovel.adds_timestamp_header
        self._route: dict[str, str] | None = None
        if shovel.adds_forward_headers:
            source, destination = shovel.source.facts, shovel.destination.facts
            self._route = {
                "shovelled-by": cluster_name,
                "shovel-type": "dynamic",
                "shovel-name": shovel.name,
                "shovel-vhost": shovel.vhost,
                "src-uri": source_uri,
                "dest-uri": destination_uri,
                **{f"src-{_key(name)}": value for name, value in source.items()},
                **{f"dest-{_key(name)}": value for name, value in destination.items()},
            }
        self._queue = shovel.destination.queue
        self._exchange = shovel.destination.exchange
        self._key = shovel.destination.key

    def address(self, exchange: str, routing_key: str) -> tuple[str, str]:
        """Return the exchange and the routing key for a message that came with these."""
        if self._queue is not None:
            return "", self._queue
        return (
            exchange if self._exchange is None else self._exchange,
            routing_key if self._key is None else self._key,
        )

    def header(self, header: bytes, body_bytes: int, now_ms: int) -> bytes:
        """Return the content header for one that came. Raises MalformedFieldError, ValueError."""
        if not self._properties and self._route is None and not self._adds_timestamp:
            return header
        properties = decode_properties(header, raw_headers=True)
        properties |= self._properties
        headers: dict[str, Any] = dict(properties.get("headers") or {})
        if self._route is not None:
            headers[ROUTES] = [self._route, *_earlier(headers.get(ROUTES))]
        if self._adds_timestamp:
            headers[TIMESTAMP] = now_ms // 1000
        if headers:
            properties["headers"] = headers
        return encode_properties(properties, body_bytes)


def _key(fact: str) -> str:
    return fact.replace("_", "-")


def _earlier(value: RawValue | None) -> list[Any]:
    """Return the tables of the shovels that a message has passed before; none for another value."""
    found = None if value is None else decode_value(value)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
