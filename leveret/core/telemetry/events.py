"""Events of a broker as messages: exchange `amq.rabbitmq.event`.

Code that changes something calls `emit(key, headers)` once the change is complete:

    events.emit("policy.set", {"name": name, "vhost": vhost, "priority": 0, "definition": {…}})

Headers are named as by RabbitMQ's event exchange. Values are text, numbers, booleans, lists and
dictionaries of these, and None for absent values (empty text on the wire). `arguments` and
`client_properties` are field tables; they become a list of Erlang terms, as in RabbitMQ. Two
headers are added: `timestamp_in_ms`, and `user_who_performed_action` with the name that `acting_as`
has set, unless the event has none (see UNATTRIBUTED).

While no queue is bound to the exchange, events are not built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING, Any, TypeAlias

from leveret.core.erlang_terms import field_type, term
from leveret.core.routing.message import MadeMessage
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from leveret.core.routing.publishing import InternalPublisher
    from leveret.core.statistics.churn import Churn
    from leveret.core.vhost import Vhost
    from leveret.ports.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition

__all__ = [
    "COMMAND_LINE_USER",
    "EVENT_EXCHANGE",
    "EVENT_VHOST",
    "INTERNAL_USER",
    "Emit",
    "Events",
    "acting_as",
    "actor",
    "address_term",
    "binding_headers",
    "exchange_headers",
    "queue_headers",
    "silent",
]

EVENT_EXCHANGE = "amq.rabbitmq.event"
EVENT_VHOST = "/"  # RabbitMQ's default for it, too
INTERNAL_USER = "rmq-internal"  # for actions of the broker itself, as named by RabbitMQ
COMMAND_LINE_USER = "rmq-cli"
FIELD_TABLES = {"arguments", "client_properties"}
UNATTRIBUTED = {
    "connection.closed",
    "user.authentication.success",
    "user.authentication.failure",
    "alarm.set",
    "alarm.cleared",
}

Headers: TypeAlias = Mapping[str, object]
Emit: TypeAlias = Callable[[str, Headers], None]

# Inherited by tasks that continue the work, so that operations need not pass it along.
actor: ContextVar[str] = ContextVar("actor", default=INTERNAL_USER)


class acting_as:  # noqa: N801  # named for its use: `with acting_as(user)`
    """Attribute events within the block to `user`, also those of tasks started in it."""

    __slots__ = ("_token", "_user")

    def __init__(self, user: str) -> None:
        """Create it; `user` is empty before login."""
        self._user = user

    def __enter__(self) -> None:
        """Set the user."""
        self._token = actor.set(self._user)

    def __exit__(self, *_: object) -> None:
        """Restore the previous user."""
        actor.reset(self._token)


def silent(_key: str, _headers: Headers) -> None:
    """Publish nothing: the `Emit` used without a broker, for a stopped node's files or in tests."""


class Events:
    """Publisher of events. `vhosts` are the broker's, by name; `churn` counts events."""

    def __init__(
        self, vhosts: Mapping[str, Vhost], publisher: InternalPublisher, churn: Churn
    ) -> None:
        self.churn = churn
        self._vhosts = vhosts
        self._publisher = publisher

    @property
    def wanted(self) -> bool:
        """Whether a queue is bound to the event exchange: check before building costly events."""
        vhost = self._vhosts.get(EVENT_VHOST)
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        return exchange is not None and bool(exchange.outgoing)

    def emit(self, key: str, headers: Headers) -> None:
        """Publish one event, after the fact."""
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


def queue_headers(definition: QueueDefinition, owner: object | None) -> dict[str, object]:
    """Return the headers of `queue.created`."""
    return {
        "name": definition.name,
        "vhost": definition.vhost,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "exclusive": definition.exclusive,
        "owner_pid": None if owner is None else str(owner),
        "arguments": definition.arguments,
    }


def exchange_headers(definition: ExchangeDefinition) -> dict[str, object]:
    """Return the headers of `exchange.created`."""
    return {
        "name": definition.name,
        "vhost": definition.vhost,
        "type": definition.type,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "internal": definition.internal,
        "arguments": definition.arguments,
        "policy": None,
    }


def binding_headers(definition: BindingDefinition) -> dict[str, object]:
    """Return the headers of `binding.created` and `binding.deleted`."""
    return {
        "source_name": definition.source,
        "source_kind": "exchange",
        "destination_name": definition.destination,
        "destination_kind": definition.destination_type,
        "routing_key": definition.routing_key,
        "vhost": definition.vhost,
        "arguments": definition.arguments,
    }


def _told(name: str, value: Any) -> Any:
    """Return a header's value in a form that a field table can hold."""
    if name in FIELD_TABLES and isinstance(value, Mapping):
        return [f"{{{term(key)},{field_type(v)},{term(v)}}}" for key, v in value.items()]
    try:
        encode_table({name: value})
    except ValueError:  # JSON numbers and names beyond a field table's limits
        return term(value)
    return "" if value is None else value


def address_term(host: str) -> str:
    """Return an address as RabbitMQ's events show it: the Erlang tuple `{127,0,0,1}`."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return f"{{{','.join(map(str, address.packed))}}}"
    groups = (address.packed[i : i + 2] for i in range(0, 16, 2))
    return f"{{{','.join(str(int.from_bytes(group)) for group in groups)}}}"
