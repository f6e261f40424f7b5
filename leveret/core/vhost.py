"""Virtual host: clients' declarations, bindings, lookups and deletions, with checks and texts.

Called by connections and by the import of definitions. `Topology` holds the objects and applies the
changes. Names are as the client sent them. The caller has checked permissions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.access.limits import Quota
from leveret.core.chores import at_once
from leveret.core.events import actor, no_event
from leveret.core.exchanges import check_type
from leveret.core.names import check_not_reserved, not_found, resource, server_named, stripped
from leveret.core.routing.bindings import Binding
from leveret.core.settings import contradictions, equivalence
from leveret.core.settings.arguments import (
    ALTERNATE_EXCHANGE,
    DEAD_LETTER_EXCHANGE,
    DEDUP_WINDOW,
    check_exchange_name,
    check_queue_arguments,
    check_server_named,
    check_value,
    dedup_window,
    with_default_type,
)
from leveret.core.settings.policies import Policies
from leveret.core.topology.predeclared import check_not_default
from leveret.core.topology.topology import Topology
from leveret.errors import ChannelError
from leveret.ports.counters import Counters
from leveret.ports.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from leveret.core.events import Emit
    from leveret.core.exchanges import RandomBelow
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message
    from leveret.core.routing.routes import RouteCache
    from leveret.ports import DefinitionSink
    from leveret.ports.authentication import Kind
    from leveret.ports.definitions import Arguments, VhostDefinition

__all__ = ["Vhost"]


def tolerate_none(_queue: QueueLike, _error: ChannelError) -> bool:
    """Reject every mismatching redeclaration: the default for `tolerates`."""
    return False


class Vhost:
    """Exchanges, queues and bindings of one namespace.

    `open_queue(definition, owner)` makes a queue with its log; `random_name()` returns a string
    that is unique for practical purposes, `random_below(n)` one of 0 … n - 1; `deposit(queues,
    message)` stores a message in queues; `emit(key, headers)` publishes an event (see
    leveret.core.events); `tolerates(queue, error)` accepts a mismatching redeclaration,
    after reporting it; `begin(chore)` runs long work in slices; `wall_ms()` gives queues their
    creation time. `traced` says whether the firehose is on (see leveret.core.telemetry.trace);
    Broker.trace sets it.
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
        emit: Emit = no_event,
        log_exchange: bool = False,
        tolerates: Callable[[QueueLike, ChannelError], bool] = tolerate_none,
        counters: Counters | None = None,
        begin: Callable[[Generator[None]], object] = at_once,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.definition = definition  # replaced when its description or limits change
        self.name = definition.name
        self.incarnation = definition.incarnation
        self.traced = False
        self.counters = counters or Counters()
        self._open_queue = open_queue
        self._random_name = random_name
        self._quota = quota or Quota()
        self._tolerates = tolerates
        self._wall_ms = wall_ms
        self.topology = Topology(
            self.name,
            store=store,
            random_below=random_below,
            deposit=deposit,
            policies=policies or Policies(),
            quota=self._quota,
            emit=emit,
            log_exchange=log_exchange,
            begin=begin,
        )
        self.exchanges = self.topology.exchanges
        self.queues = self.topology.queues
        # Routing of single messages: for publishers, and for messages that cannot be refused.
        self.route = self.topology.graph.route
        self.reach = self.topology.graph.reach
        self.reach_by_key = self.topology.graph.reach_by_key
        # What needs no check.
        self.definitions = self.topology.definitions
        self.follow_policy = self.topology.follow_policy
        self.remove_queue = self.topology.remove_queue
        self.exclusive_queues = self.topology.owned_by
        self.closing = self.topology.closing

    # ----- publishing

    def cache(self, exchange_name: str) -> RouteCache:
        """Return the route cache of an exchange to publish to.

        Raises 404, or 403 if it is internal.
        """
        exchange = self._exchange(exchange_name)
        if exchange.definition.internal:
            raise ChannelError(403, f"cannot publish to internal {self._describe(exchange_name)}")
        return exchange.cache

    # ----- names

    def freeing(self, kind: Kind, name: str) -> Generator[None] | None:
        """Return pending steps before a formerly used name may be declared again, or None."""
        return self.topology.freeing((kind, stripped(name)))

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
        """Create an exchange, or check that an existing one is equivalent.

        Raises ChannelError (406).
        """
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
        contradictions.check_exchange(received)
        return self._create_exchange(received)

    def check_exchange(self, name: str) -> Exchange:
        """Return an exchange. Raises 404 if it does not exist, 403 for the default exchange."""
        name = stripped(name)
        check_not_default(name)
        return self._exchange(name)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and all its bindings; no-op if it does not exist.

        Raises 403 for the broker's own exchanges, 406 with `if_unused` if it has outgoing bindings.
        """
        name = stripped(name)
        check_not_default(name)
        if name.startswith("amq."):
            raise ChannelError(403, f"deletion of system {self._describe(name)} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and any(not held.destination.gone for held in exchange.outgoing.values()):
            raise ChannelError(406, f"{self._describe(name)} in use")
        self.topology.remove_exchange(exchange)

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
        """Create a queue, or check that an existing one is equivalent. Raises 405, 406.

        An empty name is replaced by a generated one. `owner` is the declaring connection, whether
        or not the queue is exclusive. `permit` raises unless the name is permitted.
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
        queue = self.find_queue(name)
        if queue is None:
            if not is_server_named:
                check_not_reserved("queue", name)
            return self._create_queue(received, owner)
        if queue.owner is not owner:
            raise self._locked(name)
        try:
            equivalence.check_queue(queue.definition, received)
        except ChannelError as error:
            if not self._tolerates(queue, error):
                raise
        return queue

    def check_queue(self, name: str, owner: object | None) -> QueueLike:
        """Return a queue.

        Raises 404 if it does not exist, 405 if it is exclusive to another owner.
        """
        queue = self._queue(stripped(name))
        self._check_access(queue, owner)
        return queue

    def find_queue(self, name: str) -> QueueLike | None:
        """Return the queue with this name or alias, or None."""
        queue = self.queues.get(name)
        return self.topology.aliases.get(name) if queue is None else queue

    def no_queue(self, name: str) -> str:
        """Return the error text for a missing queue, with its new name if it was renamed."""
        renamed = self.topology.aliases.get(name)
        hint = "" if renamed is None else f": it is now called '{renamed.definition.name}'"
        return f"no queue '{name}' in vhost '{self.name}'{hint}"

    def rename_queue(self, queue: QueueLike, name: str) -> None:
        """Rename a queue; the old name becomes an alias. Raises 403, 405, 406."""
        name, old = stripped(name), queue.definition.name
        check_not_reserved("queue", name)
        found = self.find_queue(name)
        if not name or (found is not None and (found is not queue or name == old)):
            raise ChannelError(406, f"name '{name}' is not free in vhost '{self.name}'")
        if queue.definition.exclusive:
            raise self._locked(old)
        self.topology.rename_queue(queue, name)

    def remove_alias(self, alias: str) -> None:
        """Remove a queue alias. Raises 404 if it does not exist."""
        if alias not in self.topology.aliases:
            raise ChannelError(404, f"no alias '{alias}' in vhost '{self.name}'")
        self.topology.remove_alias(alias)

    # ----- bindings

    def bind_queue(
        self,
        queue_name: str,
        exchange: str,
        routing_key: str,
        arguments: Arguments,
        owner: object | None,
    ) -> None:
        """Bind a queue to an exchange; no-op if it is bound already. Raises 403, 404, 405, 406."""
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
    ) -> bool:
        """Remove a binding to a queue. Returns whether it existed. Raises 403, 405.

        A missing binding, exchange or queue is no error.
        """
        wanted = self._to_queue(queue_name, exchange, routing_key, arguments)
        # Clients delete in any order; RabbitMQ 3.10 was seen to allow it too.
        binding = self.topology.graph.find_binding(wanted)
        if binding is not None:
            self._check_access(self.queues[wanted.destination], owner)
            self.topology.unbind(binding)
        return binding is not None

    def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Bind an exchange to another; no-op if it is bound already. Raises 403, 404, 406."""
        wanted = self._to_exchange(destination, source, routing_key, arguments)
        begin, end = self._exchange(wanted.source), self._exchange(wanted.destination)
        binding = Binding(wanted, begin, end)
        begin.router.check(binding)
        self._bind(binding)

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Arguments
    ) -> bool:
        """Remove a binding between exchanges. Returns whether it existed. Raises 403.

        A missing binding or exchange is no error.
        """
        wanted = self._to_exchange(destination, source, routing_key, arguments)
        binding = self.topology.graph.find_binding(wanted)
        if binding is not None:
            self.topology.unbind(binding)
        return binding is not None

    # ----- import of definitions

    def add_exchange(self, definition: ExchangeDefinition) -> None:
        """Create an exchange; no-op if the name exists. Raises 406."""
        check_type(definition.type)
        if definition.name not in self.exchanges:
            self._create_exchange(definition)

    def add_queue(self, definition: QueueDefinition, owner: object | None = None) -> None:
        """Create a queue of exactly this type; no-op if the name exists. Raises 406.

        An exclusive queue is deleted with the connection `owner`.
        """
        if self.find_queue(definition.name) is None:
            free = [
                x for x in definition.aliases if x != definition.name and not self.find_queue(x)
            ]
            self._create_queue(replace(definition, aliases=tuple(free)), owner, imported=True)

    def add_binding(self, definition: BindingDefinition) -> bool:
        """Add a binding. Returns False if an end does not exist. Raises 406."""
        if definition.destination_type == "queue":
            definition = replace(definition, destination=self._present(definition.destination))
        of = f"a binding of {self._describe(definition.source)}"
        self._quota.check_arguments(definition.arguments, of)
        binding = self.topology.with_ends(definition)
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
        """Restore the stored topology, once, before clients connect; nothing is written back.

        Raises 406 for an exchange type that this version does not know, and what `open_queue`
        raises. A binding without one of its ends is skipped.
        """
        opened = (self._open_queue(queue, None) for queue in queues)
        self.topology.restore(exchanges, opened, bindings)

    def adopt_queue(self, received: QueueDefinition) -> QueueLike:
        """Create a durable queue on an existing log of a lost queue.

        `received` names the log by its incarnation and `log_name`; the queue's name must be free.
        Raises ChannelError for an invalid name or arguments, and StorageError.
        """
        name = received.name
        check_not_reserved("queue", name)
        check_queue_arguments(received)
        self._quota.check_queue(self.definition, name, len(self.queues))
        queue = self._open_queue(received, None)
        self.topology.add_queue(queue)
        return queue

    # ----- inside

    def _create_exchange(self, received: ExchangeDefinition) -> Exchange:
        name = received.name
        check_exchange_name(ALTERNATE_EXCHANGE, self._describe(name), received.arguments)
        check_value(DEDUP_WINDOW, dedup_window, self._describe(name), received.arguments)
        self._check_new(received.arguments, self._describe(name))
        self._quota.check_exchange(self.definition, name)
        return self.topology.add_exchange(received)

    def _create_queue(
        self, received: QueueDefinition, owner: object | None, *, imported: bool = False
    ) -> QueueLike:
        name = received.name
        check_exchange_name(
            DEAD_LETTER_EXCHANGE, resource("queue", name, self.name), received.arguments
        )
        check_queue_arguments(received)
        if not imported:
            contradictions.check_queue(received)
        self._check_new(received.arguments, resource("queue", name, self.name))
        self._quota.check_queue(self.definition, name, len(self.queues))
        made = replace(
            received,
            incarnation=self._random_name(),
            # An imported definition may carry these of the queue it was exported from.
            created_ms=received.created_ms or self._wall_ms(),
            created_by=received.created_by or actor.get(),
        )
        queue = self._open_queue(made, owner)
        self.topology.add_queue(queue)
        return queue

    def _bind(self, binding: Binding) -> None:
        """Add a checked binding; no-op if it exists."""
        definition = binding.definition
        if definition.arguments and self.topology.graph.find_binding(definition) is None:
            of = f"a binding of {self._describe(definition.source)}"
            self._check_new(definition.arguments, of)
        self.topology.bind(binding)

    def check_arguments(self, arguments: Arguments, of: str) -> None:
        """Raise 406 if a consumer has too many arguments."""
        self._quota.check_arguments(arguments, of)

    def _check_new(self, arguments: Arguments, of: str) -> None:
        if arguments:
            self._quota.check_more_arguments(arguments, of, self.topology.graph.large_arguments)

    def _to_queue(
        self, queue_name: str, exchange: str, routing_key: str, arguments: Arguments
    ) -> BindingDefinition:
        """Return the definition of a binding to a queue; its ends need not exist."""
        source, name = stripped(exchange), self._present(stripped(queue_name))
        check_not_default(source)
        self._quota.check_arguments(arguments, f"a binding of {self._describe(source)}")
        return BindingDefinition(self.name, source, name, "queue", routing_key, arguments)

    def _to_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Arguments
    ) -> BindingDefinition:
        """Return the definition of a binding to an exchange; its ends need not exist."""
        source, name = stripped(source), stripped(destination)
        check_not_default(name)
        check_not_default(source)
        self._quota.check_arguments(arguments, f"a binding of {self._describe(source)}")
        return BindingDefinition(self.name, source, name, "exchange", routing_key, arguments)

    def _exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found("exchange", name, self.name)
        return exchange

    def _present(self, name: str) -> str:
        """Return the present name of a queue called by a name or alias."""
        queue = self.topology.aliases.get(name)
        return name if queue is None else queue.definition.name

    def _queue(self, name: str) -> QueueLike:
        queue = self.find_queue(name)
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
