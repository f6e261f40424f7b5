"""Changes of exchanges, queues and bindings on the node that they are made on."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leveret.broker import alter_queue
from leveret.core.names import not_found
from leveret.errors import ChannelError
from leveret.ports.definition_changes import (
    AddBinding,
    AddQueue,
    ChangeOutcome,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DropDefinition,
    KeepDefinition,
    RemoveBinding,
    RemoveQueue,
)
from leveret.ports.definitions import GroupDefinition, QueueDefinition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leveret.broker.broker import Broker
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.ports.definition_changes import DefinitionChange
    from leveret.ports.definitions import Definition

__all__ = ["LocalChanges", "apply_change", "vhost_of_change"]

NO_OUTCOME = ChangeOutcome()


class LocalChanges:
    """`DefinitionChanges` of a single node: everything is changed at once."""

    writes_first = False  # methods without a flush are answered at once

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def make(
        self,
        change: DefinitionChange,
        owner: object | None,
        then: Callable[[ChangeOutcome], Awaitable[None] | None],
    ) -> Awaitable[None] | None:
        """Make a change at once (see DefinitionChanges)."""
        return then(apply_change(self._broker, change, owner))

    def remove_queue(self, vhost: Vhost, queue: DeclaredQueue) -> Awaitable[None] | None:
        """Delete a queue at once (see DefinitionChanges)."""
        self._broker.drop_queue(vhost, queue)
        return None


def vhost_of_change(change: DefinitionChange) -> str:
    """Return the name of the virtual host that a change is made in."""
    match change:
        case AddQueue(definition):
            return definition.vhost
        case AddBinding(binding) | RemoveBinding(binding):
            return binding.vhost
        case KeepDefinition(definition) | DropDefinition(definition):
            return getattr(definition, "vhost", "")
    return change.vhost


def apply_change(broker: Broker, change: DefinitionChange, owner: object | None) -> ChangeOutcome:
    """Apply a change to a broker's virtual hosts, for the connection `owner` that asks for it.

    Raises ChannelError, ConnectionClosingError and StorageError.
    """
    _check_kind(change)
    name = vhost_of_change(change)
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise ChannelError(404, f"no vhost '{name}'")
    match change:
        case DeclareQueue() | AddQueue():
            return ChangeOutcome(_declared(vhost, change, owner))
        case DeleteQueue() | RemoveQueue():
            return ChangeOutcome(message_count=_deleted(broker, vhost, change, owner))
        case DeclareExchange():
            vhost.declare_exchange(
                change.name,
                change.type,
                durable=change.durable,
                auto_delete=change.auto_delete,
                internal=change.internal,
                arguments=change.arguments,
            )
        case DeleteExchange():
            vhost.delete_exchange(change.name, if_unused=change.if_unused)
        case AddBinding() | RemoveBinding():
            _bind(vhost, change, owner)
        case KeepDefinition(definition):
            _keep(broker, vhost, definition)
        case DropDefinition(GroupDefinition() as group):
            broker.groups.follow_removal(group)
            broker.metadata.remove(group)
    return NO_OUTCOME


def _declared(vhost: Vhost, change: DeclareQueue | AddQueue, owner: object | None) -> str:
    """Declare a queue; return its name."""
    if isinstance(change, DeclareQueue):
        return vhost.take_queue(change, owner).definition.name
    vhost.add_queue(change.definition, owner)
    return change.definition.name


def _deleted(
    broker: Broker, vhost: Vhost, change: DeleteQueue | RemoveQueue, owner: object | None
) -> int:
    """Delete a queue; return how many messages were ready."""
    if change.name not in vhost.queues:
        return 0  # not by an alias: the queue has its new name
    if isinstance(change, DeleteQueue):
        queue = broker.find_queue(vhost, change.name, owner)
        return broker.delete_queue(
            vhost, queue, if_unused=change.if_unused, if_empty=change.if_empty
        )
    queue = cast("DeclaredQueue", vhost.queues[change.name])
    if queue.definition.incarnation == change.incarnation:
        broker.drop_queue(vhost, queue)
    return 0


def _bind(vhost: Vhost, change: AddBinding | RemoveBinding, owner: object | None) -> None:
    wanted = change.binding
    names = wanted.destination, wanted.source, wanted.routing_key, wanted.arguments
    adds = isinstance(change, AddBinding)
    if wanted.destination_type == "queue":
        bind = vhost.bind_queue if adds else vhost.unbind_queue
        bind(*names, owner)
    else:
        bind_exchange = vhost.bind_exchange if adds else vhost.unbind_exchange
        bind_exchange(*names)


def _check_kind(change: DefinitionChange) -> None:
    """Raise ChannelError 406 for what no node changes by itself."""
    if isinstance(change, KeepDefinition | DropDefinition):
        kind = type(change.definition)
        if kind not in (GroupDefinition, QueueDefinition):
            raise ChannelError(406, f"a node cannot change {kind.__name__} by itself")


def _keep(broker: Broker, vhost: Vhost, definition: Definition) -> None:
    """Have a definition as another node has changed it. Raises ChannelError 404 and 406."""
    if isinstance(definition, GroupDefinition):
        broker.groups.load([definition])
    else:
        assert isinstance(definition, QueueDefinition), "nothing else is kept"
        queue = vhost.queues.get(definition.name)
        if queue is None or queue.definition.incarnation != definition.incarnation:
            raise not_found("queue", definition.name, vhost.name)
        alter_queue.follow(broker, cast("DeclaredQueue", queue), definition)
    broker.metadata.put(definition)
