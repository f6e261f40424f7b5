"""Definitions that outlive a process: virtual hosts, users, policies, exchanges, queues, bindings.

Values only: `core` makes them, a `MetadataStore` keeps them, management shows and exports them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

# A field table: str, int (some are a WireInteger), float, bool, bytes, bytearray, None, Decimal,
# datetime, list, dict.
Arguments: TypeAlias = dict[str, Any]

# A JSON value, as written in policies and parameters.
Json: TypeAlias = Any

# Highest counts by RabbitMQ's name of the limit (`max-queues`); absent or negative: no limit.
Limits: TypeAlias = dict[str, int]

# Incarnation of a node's first virtual host, and of all of releases before; others have a suffix.
INTERNAL: Final = "internal"


def is_internal(incarnation: str) -> bool:
    """Whether it is a virtual host's, and no queue's or group's: those are random."""
    return incarnation == INTERNAL or incarnation.startswith(f"{INTERNAL}-")


@dataclass(frozen=True, slots=True)
class VhostDefinition:
    """A virtual host: a namespace of exchanges, queues, bindings and permissions.

    With `creates_queues` a message to the default exchange creates the queue named by its routing
    key. `incarnation` distinguishes its internal topics from those of an earlier virtual host of
    the same name, as it does queues.
    """

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = "classic"
    limits: Limits = field(default_factory=dict)
    protected_from_deletion: bool = False
    creates_queues: bool = False
    incarnation: str = INTERNAL


@dataclass(frozen=True, slots=True)
class UserDefinition:
    """A user.

    `password_hash` is a PHC string (`$argon2id$…`); if empty, no password is accepted.
    """

    name: str
    password_hash: str = ""
    tags: tuple[str, ...] = ()
    limits: Limits = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PermissionDefinition:
    """Permissions of a user: three regular expressions over resource names.

    An empty expression matches nothing.
    """

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

    An `operator` policy limits the values of other policies.
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
    """Runtime parameter of a `component` (shovel, federation-upstream) in a virtual host."""

    vhost: str
    component: str
    name: str
    value: Json


@dataclass(frozen=True, slots=True)
class GlobalParameterDefinition:
    """Runtime parameter of the whole node."""

    name: str
    value: Json


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    """A durable exchange; transient ones are never stored."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


class Paused(StrEnum):
    """Operations on a queue that an operator has paused."""

    NOTHING = ""
    DELIVERIES = "deliveries"  # messages are not delivered
    ALL = "all"  # and not accepted either


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Partitions of a queue by number. A number is never used again once its partition is gone.

    Publishes go to the `active` ones. The `retired` ones are read until nothing is left in them.
    `made` is how many the queue has had, which is the next number.
    """

    active: tuple[int, ...]
    retired: tuple[int, ...] = ()
    made: int = 0

    @property
    def present(self) -> tuple[int, ...]:
        """Numbers of all partitions, ascending."""
        return tuple(sorted((*self.active, *self.retired)))


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """A queue; only durable, non-exclusive ones are stored.

    `incarnation` distinguishes a queue from an earlier one of the same name. The directory of its
    log is named after it and the name at declaration: `log_name` if that was a different one.
    `aliases` are former names under which clients still reach the queue. `created_by` is the user
    that declared it, `created_ms` the time in ms since 1970; empty and 0 if unknown. `layout` is
    None as long as the queue has the partitions that its arguments say.
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
    layout: PartitionLayout | None = None

    @property
    def topic(self) -> str:
        """Name used for the queue's logs; it never changes during the queue's lifetime."""
        return self.log_name or self.name


@dataclass(frozen=True, slots=True)
class GroupDefinition:
    """A consumer group of a queue, which is named by its incarnation: it may be renamed.

    The logs of what the group has read are named after its own `incarnation`.
    """

    vhost: str
    queue: str
    name: str
    incarnation: str
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class BindingDefinition:
    """A binding from an exchange to a queue or an exchange (`destination_type`)."""

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
    | GroupDefinition
    | BindingDefinition
)


@dataclass(slots=True)
class Definitions:
    """All definitions of a store, in the order in which they can be rebuilt."""

    vhosts: list[VhostDefinition] = field(default_factory=list)
    users: list[UserDefinition] = field(default_factory=list)
    permissions: list[PermissionDefinition] = field(default_factory=list)
    topic_permissions: list[TopicPermissionDefinition] = field(default_factory=list)
    parameters: list[ParameterDefinition] = field(default_factory=list)
    global_parameters: list[GlobalParameterDefinition] = field(default_factory=list)
    policies: list[PolicyDefinition] = field(default_factory=list)
    exchanges: list[ExchangeDefinition] = field(default_factory=list)
    queues: list[QueueDefinition] = field(default_factory=list)
    groups: list[GroupDefinition] = field(default_factory=list)
    bindings: list[BindingDefinition] = field(default_factory=list)
