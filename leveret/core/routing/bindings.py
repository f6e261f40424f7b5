"""One edge of the routing graph: from an exchange to a queue or another exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from leveret.core.erlang_terms import frozen
from leveret.core.filtering.arguments import binding_filter, judgement_steps
from leveret.core.names import resource

if TYPE_CHECKING:
    from collections.abc import Hashable

    from leveret.core.definitions.policies import EffectivePolicy
    from leveret.core.filtering.filters import RecordFilter
    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message
    from leveret.ports.counters import Counters
    from leveret.ports.definitions import BindingDefinition, QueueDefinition
    from leveret.ports.records import BatchBuilder


class QueueLike(Protocol):
    """What routing needs to know of a queue."""

    definition: QueueDefinition
    policy: EffectivePolicy
    owner: object | None  # the connection that an exclusive queue belongs to
    builder: BatchBuilder  # where its records gather
    counters: Counters
    gone: bool  # deleted: bindings that are still there lead nowhere

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
    def dead_letters_waiting(self) -> int:
        """Count of messages that were given up, and that nobody has room for yet."""
        ...

    @property
    def consumer_count(self) -> int:
        """Count of its consumers."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, about."""
        ...


Destination: TypeAlias = "QueueLike | Exchange"


class Binding:
    """A binding with both its ends at hand; equal bindings share an identity, not an object.

    Its `filter` is asked once the exchange's type has chosen the binding for a message, and takes
    `judgement_steps` where SQL is judged (leveret.core.routing.walk). Raises the 406 that arguments
    for a filter deserve which cannot be read.
    """

    __slots__ = ("definition", "destination", "filter", "identity", "judgement_steps", "source")

    def __init__(
        self, definition: BindingDefinition, source: Exchange, destination: Destination
    ) -> None:
        self.definition = definition
        self.source = source
        self.destination = destination
        self.identity = identity(definition)
        self.filter: RecordFilter | None = None
        self.judgement_steps = 0
        if definition.arguments:
            of = resource("exchange", definition.source, definition.vhost)
            self.filter = binding_filter(definition.arguments, of)
            self.judgement_steps = judgement_steps(definition.arguments)

    def lets_through(self, message: Message | None) -> bool:
        """Whether its filter wants a message; without one it wants everything."""
        if self.filter is None:
            return True
        return message is not None and self.filter.matches(message.header)

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
