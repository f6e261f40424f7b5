"""Edges of the routing graph: bindings from an exchange to a queue or another exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from leveret.core.erlang_terms import frozen
from leveret.core.names import resource
from leveret.features.filters.rules import binding_filter, judgement_steps

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.ports.counters import Counters
    from leveret.ports.definitions import BindingDefinition, QueueDefinition
    from leveret.ports.partitioner import RecordTarget


class QueueLike(Protocol):
    """Queue as routing and statistics see it."""

    definition: QueueDefinition
    policy: EffectivePolicy
    owner: object | None  # the connection that an exclusive queue belongs to
    counters: Counters
    gone: bool  # deleted: remaining bindings have no effect

    @property
    def is_led_here(self) -> bool:
        """Whether this node leads all its partitions."""
        ...

    @property
    def builder(self) -> RecordTarget:
        """Builder of its records, or what chooses one for each."""
        ...

    @property
    def partitions(self) -> Sequence[Any]:
        """Its partitions that are led here, each with a log; most queues are their own only one."""
        ...

    @property
    def places(self) -> Sequence[Any]:
        """Its partitions, and what stands here for those that other nodes lead."""
        ...

    @property
    def message_count(self) -> int:
        """Number of ready messages."""
        ...

    @property
    def leased_count(self) -> int:
        """Number of messages delivered and not yet settled."""
        ...

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed."""
        ...

    @property
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them."""
        ...

    @property
    def consumer_count(self) -> int:
        """Number of its consumers."""
        ...

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes."""
        ...


Destination: TypeAlias = "QueueLike | Exchange"


class Binding:
    """A binding with its two ends; equal bindings share an identity, not an object.

    Its `filter` is applied after the exchange type has matched it, and costs `judgement_steps` if
    SQL is evaluated (leveret.core.topology.walk). Raises ChannelError 406 for invalid filter
    arguments.
    """

    __slots__ = ("definition", "destination", "filter", "identity", "judgement_steps", "source")

    def __init__(
        self, definition: BindingDefinition, source: Exchange, destination: Destination
    ) -> None:
        self.definition = definition
        self.source = source
        self.destination = destination
        self.identity = identity(definition)
        arguments = definition.arguments
        of = resource("exchange", definition.source, definition.vhost) if arguments else ""
        self.filter = binding_filter(arguments, of) if arguments else None
        self.judgement_steps = judgement_steps(arguments) if arguments else 0

    def lets_through(self, message: Message | None) -> bool:
        """Whether its filter accepts a message; always without a filter."""
        if self.filter is None:
            return True
        return message is not None and self.filter.matches(message.header)

    @property
    def durable(self) -> bool:
        """Whether both its ends are durable, and so is the binding."""
        return self.source.definition.durable and self.destination.definition.durable

    def __repr__(self) -> str:
        return f"Binding({self.definition!r})"


def identity(definition: BindingDefinition) -> Hashable:
    """Return a key that is equal for equal bindings, arguments included."""
    return (
        definition.source,
        definition.destination_type,
        definition.destination,
        definition.routing_key,
        frozen(definition.arguments),
    )
