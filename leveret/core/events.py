"""Events as the code that changes something announces them.

It calls `emit(key, headers)` once the change is complete:

    events.emit("policy.set", {"name": name, "vhost": vhost, "priority": 0, "definition": {…}})

Headers are named as by RabbitMQ's event exchange. Values are text, numbers, booleans, lists and
dictionaries of these, and None for absent values (empty text on the wire). `arguments` and
`client_properties` are field tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from leveret.ports.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition

__all__ = [
    "COMMAND_LINE_USER",
    "INTERNAL_USER",
    "Emit",
    "EventHeaders",
    "acting_as",
    "actor",
    "address_term",
    "binding_headers",
    "exchange_headers",
    "no_event",
    "queue_headers",
]

INTERNAL_USER = "rmq-internal"  # for actions of the broker itself, as named by RabbitMQ
COMMAND_LINE_USER = "rmq-cli"

EventHeaders: TypeAlias = Mapping[str, object]
Emit: TypeAlias = Callable[[str, EventHeaders], None]

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


def no_event(_key: str, _headers: EventHeaders) -> None:
    """Publish nothing: the `Emit` used without a broker, for a stopped node's files or in tests."""


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
