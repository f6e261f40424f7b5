"""Definitions of this node: what it has, and how it takes over what others have changed.

Nothing is written, and what is equal already changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leveret.broker import alter_queue
from leveret.ports.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    GroupDefinition,
    QueueDefinition,
)

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.core.definitions.administration import Administration
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.ports.definitions import Definition

__all__ = ["NodeDefinitions"]


class NodeDefinitions:
    """Definitions of one node, in its broker and its administration."""

    def __init__(self, broker: Broker, administration: Administration) -> None:
        self._broker = broker
        self._administration = administration

    def present(self) -> list[Definition]:
        """Return all definitions, of what belongs to others after those."""
        found = self._administration.present()
        vhosts = self._broker.vhosts.values()
        contents = [each for vhost in vhosts for each in vhost.topology.present()]
        found += [each for each in contents if not isinstance(each, BindingDefinition)]
        found += self._broker.groups.present()
        return found + [each for each in contents if isinstance(each, BindingDefinition)]

    def put(self, definition: Definition, renamed_from: str | None = None) -> bool:
        """Have a definition. Returns whether another object made way, and its bindings with it.

        A queue that is `renamed_from` another name is the same as before. Raises AmqpError and
        StorageError for what cannot be had here.
        """
        match definition:
            case ExchangeDefinition() | QueueDefinition() | BindingDefinition():
                vhost = self._broker.vhosts.get(definition.vhost)
                if vhost is None:
                    return False
                if isinstance(definition, ExchangeDefinition):
                    return vhost.follow_exchange(definition)
                if isinstance(definition, QueueDefinition):
                    return self._put_queue(vhost, definition, renamed_from)
                vhost.follow_binding(definition)
            case GroupDefinition():
                self._broker.groups.load([definition])
            case _:
                self._administration.follow(definition)
        return False

    def has_binding(self, binding: BindingDefinition) -> bool:
        """Whether there is a binding."""
        vhost = self._broker.vhosts.get(binding.vhost)
        return vhost is not None and vhost.has_binding(binding)

    def _put_queue(
        self, vhost: Vhost, definition: QueueDefinition, renamed_from: str | None
    ) -> bool:
        former = vhost.queues.get(renamed_from or "")
        present = vhost.queues.get(definition.name)
        has_made_way = present is not None and not _is_same(present.definition, definition)
        if present is not None and has_made_way:
            self._broker.drop_queue(vhost, cast("DeclaredQueue", present))
            present = None
        if former is not None and present is None and _is_same(former.definition, definition):
            vhost.topology.rename_queue(former, definition.name)
            present = former
        if present is None:
            vhost.follow_queue(definition)
        elif present.definition != definition:
            alter_queue.follow(self._broker, cast("DeclaredQueue", present), definition)
        return has_made_way

    def remove(self, definition: Definition) -> None:
        """Have a definition no more; it may be gone already."""
        match definition:
            case ExchangeDefinition() | QueueDefinition() | BindingDefinition():
                vhost = self._broker.vhosts.get(definition.vhost)
                if vhost is not None:
                    self._remove_from(vhost, definition)
            case GroupDefinition():
                self._broker.groups.follow_removal(definition)
            case _:
                self._administration.follow_removal(definition)

    def _remove_from(
        self, vhost: Vhost, definition: ExchangeDefinition | QueueDefinition | BindingDefinition
    ) -> None:
        if isinstance(definition, BindingDefinition):
            binding = vhost.topology.graph.find_binding(definition)
            if binding is not None:
                vhost.topology.unbind(binding)
        elif isinstance(definition, QueueDefinition):
            queue = vhost.queues.get(definition.name)
            if queue is not None and _is_same(queue.definition, definition):
                self._broker.drop_queue(vhost, cast("DeclaredQueue", queue))
        else:
            exchange = vhost.exchanges.get(definition.name)
            if exchange is not None and exchange.definition == definition:
                vhost.topology.remove_exchange(exchange)


def _is_same(one: QueueDefinition, other: QueueDefinition) -> bool:
    return one.incarnation == other.incarnation
