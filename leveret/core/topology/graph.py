"""The routing graph of a virtual host: exchanges, the bindings between them and to queues.

Routes are cached per exchange and key. Each change of the graph clears the caches of all exchanges
that lead to it, so that a cached route is never stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.access.limits import LargeArguments
from leveret.core.erlang_terms import term
from leveret.core.exchanges import EXCHANGE_TYPES
from leveret.core.names import resource
from leveret.core.routing.bindings import Binding, QueueLike, identity
from leveret.core.routing.exchange import Exchange
from leveret.core.routing.routes import Route
from leveret.core.settings.policies import NO_POLICY
from leveret.core.topology.walk import follow
from leveret.errors import ChannelError, ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from leveret.core.exchanges import RandomBelow
    from leveret.core.routing.message import Message
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.ports.definitions import BindingDefinition, ExchangeDefinition
    from leveret.ports.partitioner import RecordTarget


# Of one message: each key is matched at every exchange on the way. Real messages have a few.
KEYS_MAX = 1000


class RoutingGraph:
    """Exchanges by name, with their edges."""

    def __init__(self, random_below: RandomBelow) -> None:
        """Create an empty graph.

        `random_below(n)` returns one of 0 … n - 1, for random exchanges.
        """
        self._random_below = random_below
        self.exchanges: dict[str, Exchange] = {}
        # Exchanges by the name of their alternate exchange, whether that exists or not.
        self.alternates: dict[str, dict[Exchange, None]] = {}
        self.queue_bindings: dict[str, dict[Hashable, Binding]] = {}
        self.large_arguments = LargeArguments()  # of queues as well

    def route(
        self, exchange: Exchange, routing_keys: Sequence[str], message: Message | None
    ) -> list[QueueLike]:
        """Return the queues of a message, each once.

        The keys after the first are those of CC and BCC. Raises ChannelError 406 for too many keys,
        or if routing takes too many steps.
        """
        check_key_count(len(routing_keys))
        queues, are_all = follow(exchange, routing_keys, message, self.exchanges)
        if not are_all:
            of = resource("exchange", exchange.name, exchange.definition.vhost)
            raise ChannelError(
                406,
                f"too many bindings lead on from {of} to the same places, or ask filters: remove "
                "some of those between exchanges, patterns that fit one key, or of the filters",
            )
        return queues

    def reach(
        self, exchange: Exchange, routing_keys: Sequence[str], message: Message | None
    ) -> list[QueueLike]:
        """Return the queues of a message that cannot be refused, as far as `route` gets."""
        return follow(exchange, routing_keys, message, self.exchanges)[0]

    def find_queues(
        self, exchange: Exchange, routing_keys: Sequence[str], message: Message | None
    ) -> list[QueueLike]:
        """Return the queues that `reach` would return, for a message that is not published now."""
        exchanges = self.exchanges
        return follow(exchange, routing_keys, message, exchanges, is_published=False)[0]

    def reach_by_key(self, exchange: Exchange, routing_key: bytes) -> Sequence[RecordTarget]:
        """Return the builders for a key, if it decides alone; as `reach`, but cached."""
        try:
            return exchange.cache.lookup(routing_key).builders
        except ChannelError:
            queues = self.reach(exchange, [routing_key.decode()], None)
            return [queue.builder for queue in queues]

    def _resolve(self, exchange: Exchange, routing_key: bytes) -> Route:
        """Route a key that is not cached. Raises 501 if it is not UTF-8."""
        try:
            key = routing_key.decode()
        except UnicodeDecodeError:
            raise ConnectionClosingError(501, f"cannot decode {term(routing_key)}") from None
        return Route(queue.builder for queue in self.route(exchange, [key], None))

    def add_exchange(
        self, definition: ExchangeDefinition, policy: EffectivePolicy = NO_POLICY
    ) -> Exchange:
        """Add an exchange; its name must be free and its type known.

        Raises ChannelError 406 for invalid arguments.
        """
        router = EXCHANGE_TYPES[definition.type](definition.arguments, self._random_below)
        exchange = Exchange(definition, router, self._resolve, policy)
        self.exchanges[exchange.name] = exchange
        self.large_arguments.enter(exchange, definition.arguments)
        self._lead_to_alternate(exchange)
        for source in self.alternates.get(exchange.name, ()):
            self._edge_added(source, exchange)
        return exchange

    def remove_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange without incoming bindings; its own bindings lose their effect."""
        exchange.gone = True
        del self.exchanges[exchange.name]
        self.large_arguments.leave(exchange)
        self._leave_alternate(exchange)
        for source in self.alternates.get(exchange.name, ()):
            self._edge_removed(source)

    def set_policy(self, exchange: Exchange, policy: EffectivePolicy) -> None:
        """Apply another policy to an exchange, which may change its alternate exchange."""
        before = exchange.alternate
        self._leave_alternate(exchange)
        exchange.follow_policy(policy)
        if before != exchange.alternate and before in self.exchanges:
            self._edge_removed(exchange)
        self._lead_to_alternate(exchange)

    def _lead_to_alternate(self, exchange: Exchange) -> None:
        """Register an exchange with its alternate exchange."""
        alternate = exchange.alternate
        if alternate is not None:
            self.alternates.setdefault(alternate, {})[exchange] = None
            if alternate in self.exchanges:
                self._edge_added(exchange, self.exchanges[alternate])

    def _leave_alternate(self, exchange: Exchange) -> None:
        """Undo `_lead_to_alternate`, except for cached routes."""
        alternate = exchange.alternate
        if alternate is not None:
            del self.alternates[alternate][exchange]
            if not self.alternates[alternate]:
                del self.alternates[alternate]

    def find_binding(self, definition: BindingDefinition) -> Binding | None:
        """Return the binding equal to `definition`, or None."""
        source = self.exchanges.get(definition.source)
        found = source.outgoing.get(identity(definition)) if source else None
        return None if found is None or found.destination.gone else found

    def remove_queue(self, queue: QueueLike) -> dict[Hashable, Binding]:
        """Remove a queue from all routes. Returns its bindings, which the caller removes."""
        queue.gone = True
        bindings = self.queue_bindings.pop(queue.definition.name, {})
        for source in {binding.source for binding in bindings.values()}:
            self._forget_routes(source, [queue.definition.name, *queue.definition.aliases])
        return bindings

    def add_binding(self, binding: Binding) -> None:
        """Add a new binding."""
        source, destination = binding.source, binding.destination
        source.outgoing[binding.identity] = binding
        self.large_arguments.enter(binding, binding.definition.arguments)
        self._incoming(binding)[binding.identity] = binding
        source.router.add(binding)
        if binding.filter is not None:
            self._filter_added(source)
        if isinstance(destination, Exchange):
            self._edge_added(source, destination)
        else:
            self._forget(binding)

    def remove_binding(self, binding: Binding) -> None:
        """Remove a binding, which may have been removed from its ends before."""
        source, destination = binding.source, binding.destination
        source.outgoing.pop(binding.identity, None)
        self.large_arguments.leave(binding)
        if not destination.gone:
            self._leave_end(binding)
        if source.gone:
            return  # it is never asked again
        source.router.remove(binding)
        if binding.filter is not None:
            self._filter_removed(source)
        if isinstance(destination, Exchange):
            self._edge_removed(source)
        elif not destination.gone:
            self._forget(binding)

    def _leave_end(self, binding: Binding) -> None:
        incoming = self._incoming(binding)
        incoming.pop(binding.identity, None)
        if not incoming and not isinstance(binding.destination, Exchange):
            del self.queue_bindings[binding.definition.destination]

    def _incoming(self, binding: Binding) -> dict[Hashable, Binding]:
        """Return the bindings with the same destination."""
        if isinstance(binding.destination, Exchange):
            return binding.destination.incoming
        return self.queue_bindings.setdefault(binding.definition.destination, {})

    def _forget(self, binding: Binding) -> None:
        """Drop the cached routes that a binding to a queue may be part of."""
        self._forget_routes(binding.source, [binding.definition.routing_key])

    def _forget_routes(self, source: Exchange, keys: Iterable[str]) -> None:
        """Drop the cached routes through `source`.

        For the default exchange, only those of `keys`.
        """
        leading = self._leading_to(source)
        if source.name == "":  # here a key means one queue, and other keys are worth keeping
            for key in keys:
                source.cache.forget(key.encode(errors="surrogateescape"))
            leading = leading[1:]
        for exchange in leading:
            exchange.cache.clear()

    def _filter_added(self, source: Exchange) -> None:
        """Disable route caches of exchanges leading to `source`, whose first filter was added."""
        source.filters += 1
        if source.filters == 1:
            for exchange in self._leading_to(source):
                exchange.cache.set_cacheable(False)

    def _filter_removed(self, source: Exchange) -> None:
        """Re-enable route caches if the last filter of `source` was removed."""
        source.filters -= 1
        if not source.filters:
            for exchange in self._leading_to(source):
                exchange.cache.set_cacheable(self._key_decides(exchange))

    def _edge_added(self, source: Exchange, destination: Exchange) -> None:
        """Update the route caches after a new edge from `source` to `destination`."""
        cacheable = destination.cache.cacheable
        for exchange in self._leading_to(source):
            if cacheable:
                exchange.cache.clear()
            else:
                exchange.cache.set_cacheable(False)

    def _edge_removed(self, source: Exchange) -> None:
        """Update the route caches after an edge from `source` was removed."""
        was_cacheable = source.cache.cacheable  # fewer edges do not make it less so
        for exchange in self._leading_to(source):
            if was_cacheable:
                exchange.cache.clear()
            else:
                exchange.cache.set_cacheable(self._key_decides(exchange))

    def _leading_to(self, exchange: Exchange) -> list[Exchange]:
        """Return an exchange, first, and all exchanges from which messages can reach it."""
        return spread(exchange, self._predecessors)

    def _key_decides(self, exchange: Exchange) -> bool:
        """Whether the routes from here depend on the routing key alone."""
        return all(x.key_decides for x in spread(exchange, self._successors))

    def _predecessors(self, exchange: Exchange) -> Iterator[Exchange]:
        for binding in exchange.incoming.values():
            yield binding.source
        yield from self.alternates.get(exchange.name, ())

    def _successors(self, exchange: Exchange) -> Iterator[Exchange]:
        for binding in exchange.outgoing.values():
            if isinstance(binding.destination, Exchange):
                yield binding.destination
        if exchange.alternate in self.exchanges:
            yield self.exchanges[exchange.alternate]


def check_key_count(count: int) -> None:
    """Raise 406 for a message with too many routing keys."""
    if count > KEYS_MAX:
        raise ChannelError(
            406, f"a message has at most {KEYS_MAX} routing keys, those of CC and BCC included"
        )


def spread(start: Exchange, neighbours: Callable[[Exchange], Iterable[Exchange]]) -> list[Exchange]:
    """Return all exchanges reachable over `neighbours`, `start` first, each once."""
    found: dict[Exchange, None] = {start: None}
    waiting = [start]
    while waiting:
        for exchange in neighbours(waiting.pop()):
            if exchange not in found:
                found[exchange] = None
                waiting.append(exchange)
    return list(found)
