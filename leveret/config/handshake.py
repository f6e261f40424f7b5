"""Settings: the handshake, its offers and limits."""

from __future__ import annotations

from pydantic import Field

from leveret.config.settings import MIB, Settings

__all__ = ["PRODUCT", "PRODUCT_VERSION", "HandshakeSettings"]

# Whose behaviour clients may count on: docs/decisions/0037. Our own version stands beside it.
PRODUCT = "RabbitMQ"
PRODUCT_VERSION = "3.13.7"


class HandshakeSettings(Settings):
    """Server properties, negotiated limits and time-outs of the connection handshake."""

    product: str = Field(
        PRODUCT,
        description="Product name in connection.start and the HTTP API. Clients switch features "
        "on for this one only: kombu and Celery change a prefetch while they run, others use "
        "confirms.",
    )
    version: str = Field(
        PRODUCT_VERSION,
        description="Product version in the same places. kombu does not change a prefetch of "
        "versions from 4.0 on; Leveret's own version is sent as leveret_version.",
    )
    cluster_name: str = Field("leveret", description="Cluster name in connection.start.")

    frame_max: int = Field(
        131_072,
        ge=4096,
        le=16 * MIB,
        description="Bytes of the largest frame offered in connection.tune: RabbitMQ's number. The "
        "specification demands that 4096 be accepted, and amqplib before 0.10.7 insists on it.",
    )
    initial_frame_max: int = Field(
        8192,
        ge=4096,
        le=1 * MIB,
        description="Bytes of the largest frame before login: RabbitMQ's number. A login with a "
        "token must fit, and an unauthenticated client can make the node hold that much.",
    )
    client_properties_max: int = Field(
        64,
        ge=1,
        le=1024,
        description="Client properties kept per connection, for as long as it is open: ordinary "
        "clients send ten.",
    )
    handshakes_max: int = Field(
        4096,
        ge=1,
        description="Connections that may be between their first byte and connection.open, some "
        "14 kB each: further ones are queued, round-robin over addresses.",
    )
    handshakes_per_address_max: int = Field(
        1024,
        ge=1,
        description="The same for one address (for IPv6, one site): silent clients at one address "
        "do not block others, and a load balancer's fleet connects at a thousand a second.",
    )
    handshakes_waiting_max: int = Field(
        8192,
        ge=1,
        description="Sockets that may wait for their handshake, some 8 kB each. Beyond that the "
        "last one of the address with the most is closed.",
    )
    channel_max: int = Field(
        2047,
        ge=1,
        le=65_535,
        description="Channels of one connection: RabbitMQ's number. A client with more leaks them.",
    )
    heartbeat_seconds: int = Field(
        60,
        ge=0,
        le=65_535,
        description="Offered heartbeat interval in seconds; 0 offers none. Short enough for the "
        "idle timeouts of common load balancers.",
    )
    handshake_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds from accept to connection.open: an unauthenticated socket must not "
        "hold a connection slot for long.",
    )
