"""A virtual host: what clients declare, bind, look up and delete, with the checks and the texts.

The routing itself is the business of `RoutingGraph`; what survives a restart goes to a store. Names
arrive as the client sent them. Permissions have been checked by the caller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from leveret.core import equivalence
from leveret.core.arguments import (
    ALTERNATE_EXCHANGE,
    DEAD_LETTER_EXCHANGE,
    check_exchange_name,
    check_queue_arguments,
    check_server_named,
    with_default_type,
)
from leveret.core.bindings import Binding, QueueLike
from leveret.core.events import (
    EVENT_EXCHANGE,
    EVENT_VHOST,
    binding_headers,
    exchange_headers,
    queue_headers,
    silent,
)
from leveret.core.exchange import Exchange
from leveret.core.exchanges import check_type
from leveret.core.limits import Quota
from leveret.core.log_exchange import LOG_EXCHANGE
from leveret.core.names import check_not_reserved, not_found, resource, server_named, stripped
from leveret.core.policies import Policies
from leveret.core.routing import RoutingGraph
from leveret.core.trace import TRACE_EXCHANGE
from leveret.errors import ChannelError
from leveret.ports.definitions import (
    Arguments,
    BindingDefinition,
    Definition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    VhostDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.core.events import Emit
    from leveret.core.exchanges import RandomBelow
    from leveret.core.message import Message
    from leveret.core.routes import RouteCache

__all__ = ["DefinitionSink", "Exchange", "QueueLike", "Vhost"]

DEFAULT_EXCHANGE = ""
PREDECLARED = {
    DEFAULT_EXCHANGE: "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    TRACE_EXCHANGE: "topic",
}
INTERNAL = {TRACE_EXCHANGE, EVENT_EXCHANGE, LOG_EXCHANGE}  # only the broker publishes there


class DefinitionSink(Protocol):
    """The part of a MetadataStore that a virtual host writes to."""

    def put(self, definition: Definition) -> None:
        """Keep a definition."""
        ...

    def remove(self, definition: Definition) -> None:
        """Keep it no longer."""
        ...


class Vhost:
    """Exchanges, queues and bindings of one name space.

    `open_queue(definition, owner)` makes a queue, its log included; `random_name()` gives a string
    that is unique for practical purposes, `random_below(n)` one of 0 … n - 1; `deposit(queues,
    message)` puts a message into queues; `emit(key, headers)` is told what came and went (see
    leveret.core.events). `generation` changes whenever an exchange comes or goes: connections then
    drop the RouteCaches they hold. `traced` says whether the firehose is on (see
    leveret.core.trace); Broker.trace changes it.
    """

    def __init__(
        self,
        definition: VhostDefinition,
        *,
        open_queue: Callable[[QueueDefinition, object | None], QueueLike],
        store: DefinitionSink,
        random_name: Callable[[], str],
        random_below: RandomBelow,
        deposit: Callable[[Iterable[QueueLike], Message], None],
        policies: Policies | None = None,
        quota: Quota | None = None,
        emit: Emit = silent,
        log_exchange: bool = False,
    ) -> None:
        self.definition = definition  # replaced when its description or limits change
        self.name = definition.name
        self.generation = 0
        self.traced = False
        self.queues: dict[str, QueueLike] = {}
        self._graph = RoutingGraph(random_below)
        self.exchanges = self._graph.exchanges
        self._open_queue = open_queue
        self._store = store
        self._random_name = random_name
        self._deposit = deposit
        self._policies = policies or Policies()
        self._quota = quota or Quota()
        self._emit = emit
        self._owned: dict[object, dict[str, QueueLike]] = {}
        self._predeclared = dict(PREDECLARED)
        if self.name == EVENT_VHOST:
            self._predeclared[EVENT_EXCHANGE] = "topic"
            if log_exchange:
                self._predeclared[LOG_EXCHANGE] = "topic"
        for name, kind in self._predeclared.items():
            self._add_exchange(ExchangeDefinition(self.name, name, kind, internal=name in INTERNAL))

    # ----- publishing

    def cache(self, exchange_name: str) -> RouteCache:
        """Give the routes of an exchange to publish to: 404 when missing, 403 when internal."""
        exchange = self._exchange(exchange_name)
        if exchange.definition.internal:
            raise ChannelError(403, f"cannot publish to internal {self._describe(exchange_name)}")
        return exchange.cache

    def route(
        self, exchange: Exchange, routing_keys: Sequence[str], message: Message | None
    ) -> list[QueueLike]:
        """Follow one message to its queues, each once, over bindings between exchanges too.

        The keys behind the first are those that its sender has added.
        """
        return self._graph.route(exchange, routing_keys, message)

    # ----- exchanges

    def declare_exchange(
        self,
        name: str,
        type_: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Arguments,
    ) -> Exchange:
        """Create an exchange, or check that the one of this name is the same (406)."""
        check_type(type_)
        name = stripped(name)
        check_not_default(name)
        received = ExchangeDefinition(
            self.name, name, type_, durable, auto_delete, internal, arguments
        )
        exchange = self.exchanges.get(name)
        if exchange is not None:
            equivalence.check_exchange(exchange.definition, received)
            return exchange
        check_not_reserved("exchange", name)
        return self._create_exchange(received)

    def check_exchange(self, name: str) -> Exchange:
        """Look an exchange up for a client: 404 when missing, 403 for the default one."""
        name = stripped(name)
        check_not_default(name)
        return self._exchange(name)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and all its bindings; a missing one is fine.

        Raises 403 for the broker's own, 406 if it must be unused and is the source of a binding.
        """
        name = stripped(name)
        check_not_default(name)
        if name.startswith("amq."):
            raise ChannelError(403, f"deletion of system {self._describe(name)} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.outgoing:
            raise ChannelError(406, f"{self._describe(name)} in use")
        self._drop_exchanges([exchange])

    # ----- queues

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments,
        owner: object | None,
        permit: Callable[[str], None] | None = None,
    ) -> QueueLike:
        """Create a queue, or check that the one of this name is the same (405, 406).

        The empty name asks for one of the broker's making. `owner` is the declaring connection,
        whether or not the queue is exclusive. `permit` raises unless the name is permitted.
        """
        arguments = with_default_type(
            arguments,
            self.definition.default_queue_type,
            replicable=durable and not exclusive and not auto_delete,
        )
        name, is_server_named = stripped(name), False
        if not name:
            check_server_named(arguments)
            name = server_named(self._random_name, arguments.get("x-name-prefix"))
            is_server_named = True
        if permit is not None:
            permit(name)
        received = QueueDefinition(
            self.name, name, durable and not exclusive, exclusive, auto_delete, arguments
        )
        owner = owner if exclusive else None
        if name not in self.queues:
            if not is_server_named:
                check_not_reserved("queue", name)
            return self._create_queue(received, owner)
        queue = self.queues[name]
        if queue.owner is not owner:
            raise self._locked(name)
        equivalence.check_queue(queue.definition, received)
        return queue

    def check_queue(self, name: str, owner: object | None) -> QueueLike:
        """Look a queue up for a client: 404 when missing, 405 when it is another connection's."""
        queue = self._queue(stripped(name))
        self._check_access(queue, owner)
        return queue

    def remove_queue(self, queue: QueueLike) -> None:
        """Take a queue out with its bindings and what they kept alive; a second time is fine.

        The caller cancels the consumers and deletes the log.
        """
        name = queue.definition.name
        if self.queues.get(name) is not queue:
            return
        del self.queues[name]
        self._quota.queue_count -= 1
        if queue.owner is not None:
            del self._owned[queue.owner][name]
            if not self._owned[queue.owner]:
                del self._owned[queue.owner]
        bindings = list(self._graph.queue_bindings.get(name, {}).values())
        for binding in bindings:
            self._remove_binding(binding)
        if queue.definition.durable:
            self._store.remove(queue.definition)
        self._tell_unbound(bindings)
        self._drop_exchanges(self._abandoned(bindings))
        self._emit("queue.deleted", {"name": name, "vhost": self.name})

    def exclusive_queues(self, owner: object) -> list[QueueLike]:
        """List the queues that go with a connection."""
        return list(self._owned.get(owner, {}).values())

    # ----- bindings

    def bind_queue(
        self,
        queue_name: str,
        exchange: str,
        routing_key: str,
        arguments: Arguments,
        owner: object | None,
    ) -> None:
        """Bind a queue to an exchange; a binding that exists is fine. 403, 404, 405, 406."""
        wanted = self._to_queue(queue_name, exchange, routing_key, arguments)
        source, queue = self._exchange(wanted.source), self._queue(wanted.destination)
        binding = Binding(wanted, source, queue)
        source.router.check(binding)
        self._check_access(queue, owner)
        self._bind(binding)

    def unbind_queue(
        self,
        queue_name: str,
        exchange: str,
        routing_key: str,
        arguments: Arguments,
        owner: object | None,
    ) -> None:
        """Remove a binding to a queue; a missing one is fine, or a missing end of it. 403, 405."""
        wanted = self._to_queue(queue_name, exchange, routing_key, arguments)
        # Clients tidy up in any order; RabbitMQ 3.10 was seen to allow it too.
        if self._graph.find_binding(wanted) is not None:
            self._check_access(self.queues[wanted.destination], owner)
            self._unbind(wanted)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Bind an exchange to another; a binding that exists is fine. 403, 404, 406."""
        wanted = self._to_exchange(destination, source, routing_key, arguments)
        begin, end = self._exchange(wanted.source), self._exchange(wanted.destination)
        binding = Binding(wanted, begin, end)
        begin.router.check(binding)
        self._bind(binding)

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Remove a binding between exchanges; a missing one is fine, as in `unbind_queue`. 403."""
        self._unbind(self._to_exchange(destination, source, routing_key, arguments))

    # ----- policies, and the end

    def apply_policies(self) -> None:
        """Let every exchange follow the policies as they are now; queues are the broker's."""
        for exchange in self.exchanges.values():
            policy = self._policies.for_exchange(self.name, exchange.name)
            if policy != exchange.policy:
                self._graph.set_policy(exchange, policy)

    def close(self) -> None:
        """Give up the exchanges and their bindings; queues have been removed. Once."""
        for exchange in self.exchanges.values():
            for binding in exchange.outgoing.values():
                if binding.durable:
                    self._store.remove(binding.definition)
            if exchange.definition.durable and exchange.name not in self._predeclared:
                self._store.remove(exchange.definition)
        self._quota.exchange_count -= len(self.exchanges)

    # ----- for definitions that somebody exports or imports

    def definitions(self) -> Definitions:
        """Exchanges, queues and bindings, but for the broker's own and for exclusive queues."""
        queues = [queue for _, queue in sorted(self.queues.items()) if queue.owner is None]
        exchanges = [exchange for _, exchange in sorted(self.exchanges.items()) if exchange.name]
        bindings = [
            binding.definition
            for exchange in exchanges
            for binding in exchange.outgoing.values()
            if isinstance(binding.destination, Exchange) or binding.destination.owner is None
        ]
        return Definitions(
            exchanges=[x.definition for x in exchanges if x.name not in self._predeclared],
            queues=[queue.definition for queue in queues],
            bindings=sorted(bindings, key=lambda held: (held.source, held.destination)),
        )

    def add_exchange(self, definition: ExchangeDefinition) -> None:
        """Create an exchange; one that exists stays as it is. 406."""
        check_type(definition.type)
        if definition.name not in self.exchanges:
            self._create_exchange(definition)

    def add_queue(self, definition: QueueDefinition) -> None:
        """Create a queue of just this type; one that exists stays as it is. 406."""
        if definition.name not in self.queues:
            self._create_queue(definition, None)

    def add_binding(self, definition: BindingDefinition) -> bool:
        """Bind; False where an end is missing. 406."""
        binding = self._found(definition)
        if binding is None:
            return False
        binding.source.router.check(binding)
        self._bind(binding)
        return True

    # ----- from the store

    def restore(
        self,
        exchanges: Iterable[ExchangeDefinition],
        queues: Iterable[QueueDefinition],
        bindings: Iterable[BindingDefinition],
    ) -> None:
        """Rebuild what a store kept; nothing is written back. Once, before clients come.

        Raises 406 for an exchange type that this version does not know, and what `open_queue`
        raises. A binding that has lost an end is left out.
        """
        for exchange in exchanges:
            check_type(exchange.type)
            if exchange.name not in self.exchanges:
                self._enter_exchange(exchange)
        for queue in queues:
            self._enter_queue(self._open_queue(queue, None))
        for kept in bindings:
            binding = self._found(kept)
            if binding is not None:
                self._graph.add_binding(binding)

    # ----- inside

    def _found(self, definition: BindingDefinition) -> Binding | None:
        """The binding with its ends; None where one is missing."""
        source = self.exchanges.get(definition.source)
        ends = self.queues if definition.destination_type == "queue" else self.exchanges
        destination = ends.get(definition.destination)
        if source is None or destination is None:
            return None
        return Binding(definition, source, destination)

    def _create_exchange(self, received: ExchangeDefinition) -> Exchange:
        name = received.name
        check_exchange_name(ALTERNATE_EXCHANGE, self._describe(name), received.arguments)
        self._quota.check_exchange(self.definition, name)
        exchange = self._add_exchange(received)
        if received.durable:
            self._store.put(received)
        return exchange

    def _create_queue(self, received: QueueDefinition, owner: object | None) -> QueueLike:
        name = received.name
        check_exchange_name(
            DEAD_LETTER_EXCHANGE, resource("queue", name, self.name), received.arguments
        )
        check_queue_arguments(received)
        self._quota.check_queue(self.definition, name, len(self.queues))
        definition = replace(received, incarnation=self._random_name())
        queue = self._open_queue(definition, owner)
        if definition.durable:
            self._store.put(definition)
        self._enter_queue(queue)
        self._emit("queue.created", queue_headers(definition, owner))
        return queue

    def _add_exchange(self, definition: ExchangeDefinition) -> Exchange:
        """Make an exchange known, under the policy that fits it."""
        exchange = self._enter_exchange(definition)
        self._emit("exchange.created", exchange_headers(definition))
        return exchange

    def _enter_exchange(self, definition: ExchangeDefinition) -> Exchange:
        policy = self._policies.for_exchange(self.name, definition.name)
        exchange = self._graph.add_exchange(definition, policy)
        self.generation += 1
        self._quota.exchange_count += 1
        return exchange

    def _enter_queue(self, queue: QueueLike) -> None:
        """Make a queue known, reachable by its name over the default exchange."""
        name = queue.definition.name
        self.queues[name] = queue
        self._quota.queue_count += 1
        if queue.owner is not None:
            self._owned.setdefault(queue.owner, {})[name] = queue
        implicit = BindingDefinition(self.name, DEFAULT_EXCHANGE, name, "queue", name)
        self._graph.add_binding(Binding(implicit, self.exchanges[DEFAULT_EXCHANGE], queue))

    def _to_queue(
        self, queue_name: str, exchange: str, routing_key: str, arguments: Arguments
    ) -> BindingDefinition:
        """Describe a binding from an exchange to a queue, whether or not they exist."""
        source, name = stripped(exchange), stripped(queue_name)
        check_not_default(source)
        return BindingDefinition(self.name, source, name, "queue", routing_key, arguments)

    def _to_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Arguments
    ) -> BindingDefinition:
        """Describe a binding from an exchange to an exchange, whether or not they exist."""
        source, name = stripped(source), stripped(destination)
        check_not_default(name)
        check_not_default(source)
        return BindingDefinition(self.name, source, name, "exchange", routing_key, arguments)

    def _bind(self, binding: Binding) -> None:
        if self._graph.find_binding(binding.definition) is not None:
            return
        if binding.durable:
            self._store.put(binding.definition)
        self._graph.add_binding(binding)
        self._tell_history(binding)
        self._emit("binding.created", binding_headers(binding.definition))

    def _tell_history(self, binding: Binding) -> None:
        """Send through a new binding what its exchange keeps for such."""
        end = binding.destination
        for message in binding.source.router.history():
            if isinstance(end, Exchange):
                queues = self.route(end, [message.routing_key.decode()], message)
            else:
                queues = [end]
            self._deposit(queues, message)

    def _unbind(self, wanted: BindingDefinition) -> None:
        binding = self._graph.find_binding(wanted)
        if binding is not None:
            self._remove_binding(binding)
            self._tell_unbound([binding])
            self._drop_exchanges(self._abandoned([binding]))

    def _remove_binding(self, binding: Binding) -> None:
        if binding.durable and binding.source.name != DEFAULT_EXCHANGE:
            self._store.remove(binding.definition)
        self._graph.remove_binding(binding)

    def _tell_unbound(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            if binding.source.name != DEFAULT_EXCHANGE:
                self._emit("binding.deleted", binding_headers(binding.definition))

    def _abandoned(self, removed: Iterable[Binding]) -> list[Exchange]:
        """List the auto-delete exchanges that lost their last binding as a source."""
        sources = {binding.source: None for binding in removed}
        return [x for x in sources if x.definition.auto_delete and not x.outgoing]

    def _drop_exchanges(self, doomed: list[Exchange]) -> None:
        """Delete exchanges with their bindings, and those that are abandoned thereby."""
        while doomed:
            exchange = doomed.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            # One from an exchange to itself is in both.
            bindings = list(
                dict.fromkeys([*exchange.outgoing.values(), *exchange.incoming.values()])
            )
            for binding in bindings:
                self._remove_binding(binding)
            self._graph.remove_exchange(exchange)
            self._quota.exchange_count -= 1
            if exchange.definition.durable:
                self._store.remove(exchange.definition)
            self.generation += 1
            self._emit("exchange.deleted", {"name": exchange.name, "vhost": self.name})
            self._tell_unbound(bindings)
            doomed.extend(self._abandoned(bindings))

    def _exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found("exchange", name, self.name)
        return exchange

    def _queue(self, name: str) -> QueueLike:
        queue = self.queues.get(name)
        if queue is None:
            raise not_found("queue", name, self.name)
        return queue

    def _check_access(self, queue: QueueLike, owner: object | None) -> None:
        if queue.owner is not None and queue.owner is not owner:
            raise self._locked(queue.definition.name)

    def _locked(self, name: str) -> ChannelError:
        return ChannelError(
            405,
            f"cannot obtain exclusive access to locked {resource('queue', name, self.name)}. "
            "It could be originally declared on another connection or the exclusive property "
            "value does not match that of the original declaration.",
        )

    def _describe(self, exchange_name: str) -> str:
        return resource("exchange", exchange_name, self.name)


def check_not_default(name: str) -> None:
    """Refuse (403) to declare, delete or bind the default exchange."""
    if name == DEFAULT_EXCHANGE:
        raise ChannelError(403, "operation not permitted on the default exchange")
