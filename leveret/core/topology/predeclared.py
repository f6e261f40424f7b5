"""Predeclared exchanges of a virtual host: the broker's own, which are not stored."""

from __future__ import annotations

from typing import Final

from leveret.errors import ChannelError
from leveret.ports.definitions import ExchangeDefinition

__all__ = [
    "DEFAULT_EXCHANGE",
    "EVENT_EXCHANGE",
    "EVENT_VHOST",
    "LOG_EXCHANGE",
    "TRACE_EXCHANGE",
    "check_not_default",
    "predeclared",
]

DEFAULT_EXCHANGE: Final = ""
EVENT_EXCHANGE: Final = "amq.rabbitmq.event"
EVENT_VHOST: Final = "/"  # RabbitMQ's default for it, too
LOG_EXCHANGE: Final = "amq.rabbitmq.log"
TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
EVERYWHERE: Final = {
    DEFAULT_EXCHANGE: "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    TRACE_EXCHANGE: "topic",
}
INTERNAL: Final = {TRACE_EXCHANGE, EVENT_EXCHANGE, LOG_EXCHANGE}  # only the broker publishes there


def predeclared(vhost: str, *, log_exchange: bool) -> dict[str, ExchangeDefinition]:
    """Return the exchanges of a new virtual host by name; `log_exchange` adds that for log lines.

    The exchanges for events and log lines exist in one virtual host only.
    """
    types = dict(EVERYWHERE)
    if vhost == EVENT_VHOST:
        types[EVENT_EXCHANGE] = "topic"
        if log_exchange:
            types[LOG_EXCHANGE] = "topic"
    return {
        name: ExchangeDefinition(vhost, name, type_, internal=name in INTERNAL)
        for name, type_ in types.items()
    }


def check_not_default(name: str) -> None:
    """Raise 403 for operations on the default exchange."""
    if name == DEFAULT_EXCHANGE:
        raise ChannelError(403, "operation not permitted on the default exchange")
