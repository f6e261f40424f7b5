"""The routing graph of a virtual host: exchanges, the bindings between them and to queues.

Routes are remembered per exchange and key. Whatever changes the graph here also makes every
exchange that leads to the change forget, so that a remembered route is never stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.access.sizes import LargeArguments
from leveret.core.definitions.policies import NO_POLICY
from leveret.core.erlang_terms import term
from leveret.core.exchanges import EXCHANGE_TYPES
from leveret.core.names import resource
from leveret.core.routing.bindings import Binding, QueueLike, identity
from leveret.core.routing.exchange import Exchange
from leveret.core.routing.routes import Route
from leveret.core.routing.walk import follow
from leveret.errors import ChannelError, ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from leveret.core.definitions.policies import EffectivePolicy
    from leveret.core.exchanges import RandomBelow
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import BindingDefinition, ExchangeDefinition
    from leveret.ports.records import BatchBuilder


# Of one message: each is matched by itself, at every exchange on the way. People name a few.
KEYS_MAX = 1000


class RoutingGraph:
    """Exchanges by name, and what leads where."""

    def __init__(self, random_below: RandomBelow) -> None:
        """`random_below(n)` draws one of 0 … n - 1, for exchanges that route by lot."""
        self._random_below = random_below
        self.exchanges: dict[str, Exchange] = {}
        # Exchanges by the name of the alternate they hand on to, whether that exists or not.
        self.alternates: dict[str, dict[Exchange, None]] = {}
        self.queue_bindings: dict[str, dict[Hashable, Binding]] = {}
        self.large_arguments = LargeArguments()  # also of the queues

    def route(
        self, exchange: Exchange, routing_keys: Sequence[str], message: Message | None
    ) -> list[QueueLike]:
        """Follow a message from an exchange to its queues: each queue once, each exchange once.

        The keys behind the first are those that its sender has added. Raises 406 where these are
        too many, or to follow it would take too many steps.
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
        """Follow a message that nobody is there to be refused: as far as `route` goes."""
        return follow(exchange, routing_keys, message, self.exchanges)[0]

    def reach_by_key(self, exchange: Exchange, routing_key: bytes) -> Sequence[BatchBuilder]:
        """Find where all such messages go whose key alone decides; as `reach`, but remembered."""
        try:
            return exchange.cache.lookup(routing_key).builders
        except ChannelError:
            queues = self.reach(exchange, [routing_key.decode()], None)
            return [queue.builder for queue in queues]

    def _resolve(self, exchange: Exchange, routing_key: bytes) -> Route:
        """Route a key that was not remembered; one that is not UTF-8 raises 501."""
        try:
            key = routing_key.decode()
        except UnicodeDecodeError:
            raise ConnectionClosingError(501, f"cannot decode {term(routing_key)}") from None
        return Route(queue.builder for queue in self.route(exchange, [key], None))

    def add_exchange(
        self, definition: ExchangeDefinition, policy: EffectivePolicy = NO_POLICY
    ) -> Exchange:
        """Take an exchange in; its name must be free and its type known.

        Raises the 406 that its arguments deserve.
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
        """Let an exchange go that nothing leads to any more; its own bindings lead nowhere."""
        exchange.gone = True
        del self.exchanges[exchange.name]
        self.large_arguments.leave(exchange)
        self._leave_alternate(exchange)
        for source in self.alternates.get(exchange.name, ()):
            self._edge_removed(source)

    def set_policy(self, exchange: Exchange, policy: EffectivePolicy) -> None:
        """Let an exchange follow another policy, which may name another alternate."""
        before = exchange.alternate
        self._leave_alternate(exchange)
        exchange.policy = policy
        if before != exchange.alternate and before in self.exchanges:
            self._edge_removed(exchange)
        self._lead_to_alternate(exchange)

    def _lead_to_alternate(self, exchange: Exchange) -> None:
        """Note where an exchange sends what it cannot route."""
        alternate = exchange.alternate
        if alternate is not None:
            self.alternates.setdefault(alternate, {})[exchange] = None
            if alternate in self.exchanges:
                self._edge_added(exchange, self.exchanges[alternate])

    def _leave_alternate(self, exchange: Exchange) -> None:
        """Undo `_lead_to_alternate`, but for the routes that are remembered."""
        alternate = exchange.alternate
        if alternate is not None:
            del self.alternates[alternate][exchange]
            if not self.alternates[alternate]:
                del self.alternates[alternate]

    def find_binding(self, definition: BindingDefinition) -> Binding | None:
        """Find the binding that means the same as `definition`."""
        source = self.exchanges.get(definition.source)
        found = source.outgoing.get(identity(definition)) if source else None
        return None if found is None or found.destination.gone else found

    def remove_queue(self, queue: QueueLike) -> dict[Hashable, Binding]:
        """Let no way lead to a queue from now on. Returns its bindings, which are to be removed."""
        queue.gone = True
        bindings = self.queue_bindings.pop(queue.definition.name, {})
        for source in {binding.source for binding in bindings.values()}:
            self._forget_routes(source, [queue.definition.name, *queue.definition.aliases])
        return bindings

    def add_binding(self, binding: Binding) -> None:
        """Take a binding in that is not there yet."""
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
        """Let a binding go; whoever has both its ends may have taken it out of theirs."""
        source, destination = binding.source, binding.destination
        source.outgoing.pop(binding.identity, None)
        self.large_arguments.leave(binding)
        if not destination.gone:
            self._leave_end(binding)
        if source.gone:
            return  # nobody asks it any more
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
        """Find the bindings that lead to the same destination."""
        if isinstance(binding.destination, Exchange):
            return binding.destination.incoming
        return self.queue_bindings.setdefault(binding.definition.destination, {})

    def _forget(self, binding: Binding) -> None:
        """Drop the remembered routes that a binding to a queue may be part of."""
        self._forget_routes(binding.source, [binding.definition.routing_key])

    def _forget_routes(self, source: Exchange, keys: Iterable[str]) -> None:
        """Drop the remembered routes over `source`; over the default exchange, those of `keys`."""
        leading = self._leading_to(source)
        if source.name == "":  # one key means one queue here, and the other keys are worth keeping
            for key in keys:
                source.cache.forget(key.encode(errors="surrogateescape"))
            leading = leading[1:]
        for exchange in leading:
            exchange.cache.clear()

    def _filter_added(self, source: Exchange) -> None:
        """Note that the key does not decide any more where messages of `source` go."""
        source.filters += 1
        if source.filters == 1:
            for exchange in self._leading_to(source):
                exchange.cache.set_cacheable(False)

    def _filter_removed(self, source: Exchange) -> None:
        """Note that it may decide again."""
        source.filters -= 1
        if not source.filters:
            for exchange in self._leading_to(source):
                exchange.cache.set_cacheable(self._key_decides(exchange))

    def _edge_added(self, source: Exchange, destination: Exchange) -> None:
        """Note that messages of `source`, and of all before it, may reach `destination` now."""
        cacheable = destination.cache.cacheable
        for exchange in self._leading_to(source):
            if cacheable:
                exchange.cache.clear()
            else:
                exchange.cache.set_cacheable(False)

    def _edge_removed(self, source: Exchange) -> None:
        """Note that `source`, and all before it, may no longer reach what they did."""
        was_cacheable = source.cache.cacheable  # fewer edges do not make it less so
        for exchange in self._leading_to(source):
            if was_cacheable:
                exchange.cache.clear()
            else:
                exchange.cache.set_cacheable(self._key_decides(exchange))

    def _leading_to(self, exchange: Exchange) -> list[Exchange]:
        """List an exchange, first, and all from which a message can come to it."""
        return spread(exchange, self._predecessors)

    def _key_decides(self, exchange: Exchange) -> bool:
        """Tell whether the routes from here depend on nothing but the key."""
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
    """Refuse (406) a message whose sender has named very many routing keys."""
    if count > KEYS_MAX:
        raise ChannelError(
            406, f"a message has at most {KEYS_MAX} routing keys, those of CC and BCC included"
        )


def spread(start: Exchange, neighbours: Callable[[Exchange], Iterable[Exchange]]) -> list[Exchange]:
    """List all exchanges that can be reached over `neighbours`, `start` first, each once."""
    found: dict[Exchange, None] = {start: None}
    waiting = [start]
    while waiting:
        for exchange in neighbours(waiting.pop()):
            if exchange not in found:
                found[exchange] = None
                waiting.append(exchange)
    return list(found)
