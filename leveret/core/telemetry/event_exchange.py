"""Events of a broker as messages: exchange `amq.rabbitmq.event`.

A field table becomes a list of Erlang terms, as in RabbitMQ. Two headers are added:
`timestamp_in_ms`, and `user_who_performed_action` with the name that `acting_as` has set, unless
the event has none (see UNATTRIBUTED).

While no queue is bound to the exchange, events are not built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leveret.core.erlang_terms import field_type, term
from leveret.core.events import INTERNAL_USER, actor
from leveret.core.routing.message import MadeMessage
from leveret.core.topology.predeclared import EVENT_EXCHANGE, EVENT_VHOST
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from leveret.core.events import EventHeaders
    from leveret.core.internal_publisher import InternalPublisher
    from leveret.core.statistics.statistics import Churn
    from leveret.core.vhost import Vhost

__all__ = ["Events"]

FIELD_TABLES = {"arguments", "client_properties"}
UNATTRIBUTED = {
    "connection.closed",
    "user.authentication.success",
    "user.authentication.failure",
    "alarm.set",
    "alarm.cleared",
}


# Events of definitions, by the beginnings of their keys: the node that changes them tells of it.
OF_DEFINITIONS = (
    "vhost.",
    "user.created",
    "user.deleted",
    "user.password.",
    "user.tags.",
    "permission.",
    "topic.permission.",
    "parameter.",
    "policy.",
    "operator.policy.",
    "exchange.",
    "queue.",
    "binding.",
)


class Events:
    """Publisher of events. `vhosts` are the broker's, by name; `churn` counts events.

    Nothing is told of definitions while the node `follows_definitions` of another one.
    """

    def __init__(
        self, vhosts: Mapping[str, Vhost], publisher: InternalPublisher, churn: Churn
    ) -> None:
        self.churn = churn
        self.follows_definitions = False
        self._vhosts = vhosts
        self._publisher = publisher

    @property
    def wanted(self) -> bool:
        """Whether a queue is bound to the event exchange: check before building costly events."""
        vhost = self._vhosts.get(EVENT_VHOST)
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        return exchange is not None and bool(exchange.outgoing)

    def emit(self, key: str, headers: EventHeaders) -> None:
        """Publish one event, after the fact."""
        if self.follows_definitions and key.startswith(OF_DEFINITIONS):
            return
        self.churn.happened(key)
        if not self.wanted:
            return
        now = self._publisher.wall_ms()
        told = {name: _told(name, value) for name, value in headers.items()}
        if key not in UNATTRIBUTED:
            told.setdefault("user_who_performed_action", actor.get() or INTERNAL_USER)
        told["timestamp_in_ms"] = now
        message = MadeMessage(
            EVENT_EXCHANGE.encode(),
            key.encode(),
            told,
            persistent=True,
            timestamp_seconds=now // 1000,
        )
        self._publisher.publish(self._vhosts[EVENT_VHOST], message)


def _told(name: str, value: Any) -> Any:
    """Return a header's value in a form that a field table can hold."""
    if name in FIELD_TABLES and isinstance(value, Mapping):
        return [f"{{{term(key)},{field_type(v)},{term(v)}}}" for key, v in value.items()]
    try:
        encode_table({name: value})
    except ValueError:  # JSON numbers and names beyond a field table's limits
        return term(value)
    return "" if value is None else value
