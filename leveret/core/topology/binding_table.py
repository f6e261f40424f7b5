"""Bindings of a virtual host: kept in the routing graph, in the store, and reported as events.

Called by Topology, which has checked the changes. The implicit bindings of the default exchange to
every queue are neither stored nor reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.events import binding_headers
from leveret.core.routing.bindings import Binding
from leveret.core.routing.exchange import Exchange
from leveret.core.topology.predeclared import DEFAULT_EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.events import Emit
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.message import Message
    from leveret.core.topology.graph import RoutingGraph
    from leveret.ports import DefinitionSink

__all__ = ["BindingTable"]


class BindingTable:
    """Bindings of one `graph`.

    `deposit(queues, message)` stores a message in queues; `emit(key, headers)` publishes an event.
    """

    def __init__(
        self,
        graph: RoutingGraph,
        store: DefinitionSink,
        deposit: Callable[[Iterable[QueueLike], Message], None],
        emit: Emit,
    ) -> None:
        self._graph = graph
        self.store = store  # replaced when the virtual host is being deleted
        self._deposit = deposit
        self._emit = emit

    def add(self, binding: Binding) -> None:
        """Add a binding; no-op if it exists."""
        if self._graph.find_binding(binding.definition) is not None:
            return
        if self._is_kept(binding):
            self.store.put(binding.definition)
        self._graph.add_binding(binding)
        self._tell_history(binding)
        self._emit("binding.created", binding_headers(binding.definition))

    def _is_kept(self, binding: Binding) -> bool:
        """Whether the store is told of a binding."""
        return binding.durable or self.store.keeps_all

    def _tell_history(self, binding: Binding) -> None:
        """Send the messages that its exchange keeps for new bindings through a binding."""
        end = binding.destination
        for message in binding.source.router.history():
            if not binding.lets_through(message):
                continue
            if isinstance(end, Exchange):
                queues = self._graph.reach(end, [message.routing_key.decode()], message)
            else:
                queues = [end]
            self._deposit(queues, message)

    def remove(self, bindings: Iterable[Binding]) -> None:
        """Remove bindings without events, which must follow those of their exchange or queue."""
        for binding in bindings:
            if self._is_kept(binding) and not implied(binding):
                self.store.remove(binding.definition)
            self._graph.remove_binding(binding)

    def readdress(self, binding: Binding, queue: str) -> None:
        """Change a binding to its queue's new name; routing is not affected."""
        definition = replace(binding.definition, destination=queue)
        self._graph.remove_binding(binding)
        self._graph.add_binding(Binding(definition, binding.source, binding.destination))
        if self._is_kept(binding) and not implied(binding):
            self.store.remove(binding.definition)
            self.store.put(definition)

    def tell_removed(self, bindings: Iterable[Binding]) -> None:
        """Publish events for removed bindings."""
        for binding in bindings:
            if not implied(binding):
                self._emit("binding.deleted", binding_headers(binding.definition))


def implied(binding: Binding) -> bool:
    """Whether it is the implicit binding of a queue to the default exchange."""
    return binding.source.name == DEFAULT_EXCHANGE
