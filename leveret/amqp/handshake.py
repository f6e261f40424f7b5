"""The handshake as a table of states, without sockets: its methods and their checks.

HEADER --protocol header--> START --start-ok--> TUNE --tune-ok--> OPEN --open--> RUNNING
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pamqp import commands

from leveret import __version__
from leveret.errors import ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.config import HandshakeSettings

# 0-9-1's own, and what clients of 0-9 send.
PROTOCOL_HEADERS = (b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09")
PROTOCOL_HEADER = PROTOCOL_HEADERS[0]
# The specification's smallest frame_max; RabbitMQ 4.1 asks for 8192 and cuts off older clients.
FRAME_MAX_MIN = 4096

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


class ConnectionState(Enum):
    """State of a connection, in the words of the reply texts.

    EXPECTED lists the methods that the states of the handshake accept.
    """

    HEADER = "handshake"
    START = "starting"
    TUNE = "tuning"
    OPEN = "opening"
    RUNNING = "running"
    CLOSING = "closing"  # we have sent connection.close
    CLOSED = "closed"


# Asked for several times with each read: CPython 3.11 calls a function to find a member by name.
HEADER, RUNNING, CLOSED = ConnectionState.HEADER, ConnectionState.RUNNING, ConnectionState.CLOSED

EXPECTED = {
    ConnectionState.START: commands.Connection.StartOk,
    ConnectionState.TUNE: commands.Connection.TuneOk,
    ConnectionState.OPEN: commands.Connection.Open,
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """Values negotiated by tune and tune-ok; 0 means no limit, for heartbeats none."""

    channel_max: int
    frame_max: int
    heartbeat_seconds: int


def start(
    settings: HandshakeSettings,
    platform: str,
    mechanisms: Iterable[str],
    cluster_name: str | None = None,
) -> commands.Connection.Start:
    """Return connection.start with the server's properties."""
    return commands.Connection.Start(
        server_properties={
            "capabilities": dict.fromkeys(CAPABILITIES, True),
            "cluster_name": cluster_name or settings.cluster_name,
            "copyright": "Copyright the Leveret authors",
            "information": "Licensed under the Apache License 2.0",
            "platform": platform,
            "product": settings.product,
            "version": settings.version,
            "leveret_version": __version__,
        },
        mechanisms=" ".join(mechanisms),
        locales="en_US",
    )


def tune(settings: HandshakeSettings) -> commands.Connection.Tune:
    """Return connection.tune with the server's limits."""
    return commands.Connection.Tune(
        settings.channel_max, settings.frame_max, settings.heartbeat_seconds
    )


def negotiate(settings: HandshakeSettings, answer: commands.Connection.TuneOk) -> Tuned:
    """Return the limits chosen in tune-ok. Raises ConnectionClosingError 530 outside the offer."""
    _check("frame_max", answer.frame_max, FRAME_MAX_MIN, settings.frame_max)
    _check("channel_max", answer.channel_max, 1, settings.channel_max)
    return Tuned(answer.channel_max, answer.frame_max, answer.heartbeat)


def _check(field: str, value: int, minimum: int, maximum: int) -> None:
    unlimited = value == 0
    if not unlimited and value < minimum:
        raise ConnectionClosingError(
            530,
            f"negotiated {field} = {value} is lower than the minimum allowed value ({minimum})",
        )
    if unlimited or value > maximum:
        no_limit = " (no limit)" if unlimited and field == "channel_max" else ""
        raise ConnectionClosingError(
            530,
            f"negotiated {field} = {value}{no_limit} is higher than the maximum allowed value "
            f"({maximum})",
        )


def client_capabilities(properties: dict[str, Any] | None) -> frozenset[str]:
    """Return the capabilities that the client has set to true."""
    capabilities = (properties or {}).get("capabilities")
    if not isinstance(capabilities, dict):
        return frozenset()
    return frozenset(name for name, value in capabilities.items() if value is True)
