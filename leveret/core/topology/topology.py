"""Topology of a virtual host: exchanges and queues, and what is removed with them.

Called by Vhost, which has checked what clients may do. Each change here is made everywhere at once:
in the routing graph, in the store, in the counts that limits are compared with, and in the events.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from leveret.core.chores import at_once, drain, sorted_in_runs
from leveret.core.events import acting_as, actor, exchange_headers, queue_headers
from leveret.core.exchanges import check_type
from leveret.core.routing.bindings import Binding
from leveret.core.routing.exchange import Exchange
from leveret.core.topology.binding_table import BindingTable
from leveret.core.topology.graph import RoutingGraph
from leveret.core.topology.predeclared import DEFAULT_EXCHANGE, predeclared
from leveret.ports.definitions import BindingDefinition, Definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable

    from leveret.core.access.limits import Quota
    from leveret.core.events import Emit
    from leveret.core.exchanges import RandomBelow
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.message import Message
    from leveret.core.settings.policies import Policies
    from leveret.ports import DefinitionSink
    from leveret.ports.definitions import Definition, ExchangeDefinition, QueueDefinition

__all__ = ["Topology"]

End: TypeAlias = tuple[str, str]  # one end of a binding: "queue" or "exchange", and its name


class Topology:
    """Exchanges and queues by name, with the bindings between them.

    `generation` changes whenever an exchange is added, removed or changed: connections then drop
    their RouteCaches. The arguments are Vhost's. A deleted object is gone at once; its bindings
    have no effect from then on, and are removed in later turns.
    """

    def __init__(
        self,
        vhost: str,
        *,
        store: DefinitionSink,
        random_below: RandomBelow,
        deposit: Callable[[Iterable[QueueLike], Message], None],
        policies: Policies,
        quota: Quota,
        emit: Emit,
        log_exchange: bool,
        begin: Callable[[Generator[None]], object] = at_once,
    ) -> None:
        self.generation = 0
        self.graph = RoutingGraph(random_below)
        self.exchanges = self.graph.exchanges
        self.queues: dict[str, QueueLike] = {}
        self.aliases: dict[str, QueueLike] = {}  # queues by their former names
        self._vhost = vhost
        self._store = store
        self._policies = policies
        self._quota = quota
        self._emit = emit
        self._bindings = BindingTable(self.graph, store, deposit, emit)
        self._owned: dict[object, dict[str, QueueLike]] = {}
        self._begin = begin
        self._apart: dict[End, Generator[None]] = {}  # removals of deleted ends' bindings
        self._predeclared = predeclared(vhost, log_exchange=log_exchange)
        for definition in self._predeclared.values():
            self._enter_exchange(definition)
            self._emit("exchange.created", exchange_headers(definition))

    def _is_kept(self, definition: ExchangeDefinition | QueueDefinition) -> bool:
        """Whether the store is told of a definition."""
        return definition.durable or self._store.keeps_all

    # ----- exchanges

    def add_exchange(self, definition: ExchangeDefinition) -> Exchange:
        """Create an exchange; its name must be free.

        Raises ChannelError 406 for invalid arguments.
        """
        exchange = self._enter_exchange(definition)
        if self._is_kept(definition):
            self._store.put(definition)
        self._emit("exchange.created", exchange_headers(definition))
        return exchange

    def _enter_exchange(self, definition: ExchangeDefinition) -> Exchange:
        """Add an exchange to the graph, with the policy that matches it."""
        self._wait_until_apart(("exchange", definition.name))
        policy = self._policies.for_exchange(self._vhost, definition.name)
        exchange = self.graph.add_exchange(definition, policy)
        self.generation += 1
        self._quota.exchange_count += 1
        return exchange

    def remove_exchange(self, exchange: Exchange) -> None:
        """Delete an exchange, its bindings, and auto-delete exchanges left without bindings."""
        self._remove_exchanges([exchange])

    def _remove_exchanges(self, doomed: list[Exchange]) -> None:
        """Delete exchanges, their bindings, and auto-delete exchanges left without bindings."""
        while doomed:
            exchange = doomed.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            incoming = list(exchange.incoming.values())
            self._bindings.remove(incoming)
            self.graph.remove_exchange(exchange)
            self._quota.exchange_count -= 1
            if self._is_kept(exchange.definition):
                self._store.remove(exchange.definition)
            self.generation += 1
            self._emit("exchange.deleted", {"name": exchange.name, "vhost": self._vhost})
            self._bindings.tell_removed(incoming)
            doomed.extend(self._abandoned(incoming))
            self._take_apart(("exchange", exchange.name), exchange.outgoing)

    def follow_policy(self, exchange: Exchange) -> None:
        """Apply the current policies to an exchange, unless it was deleted."""
        policy = self._policies.for_exchange(self._vhost, exchange.name)
        if policy != exchange.policy and self.exchanges.get(exchange.name) is exchange:
            self.graph.set_policy(exchange, policy)
            self.generation += 1  # its router may inspect each message now

    # ----- queues

    def add_queue(self, queue: QueueLike) -> None:
        """Add a new queue; its name must be free."""
        self._wait_until_apart(("queue", queue.definition.name))
        if self._is_kept(queue.definition):
            self._store.put(queue.definition)
        self._enter_queue(queue)
        self._emit("queue.created", queue_headers(queue.definition, queue.owner))

    def _enter_queue(self, queue: QueueLike) -> None:
        """Add a queue to the graph, bound to the default exchange by its names."""
        name = queue.definition.name
        self.queues[name] = queue
        self.graph.large_arguments.enter(queue, queue.definition.arguments)
        self._quota.queue_count += 1
        if queue.owner is not None:
            self._owned.setdefault(queue.owner, {})[name] = queue
        self._lead_to(queue, name)
        for alias in queue.definition.aliases:
            self.aliases[alias] = queue
            self._lead_to(queue, alias)

    def _lead_to(self, queue: QueueLike, key: str) -> None:
        """Bind a queue to the default exchange by one of its names."""
        name = queue.definition.name
        implicit = BindingDefinition(self._vhost, DEFAULT_EXCHANGE, name, "queue", key)
        self.graph.add_binding(Binding(implicit, self.exchanges[DEFAULT_EXCHANGE], queue))

    def rename_queue(self, queue: QueueLike, name: str) -> None:
        """Rename a queue; `name` is free or an alias of it, and the old name becomes an alias.

        All changes reach the store together, since nothing waits in between: a crash leaves the
        state before or after. Routes, consumers and gathered records are not affected.
        """
        self._wait_until_apart(("queue", name))
        old = queue.definition
        bindings = list(self.graph.queue_bindings[old.name].values())
        aliases = tuple(alias for alias in (*old.aliases, old.name) if alias != name)
        queue.definition = replace(old, name=name, log_name=old.topic, aliases=aliases)
        if self._is_kept(old):
            # In this order it is never gone, should they be written one after the other.
            self._store.put(queue.definition)
            self._store.remove(old)
        del self.queues[old.name]
        self.queues[name] = queue
        self.aliases.pop(name, None)
        self.aliases[old.name] = queue
        for binding in bindings:
            self._bindings.readdress(binding, name)
        if name not in old.aliases:
            self._lead_to(queue, name)
        told = {"name": name, "vhost": self._vhost, "old_name": old.name}
        self._emit("queue.renamed", told)

    def remove_alias(self, alias: str) -> None:
        """Remove an alias of a queue."""
        queue = self.aliases.pop(alias)
        name = queue.definition.name
        aliases = tuple(other for other in queue.definition.aliases if other != alias)
        queue.definition = replace(queue.definition, aliases=aliases)
        if self._is_kept(queue.definition):
            self._store.put(queue.definition)
        implicit = BindingDefinition(self._vhost, DEFAULT_EXCHANGE, name, "queue", alias)
        binding = self.graph.find_binding(implicit)
        assert binding is not None, "an alias is routed to its queue"
        self.graph.remove_binding(binding)
        self._emit("queue.alias.removed", {"name": name, "vhost": self._vhost, "alias": alias})

    def remove_queue(self, queue: QueueLike) -> None:
        """Remove a queue, its bindings, and auto-delete exchanges left without bindings.

        Removing it again does nothing. The caller cancels the consumers and deletes the log.
        """
        name = queue.definition.name
        if self.queues.get(name) is not queue:
            return
        del self.queues[name]
        self.graph.large_arguments.leave(queue)
        for alias in queue.definition.aliases:
            del self.aliases[alias]
        self._quota.queue_count -= 1
        if queue.owner is not None:
            del self._owned[queue.owner][name]
            if not self._owned[queue.owner]:
                del self._owned[queue.owner]
        bindings = self.graph.remove_queue(queue)
        if self._is_kept(queue.definition):
            self._store.remove(queue.definition)
        for binding in [held for held in bindings.values() if held.source.router.chooses]:
            del bindings[binding.identity]  # the router chooses from the remaining ones at once
            self.unbind(binding)
        self._take_apart(("queue", name), bindings)
        self._emit("queue.deleted", {"name": name, "vhost": self._vhost})

    def owned_by(self, owner: object) -> list[QueueLike]:
        """Return the exclusive queues of a connection."""
        return list(self._owned.get(owner, {}).values())

    # ----- bindings

    def with_ends(self, definition: BindingDefinition) -> Binding | None:
        """Return the binding of a definition; None if an end does not exist."""
        source = self.exchanges.get(definition.source)
        ends = self.queues if definition.destination_type == "queue" else self.exchanges
        destination = ends.get(definition.destination)
        if source is None or destination is None:
            return None
        return Binding(definition, source, destination)

    def _take_apart(self, end: End, bindings: dict[Hashable, Binding]) -> None:
        """Remove the bindings of a deleted end in later turns, with what depends on them."""
        if bindings:
            self._apart[end] = self._removing(end, bindings)
            self._begin(self._apart[end])

    def _removing(self, end: End, bindings: dict[Hashable, Binding]) -> Generator[None]:
        user = actor.get()  # later steps run in other turns
        try:
            while bindings:
                _, binding = bindings.popitem()
                with acting_as(user):
                    self.unbind(binding)
                yield
        finally:
            self._apart.pop(end, None)

    def freeing(self, end: End) -> Generator[None] | None:
        """Finish removing the bindings of a name's former owner, in steps; None if there are none.

        For callers about to reuse the name, which would otherwise wait for all of it at once.
        """
        return self._freeing(end) if end in self._apart else None

    def _freeing(self, end: End) -> Generator[None]:
        while (removing := self._apart.get(end)) is not None:
            next(removing, None)  # its own chore advances it as well
            yield

    def _wait_until_apart(self, end: End) -> None:
        """Finish removing the bindings of a name's former owner before the name is reused."""
        at_once(self._freeing(end))

    def bind(self, binding: Binding) -> None:
        """Add a binding; no-op if it exists."""
        self._bindings.add(binding)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, and auto-delete exchanges left without bindings."""
        self._bindings.remove([binding])
        self._bindings.tell_removed([binding])
        self._remove_exchanges(self._abandoned([binding]))

    def _abandoned(self, removed: Iterable[Binding]) -> list[Exchange]:
        """Return the auto-delete exchanges that lost their last outgoing binding and go, too."""
        return [] if self._store.is_following else abandoned(removed)

    # ----- all of it

    def definitions(self) -> Definitions:
        """Return exchanges, queues and bindings, without predeclared and exclusive ones.

        May run in a thread: it iterates over copies.
        """
        by_name = attrgetter("definition.name")
        queues = sorted_in_runs(list(self.queues.values()), by_name)
        exchanges = [exchange for _, exchange in sorted(self.exchanges.items()) if exchange.name]
        bindings = [
            binding.definition
            for exchange in exchanges
            for binding in list(exchange.outgoing.values())
            if not binding.destination.gone
            and (isinstance(binding.destination, Exchange) or binding.destination.owner is None)
        ]
        return Definitions(
            exchanges=[x.definition for x in exchanges if x.name not in self._predeclared],
            queues=[queue.definition for queue in queues if queue.owner is None],
            bindings=sorted_in_runs(bindings, attrgetter("source", "destination")),
        )

    def present(self) -> list[Definition]:
        """Return all definitions but those that every virtual host has, exclusive ones included."""
        exchanges = [each for name, each in self.exchanges.items() if name != DEFAULT_EXCHANGE]
        return [
            *(each.definition for each in exchanges if each.name not in self._predeclared),
            *(queue.definition for queue in self.queues.values()),
            *(
                binding.definition
                for exchange in exchanges
                for binding in exchange.outgoing.values()
                if not binding.destination.gone
            ),
        ]

    def restore(
        self,
        exchanges: Iterable[ExchangeDefinition],
        queues: Iterable[QueueLike],
        bindings: Iterable[BindingDefinition],
    ) -> None:
        """Restore the stored topology, once, before clients connect; nothing is written back.

        Raises 406 for an exchange type that this version does not know. A binding without one of
        its ends is skipped.
        """
        for exchange in exchanges:
            check_type(exchange.type)
            if exchange.name not in self.exchanges:
                self._enter_exchange(exchange)
        for queue in queues:
            self._enter_queue(queue)
        for kept in bindings:
            binding = self.with_ends(kept)
            if binding is not None:
                self.graph.add_binding(binding)

    def closing(self, drop: Callable[[QueueLike], None]) -> Generator[None]:
        """Remove everything, in steps; `drop` removes a queue. Called once.

        The store has been told already and gets no more changes: names may have new owners by now.
        """
        self._store = self._bindings.store = Deaf()
        begun: list[Generator[None]] = []
        self._begin = begun.append  # run only in these steps
        for queue in drain(self.queues.values()):
            drop(queue)
            yield
            while begun:
                yield from begun.pop()
        self._begin = at_once
        for name in list(self.exchanges):
            self._quota.exchange_count -= 1
            self._emit("exchange.deleted", {"name": name, "vhost": self._vhost})
            yield


class Deaf:
    """Null store of a virtual host that is being deleted."""

    keeps_all = is_following = False

    def put(self, definition: Definition) -> None:
        """Do nothing."""

    def remove(self, definition: Definition) -> None:
        """Do nothing: the definition has been removed."""

    def remove_vhost(self, name: str) -> None:
        """Do nothing: the virtual host has been removed."""


def abandoned(removed: Iterable[Binding]) -> list[Exchange]:
    """Return the auto-delete exchanges that lost their last outgoing binding."""
    sources = {binding.source: None for binding in removed}
    return [x for x in sources if x.definition.auto_delete and not x.outgoing]
