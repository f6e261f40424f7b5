"""Settings: addresses of the AMQP listener."""

from __future__ import annotations

from pydantic import Field

from leveret.config.settings import PORT_MAX, Settings

__all__ = ["AddressSettings"]


class AddressSettings(Settings):
    """Where AMQP clients connect."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. Loopback, because guest/guest exists after the first "
        "start; `0.0.0.0` or `::` listens on every interface. Management has `http_host`.",
    )
    port: int = Field(
        5672,
        ge=0,
        le=PORT_MAX,
        description="AMQP port, IANA's number; 0 takes a free one.",
    )
    proxy_protocol: bool = Field(
        False,
        description="Whether every AMQP connection begins with a PROXY header, version 1 or 2, of "
        "a load balancer. The header is trusted: let only load balancers reach the port.",
    )
