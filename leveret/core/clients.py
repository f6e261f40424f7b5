"""A client's connection as the rooms beside `amqp` see it: to be counted, shown and filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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
]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Both ends of a socket; host `unknown` and port 0 where it is gone."""

    peer_host: str = "unknown"
    peer_port: int = 0
    host: str = "unknown"
    port: int = 0
    is_secure: bool = False  # TLS between this node and whoever connected to it

    def __str__(self) -> str:
        """The name RabbitMQ gives a connection."""
        return f"{self.peer_host}:{self.peer_port} -> {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What there is to say about one connection at one moment."""

    endpoints: Endpoints
    state: str  # "running", or "blocked" while an alarm holds it
    mechanism: str
    connected_at_ms: int  # since 1970
    channel_count: int
    channel_max: int  # 0 = no limit
    frame_bytes_max: int
    heartbeat_seconds: int  # 0 = none
    client_properties: dict[str, object]


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """What there is to say about one consumer."""

    tag: str
    queue: str  # in its connection's virtual host
    no_ack: bool
    prefetch: int  # 0 = no limit
    priority: int
    in_flight: int  # deliveries that are not settled
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """What there is to say about one channel at one moment."""

    number: int
    prefetch: int  # of each consumer that is started from now on; 0 = no limit
    global_prefetch: int  # shared by all of them; 0 = no limit
    unacknowledged: int
    unconfirmed: int
    confirms: bool
    transactional: bool
    consumers: tuple[ConsumerFacts, ...]
    counters: Counters


@dataclass(frozen=True, slots=True)
class ChannelFlows:
    """What one channel has published where, and what it was handed out of which queue.

    By names in its connection's virtual host; of what was deleted, some may be there.
    """

    number: int
    published: Mapping[str, Counters]
    handed_out: Mapping[str, Sequence[Counters]]  # for each way in which it was


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has one message, and has not settled it."""

    channel: int
    delivery_tag: int
    consumer_tag: str | None  # None: it was got, with basic.get


class Client(Protocol):
    """A connection that has been opened: a member of `Broker.connections`."""

    user: str
    vhost: Vhost

    @property
    def channel_count(self) -> int:
        """Count of its open channels."""
        ...

    @property
    def publisher_count(self) -> int:
        """Count of its open channels on which something was published."""
        ...

    @property
    def counters(self) -> Counters:
        """What has come and gone on its socket."""
        ...

    def describe(self) -> ClientFacts:
        """Cheap, and without effect."""
        ...

    def channel_facts(self) -> list[ChannelFacts]:
        """Its open channels, by their numbers; cheap, and without effect."""
        ...

    def channel_flows(self) -> list[ChannelFlows]:
        """What went through its open channels, by their numbers; without effect."""
        ...

    def holder_of(self, queue: object, offset: int) -> Holder | None:
        """Which of its channels has a message of a queue. Takes longer the more it has."""
        ...

    def shut(self, reason: ConnectionClosingError) -> None:
        """Close it, and tell its peer why."""
        ...
