"""Where a node listens."""

from __future__ import annotations

from pydantic import Field

from leveret.config.settings import PORT_MAX, Settings

__all__ = ["AddressSettings"]


class AddressSettings(Settings):
    """Hosts and ports, and what comes in by them besides clients."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. Loopback, because guest/guest exists after the first "
        "start; `0.0.0.0` or `::` listens on every interface.",
    )
    port: int = Field(
        5672,
        ge=0,
        le=PORT_MAX,
        description="AMQP port, IANA's number; 0 takes a free one.",
    )
    http_port: int = Field(
        15672,
        ge=0,
        le=PORT_MAX,
        description="Management port, where RabbitMQ's users and tools look; 0 takes a free one.",
    )
    prometheus_port: int = Field(
        15692,
        ge=-1,
        le=PORT_MAX,
        description="Port for Prometheus, where scrapers of RabbitMQ look; 0 takes a free one, -1 "
        "opens none. Nobody is asked for a password there.",
    )
    prometheus_host: str = Field(
        "127.0.0.1",
        description="Address that `prometheus_port` listens on. Loopback whatever `host` is, since "
        "metrics name queues and clients to whoever asks; `0.0.0.0` for scrapers elsewhere.",
    )
    proxy_protocol: bool = Field(
        False,
        description="Whether every AMQP connection begins with a PROXY header, version 1 or 2, of "
        "a load balancer, which is believed: let nobody else reach the port.",
    )
