"""One edge of the routing graph: from an exchange to a queue or another exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from leveret.core.terms import frozen

if TYPE_CHECKING:
    from collections.abc import Hashable

    from leveret.core.exchange import Exchange
    from leveret.core.policies import EffectivePolicy
    from leveret.ports.definitions import BindingDefinition, QueueDefinition
    from leveret.ports.records import BatchBuilder


class QueueLike(Protocol):
    """What routing needs to know of a queue."""

    definition: QueueDefinition
    policy: EffectivePolicy
    owner: object | None  # the connection that an exclusive queue belongs to
    builder: BatchBuilder  # where its records gather

    @property
    def message_count(self) -> int:
        """Count of messages that are ready."""
        ...

    @property
    def leased_count(self) -> int:
        """Count of messages that are delivered and not yet settled."""
        ...

    @property
    def delayed_count(self) -> int:
        """Count of messages that came back and will be ready later."""
        ...

    @property
    def consumer_count(self) -> int:
        """Count of its consumers."""
        ...


Destination: TypeAlias = "QueueLike | Exchange"


class Binding:
    """A binding with both its ends at hand; equal bindings share an identity, not an object."""

    __slots__ = ("definition", "destination", "identity", "source")

    def __init__(
        self, definition: BindingDefinition, source: Exchange, destination: Destination
    ) -> None:
        self.definition = definition
        self.source = source
        self.destination = destination
        self.identity = identity(definition)

    @property
    def durable(self) -> bool:
        """Whether it outlives the process: both its ends do."""
        return self.source.definition.durable and self.destination.definition.durable

    def __repr__(self) -> str:
        return f"Binding({self.definition!r})"


def identity(definition: BindingDefinition) -> Hashable:
    """Make the key under which equal bindings are one; arguments count."""
    return (
        definition.source,
        definition.destination_type,
        definition.destination,
        definition.routing_key,
        frozen(definition.arguments),
    )
