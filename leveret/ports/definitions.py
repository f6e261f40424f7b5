"""What a broker has been told to keep: the definitions that outlive a process.

Values only: `core` makes them, a `MetadataStore` keeps them, management shows and exports them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

# A field table: str, int (some are a WireInteger), float, bool, bytes, bytearray, None, Decimal,
# datetime, list, dict.
Arguments: TypeAlias = dict[str, Any]

# A JSON value: what people write in policies and parameters.
Json: TypeAlias = Any

# Highest counts by RabbitMQ's name of the limit (`max-queues`); absent or negative: no limit.
Limits: TypeAlias = dict[str, int]


@dataclass(frozen=True, slots=True)
class VhostDefinition:
    """A virtual host: a namespace of exchanges, queues, bindings and permissions.

    With `creates_queues` a message to the default exchange creates the queue that its key names.
    """

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = "classic"
    limits: Limits = field(default_factory=dict)
    protected_from_deletion: bool = False
    creates_queues: bool = False


@dataclass(frozen=True, slots=True)
class UserDefinition:
    """A user. `password_hash` is a PHC string (`$argon2id$…`) or empty: no password logs in."""

    name: str
    password_hash: str = ""
    tags: tuple[str, ...] = ()
    limits: Limits = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PermissionDefinition:
    """Three regular expressions over resource names; an empty one matches nothing."""

    vhost: str
    user: str
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class TopicPermissionDefinition:
    """Two regular expressions over the routing keys of one topic exchange."""

    vhost: str
    user: str
    exchange: str
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class PolicyDefinition:
    """Settings for all queues and exchanges whose names match a regular expression.

    An `operator` policy bounds what other policies may say.
    """

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Json]
    priority: int = 0
    apply_to: str = "all"
    operator: bool = False


@dataclass(frozen=True, slots=True)
class ParameterDefinition:
    """A value that a `component` (shovel, federation-upstream) looks up in a virtual host."""

    vhost: str
    component: str
    name: str
    value: Json


@dataclass(frozen=True, slots=True)
class GlobalParameterDefinition:
    """A value for the whole node."""

    name: str
    value: Json


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    """A durable exchange (transient ones never reach a store)."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


class Paused(StrEnum):
    """What of a queue an operator has stopped."""

    NOTHING = ""
    DELIVERIES = "deliveries"  # nobody is handed a message
    ALL = "all"  # and none is taken


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """A queue. `exclusive` ones and transient ones never reach a store.

    `incarnation` tells a queue from an earlier one of the same name; its log's directory carries
    it, and the name that the queue was declared with: `log_name`, where that was another one.
    `aliases` are names that it had, under which clients still reach it. `created_by` is the user
    that declared it and `created_ms` when, in milliseconds since 1970; empty and 0: nobody knows.
    """

    vhost: str
    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    incarnation: str = ""
    log_name: str = ""
    aliases: tuple[str, ...] = ()
    paused: Paused = Paused.NOTHING
    created_ms: int = 0
    created_by: str = ""

    @property
    def topic(self) -> str:
        """The name that its logs have for as long as it lives."""
        return self.log_name or self.name


@dataclass(frozen=True, slots=True)
class BindingDefinition:
    """A binding from an exchange to a queue or to an exchange (`destination_type`)."""

    vhost: str
    source: str
    destination: str
    destination_type: str  # "queue" or "exchange"
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)


Definition: TypeAlias = (
    VhostDefinition
    | UserDefinition
    | PermissionDefinition
    | TopicPermissionDefinition
    | PolicyDefinition
    | ParameterDefinition
    | GlobalParameterDefinition
    | ExchangeDefinition
    | QueueDefinition
    | BindingDefinition
)


@dataclass(slots=True)
class Definitions:
    """Everything a store holds, in the order in which it can be rebuilt."""

    vhosts: list[VhostDefinition] = field(default_factory=list)
    users: list[UserDefinition] = field(default_factory=list)
    permissions: list[PermissionDefinition] = field(default_factory=list)
    topic_permissions: list[TopicPermissionDefinition] = field(default_factory=list)
    parameters: list[ParameterDefinition] = field(default_factory=list)
    global_parameters: list[GlobalParameterDefinition] = field(default_factory=list)
    policies: list[PolicyDefinition] = field(default_factory=list)
    exchanges: list[ExchangeDefinition] = field(default_factory=list)
    queues: list[QueueDefinition] = field(default_factory=list)
    bindings: list[BindingDefinition] = field(default_factory=list)
