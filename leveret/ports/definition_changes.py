"""Changes of exchanges, queues and bindings, as clients ask for them and nodes pass them on.

Values only. Names and arguments are as the client sent them, without surrounding line ends; who
asks has checked permissions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from leveret.ports.definitions import (
    Arguments,
    BindingDefinition,
    Definition,
    Home,
    QueueDefinition,
)

__all__ = [
    "AddBinding",
    "AddQueue",
    "ChangeOutcome",
    "DeclareExchange",
    "DeclareQueue",
    "DefinitionChange",
    "DeleteExchange",
    "DeleteQueue",
    "DropDefinition",
    "KeepDefinition",
    "RemoveBinding",
    "RemoveQueue",
]


class ChangeOutcome(NamedTuple):
    """Outcome of a change: the `name` of a declared queue, how many ready messages were deleted."""

    name: str = ""
    message_count: int = 0


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """An exchange that shall exist, with these properties."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """An exchange that shall be gone; with `if_unused` only one without outgoing bindings."""

    vhost: str
    name: str
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """A queue that shall exist, with these properties.

    A name that `is_server_named` may be one that clients must not choose. `home` is where a queue
    that is exclusive or not durable lives, None on a single node.
    """

    vhost: str
    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    is_server_named: bool = False
    home: Home | None = None


@dataclass(frozen=True, slots=True)
class AddQueue:
    """A queue that shall exist, of whatever properties it is then: one of the broker's own."""

    definition: QueueDefinition


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """A queue that shall be gone, unless a condition is not met."""

    vhost: str
    name: str
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """A queue, of exactly this incarnation, that shall be gone because nobody needs it any more."""

    vhost: str
    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class AddBinding:
    """A binding that shall exist."""

    binding: BindingDefinition


@dataclass(frozen=True, slots=True)
class RemoveBinding:
    """A binding that shall be gone."""

    binding: BindingDefinition


@dataclass(frozen=True, slots=True)
class KeepDefinition:
    """A definition that a node has changed by itself: of a group, or of a queue that it leads."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class DropDefinition:
    """A definition that a node has removed by itself: of a group."""

    definition: Definition


DefinitionChange: TypeAlias = (
    DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | AddQueue
    | DeleteQueue
    | RemoveQueue
    | AddBinding
    | RemoveBinding
    | KeepDefinition
    | DropDefinition
)
