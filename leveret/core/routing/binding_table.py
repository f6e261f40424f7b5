"""The bindings of a virtual host as they come and go: routed by, kept in the store, told as events.

Topology calls it, and has checked what is to be done. The bindings that lead from the default
exchange to every queue go without saying: they are neither kept nor told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.routing.bindings import Binding
from leveret.core.routing.exchange import Exchange
from leveret.core.routing.predeclared import DEFAULT_EXCHANGE
from leveret.core.telemetry.events import binding_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.graph import RoutingGraph
    from leveret.core.routing.message import Message
    from leveret.core.telemetry.events import Emit
    from leveret.ports import DefinitionSink

__all__ = ["BindingTable"]


class BindingTable:
    """The bindings of one `graph`.

    `deposit(queues, message)` puts a message into queues; `emit(key, headers)` is told what came
    and went.
    """

    def __init__(
        self,
        graph: RoutingGraph,
        store: DefinitionSink,
        deposit: Callable[[Iterable[QueueLike], Message], None],
        emit: Emit,
    ) -> None:
        self._graph = graph
        self.store = store  # replaced when the virtual host is closing
        self._deposit = deposit
        self._emit = emit

    def add(self, binding: Binding) -> None:
        """Bind; a binding that exists is fine."""
        if self._graph.find_binding(binding.definition) is not None:
            return
        if binding.durable:
            self.store.put(binding.definition)
        self._graph.add_binding(binding)
        self._tell_history(binding)
        self._emit("binding.created", binding_headers(binding.definition))

    def _tell_history(self, binding: Binding) -> None:
        """Send through a new binding what its exchange keeps for such."""
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
        """Let bindings go, untold: what they go with comes first in the events."""
        for binding in bindings:
            if binding.durable and not implied(binding):
                self.store.remove(binding.definition)
            self._graph.remove_binding(binding)

    def readdress(self, binding: Binding, queue: str) -> None:
        """Let a binding lead to its queue by the queue's new name; messages go as before."""
        definition = replace(binding.definition, destination=queue)
        self._graph.remove_binding(binding)
        self._graph.add_binding(Binding(definition, binding.source, binding.destination))
        if binding.durable and not implied(binding):
            self.store.remove(binding.definition)
            self.store.put(definition)

    def tell_removed(self, bindings: Iterable[Binding]) -> None:
        """Tell which bindings have gone."""
        for binding in bindings:
            if not implied(binding):
                self._emit("binding.deleted", binding_headers(binding.definition))


def implied(binding: Binding) -> bool:
    """Whether a queue has the binding for no other reason than that it exists."""
    return binding.source.name == DEFAULT_EXCHANGE
