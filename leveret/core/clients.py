"""Client connections as seen outside `amqp`: counted, listed and filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.core.vhost import Vhost
    from leveret.errors import ConnectionClosingError
    from leveret.ports.counters import Counters
    from leveret.ports.definitions import Arguments

__all__ = [
    "ChannelFacts",
    "ChannelFlows",
    "Client",
    "ClientFacts",
    "ConsumerFacts",
    "Endpoints",
    "Holder",
    "Origin",
]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Both ends of a socket; host `unknown` and port 0 if it is closed."""

    peer_host: str = "unknown"
    peer_port: int = 0
    host: str = "unknown"
    port: int = 0
    is_secure: bool = False  # TLS between this node and its peer

    def __str__(self) -> str:
        """Return the connection's name as RabbitMQ forms it."""
        return f"{self.peer_host}:{self.peer_port} -> {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Properties of one connection at one moment."""

    endpoints: Endpoints
    state: str  # "running", or "blocked" by an alarm
    mechanism: str
    connected_at_ms: int  # since 1970
    channel_count: int
    channel_max: int  # 0 = no limit
    frame_bytes_max: int
    heartbeat_seconds: int  # 0 = none
    client_properties: dict[str, object]


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """Properties of one consumer."""

    tag: str
    queue: str  # in its connection's virtual host
    no_ack: bool
    prefetch: int  # 0 = no limit
    priority: int
    in_flight: int  # deliveries that are not settled
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """Properties of one channel at one moment."""

    number: int
    prefetch: int  # of each consumer started from now on; 0 = no limit
    global_prefetch: int  # shared by all consumers; 0 = no limit
    unacknowledged: int
    unconfirmed: int
    confirms: bool
    transactional: bool
    consumers: tuple[ConsumerFacts, ...]
    counters: Counters


@dataclass(frozen=True, slots=True)
class ChannelFlows:
    """Publish and delivery counters of one channel, by exchange and by queue.

    Keys are names in its connection's virtual host; deleted objects may be included.
    """

    number: int
    published: Mapping[str, Counters]
    handed_out: Mapping[str, Sequence[Counters]]  # by queue, one for each method of delivery


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of one unacknowledged message."""

    channel: int
    delivery_tag: int
    consumer_tag: str | None  # None: delivered by basic.get


class Origin(NamedTuple):
    """Channel that a message came from or was delivered to."""

    connection: str
    channel: int
    user: str


class Client(Protocol):
    """An open client connection: a member of `Broker.connections`."""

    user: str
    vhost: Vhost

    @property
    def channel_count(self) -> int:
        """Number of its open channels."""
        ...

    @property
    def publisher_count(self) -> int:
        """Number of its open channels that have published."""
        ...

    @property
    def counters(self) -> Counters:
        """Traffic counters of its socket."""
        ...

    def describe(self) -> ClientFacts:
        """Return the connection's properties; cheap, without side effects."""
        ...

    def channel_facts(self) -> list[ChannelFacts]:
        """Return its open channels, by number; cheap, without side effects."""
        ...

    def channel_flows(self) -> list[ChannelFlows]:
        """Return the counters of its open channels, by channel number; without side effects."""
        ...

    def holder_of(self, queue: object, offset: int) -> Holder | None:
        """Return the channel that holds a message of a queue.

        Takes time linear in its deliveries.
        """
        ...

    def shut(self, reason: ConnectionClosingError) -> None:
        """Close the connection, and tell its peer why."""
        ...
