"""The topology of a virtual host: exchanges and queues, and what goes when one of them goes.

Vhost calls it, and has checked what clients may do. Whatever comes or goes here does so everywhere
at once: in the routing graph, in the store, in the counts that limits are compared with, and in
the events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from leveret.core.chores import at_once, drain
from leveret.core.exchanges import check_type
from leveret.core.routing.binding_table import BindingTable
from leveret.core.routing.bindings import Binding
from leveret.core.routing.exchange import Exchange
from leveret.core.routing.graph import RoutingGraph
from leveret.core.routing.predeclared import DEFAULT_EXCHANGE, predeclared
from leveret.core.telemetry.events import acting_as, actor, exchange_headers, queue_headers
from leveret.ports.definitions import BindingDefinition, Definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable

    from leveret.core.access.limits import Quota
    from leveret.core.definitions.policies import Policies
    from leveret.core.exchanges import RandomBelow
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.message import Message
    from leveret.core.telemetry.events import Emit
    from leveret.ports import DefinitionSink
    from leveret.ports.definitions import Definition, ExchangeDefinition

__all__ = ["Topology"]

End: TypeAlias = tuple[str, str]  # of bindings: "queue" or "exchange", and its name


class Topology:
    """Exchanges and queues by name, with the bindings between them.

    `generation` changes whenever an exchange comes, goes or changes: connections then drop the
    RouteCaches they hold. The arguments are Vhost's. What is deleted is gone at once; its bindings
    lead nowhere from then on, and are removed one by one.
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
        self.aliases: dict[str, QueueLike] = {}  # by the names that they had before
        self._vhost = vhost
        self._store = store
        self._policies = policies
        self._quota = quota
        self._emit = emit
        self._bindings = BindingTable(self.graph, store, deposit, emit)
        self._owned: dict[object, dict[str, QueueLike]] = {}
        self._begin = begin
        self._apart: dict[End, Generator[None]] = {}  # whose bindings are being removed
        self._predeclared = predeclared(vhost, log_exchange=log_exchange)
        for definition in self._predeclared.values():
            self._enter_exchange(definition)
            self._emit("exchange.created", exchange_headers(definition))

    # ----- exchanges

    def add_exchange(self, definition: ExchangeDefinition) -> Exchange:
        """Create an exchange; its name must be free. Raises the 406 that its arguments deserve."""
        exchange = self._enter_exchange(definition)
        if definition.durable:
            self._store.put(definition)
        self._emit("exchange.created", exchange_headers(definition))
        return exchange

    def _enter_exchange(self, definition: ExchangeDefinition) -> Exchange:
        """Make an exchange known, under the policy that fits it."""
        self._wait_until_apart(("exchange", definition.name))
        policy = self._policies.for_exchange(self._vhost, definition.name)
        exchange = self.graph.add_exchange(definition, policy)
        self.generation += 1
        self._quota.exchange_count += 1
        return exchange

    def remove_exchange(self, exchange: Exchange) -> None:
        """Delete an exchange with its bindings and what they kept alive."""
        self._remove_exchanges([exchange])

    def _remove_exchanges(self, doomed: list[Exchange]) -> None:
        """Delete exchanges with their bindings, and those that are abandoned thereby."""
        while doomed:
            exchange = doomed.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            incoming = list(exchange.incoming.values())
            self._bindings.remove(incoming)
            self.graph.remove_exchange(exchange)
            self._quota.exchange_count -= 1
            if exchange.definition.durable:
                self._store.remove(exchange.definition)
            self.generation += 1
            self._emit("exchange.deleted", {"name": exchange.name, "vhost": self._vhost})
            self._bindings.tell_removed(incoming)
            doomed.extend(abandoned(incoming))
            self._take_apart(("exchange", exchange.name), exchange.outgoing)

    def follow_policy(self, exchange: Exchange) -> None:
        """Let an exchange follow the policies as they are now, unless it is gone."""
        policy = self._policies.for_exchange(self._vhost, exchange.name)
        if policy != exchange.policy and self.exchanges.get(exchange.name) is exchange:
            self.graph.set_policy(exchange, policy)
            self.generation += 1  # it may look at each message now

    # ----- queues

    def add_queue(self, queue: QueueLike) -> None:
        """Take in a queue that was made just now; its name must be free."""
        self._wait_until_apart(("queue", queue.definition.name))
        if queue.definition.durable:
            self._store.put(queue.definition)
        self._enter_queue(queue)
        self._emit("queue.created", queue_headers(queue.definition, queue.owner))

    def _enter_queue(self, queue: QueueLike) -> None:
        """Make a queue known, reachable by its name over the default exchange."""
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
        """Let the default exchange route a name of a queue to it."""
        name = queue.definition.name
        implicit = BindingDefinition(self._vhost, DEFAULT_EXCHANGE, name, "queue", key)
        self.graph.add_binding(Binding(implicit, self.exchanges[DEFAULT_EXCHANGE], queue))

    def rename_queue(self, queue: QueueLike, name: str) -> None:
        """Give a queue another name, which is free or one of its own; the old one is an alias.

        All of it reaches the store together, as nothing waits in between: a crash leaves what was
        before, or what is now. Routes, consumers and what has gathered do not notice.
        """
        self._wait_until_apart(("queue", name))
        old = queue.definition
        bindings = list(self.graph.queue_bindings[old.name].values())
        aliases = tuple(alias for alias in (*old.aliases, old.name) if alias != name)
        queue.definition = replace(old, name=name, log_name=old.topic, aliases=aliases)
        if old.durable:
            self._store.remove(old)
            self._store.put(queue.definition)
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
        """Forget a name that a queue had."""
        queue = self.aliases.pop(alias)
        name = queue.definition.name
        aliases = tuple(other for other in queue.definition.aliases if other != alias)
        queue.definition = replace(queue.definition, aliases=aliases)
        if queue.definition.durable:
            self._store.put(queue.definition)
        implicit = BindingDefinition(self._vhost, DEFAULT_EXCHANGE, name, "queue", alias)
        binding = self.graph.find_binding(implicit)
        assert binding is not None, "an alias is routed to its queue"
        self.graph.remove_binding(binding)
        self._emit("queue.alias.removed", {"name": name, "vhost": self._vhost, "alias": alias})

    def remove_queue(self, queue: QueueLike) -> None:
        """Take a queue out with its bindings and what they kept alive; a second time is fine."""
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
        if queue.definition.durable:
            self._store.remove(queue.definition)
        for binding in [held for held in bindings.values() if held.source.router.chooses]:
            del bindings[binding.identity]  # what is left to choose from is chosen from at once
            self.unbind(binding)
        self._take_apart(("queue", name), bindings)
        self._emit("queue.deleted", {"name": name, "vhost": self._vhost})

    def owned_by(self, owner: object) -> list[QueueLike]:
        """List the exclusive queues of a connection."""
        return list(self._owned.get(owner, {}).values())

    # ----- bindings

    def with_ends(self, definition: BindingDefinition) -> Binding | None:
        """Make a binding of its description; None where an end is missing."""
        source = self.exchanges.get(definition.source)
        ends = self.queues if definition.destination_type == "queue" else self.exchanges
        destination = ends.get(definition.destination)
        if source is None or destination is None:
            return None
        return Binding(definition, source, destination)

    def _take_apart(self, end: End, bindings: dict[Hashable, Binding]) -> None:
        """Remove the bindings of what is gone, and what they kept alive, in the turns to come."""
        if bindings:
            self._apart[end] = self._removing(end, bindings)
            self._begin(self._apart[end])

    def _removing(self, end: End, bindings: dict[Hashable, Binding]) -> Generator[None]:
        user = actor.get()  # each slice is some turn's
        try:
            while bindings:
                _, binding = bindings.popitem()
                with acting_as(user):
                    self.unbind(binding)
                yield
        finally:
            self._apart.pop(end, None)

    def freeing(self, end: End) -> Generator[None] | None:
        """Finish with the bindings of what had a name, in steps; None where there are none.

        For whoever is about to give the name to another, and would wait for it at one go.
        """
        return self._freeing(end) if end in self._apart else None

    def _freeing(self, end: End) -> Generator[None]:
        while (removing := self._apart.get(end)) is not None:
            next(removing, None)  # its own chore goes on with it, too
            yield

    def _wait_until_apart(self, end: End) -> None:
        """Finish with the bindings of what had a name before it is given to another."""
        at_once(self._freeing(end))

    def bind(self, binding: Binding) -> None:
        """Add a binding; one that exists is fine."""
        self._bindings.add(binding)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, and what it kept alive."""
        self._bindings.remove([binding])
        self._bindings.tell_removed([binding])
        self._remove_exchanges(abandoned([binding]))

    # ----- all of it

    def definitions(self) -> Definitions:
        """Exchanges, queues and bindings, but for the broker's own and for exclusive queues.

        May run in a thread: it goes through copies.
        """
        queues = [queue for _, queue in sorted(self.queues.items()) if queue.owner is None]
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
            queues=[queue.definition for queue in queues],
            bindings=sorted(bindings, key=lambda held: (held.source, held.destination)),
        )

    def restore(
        self,
        exchanges: Iterable[ExchangeDefinition],
        queues: Iterable[QueueLike],
        bindings: Iterable[BindingDefinition],
    ) -> None:
        """Rebuild what a store kept; nothing is written back. Once, before clients come.

        Raises 406 for an exchange type that this version does not know. A binding that has lost an
        end is left out.
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
        """Give up everything, in steps; `drop` removes a queue. Once.

        The store has been told, and hears no more: names may mean something else by now.
        """
        self._store = self._bindings.store = Deaf()
        begun: list[Generator[None]] = []
        self._begin = begun.append  # no steps but these
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
    """The store of a virtual host that is closing: keeps nothing."""

    def put(self, definition: Definition) -> None:
        """Keep nothing."""

    def remove(self, definition: Definition) -> None:
        """Do nothing: the definition has been removed."""

    def remove_vhost(self, name: str) -> None:
        """Do nothing: the virtual host has been removed."""


def abandoned(removed: Iterable[Binding]) -> list[Exchange]:
    """List the auto-delete exchanges that lost their last binding as a source."""
    sources = {binding.source: None for binding in removed}
    return [x for x in sources if x.definition.auto_delete and not x.outgoing]
