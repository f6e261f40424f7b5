"""What management is told of a connection (leveret.core.clients)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.clients import ClientFacts

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection


def describe(connection: Connection) -> ClientFacts:
    """The facts of an open connection at this moment."""
    tuned = connection.tuned
    return ClientFacts(
        endpoints=connection.link.endpoints,
        state="blocked" if connection.is_held else "running",
        mechanism=connection.mechanism,
        connected_at_ms=connection.connected_at_ms,
        channel_count=connection.channel_count,
        channel_max=tuned.channel_max,
        frame_bytes_max=tuned.frame_max,
        heartbeat_seconds=tuned.heartbeat_seconds,
        client_properties=connection.client_properties,
    )
