"""Changes of a queue in use: its arguments, its name, and pausing.

Each change takes effect at once and is passed to the store as one: a crash leaves the state before
or after. Consumers and their leases stay. Raises AdministrationError for invalid changes, and
ChannelError where a declaration would.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.core.definitions.validation import AdministrationError
from leveret.core.erlang_terms import frozen
from leveret.core.names import NAME_BYTES_MAX, resource
from leveret.core.settings import contradictions
from leveret.core.settings.arguments import (
    DEAD_LETTER_EXCHANGE,
    GROUP_ORDERING,
    QUEUE_TYPE,
    check_exchange_name,
    check_queue_arguments,
    type_of,
)
from leveret.core.settings.partitioning import PARTITION_BY, PARTITIONS
from leveret.ports.definitions import Paused

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.ports.definitions import Arguments, QueueDefinition

__all__ = ["change_arguments", "pause", "rename", "resume"]

ALIASES_MAX = 16  # former names of a queue; beyond that, some must be removed
# Arguments that determine the order of messages: it is indexed when they come in, so that the
# backlog must be read again.
ORDERS: Final = (QUEUE_TYPE, "x-max-priority", GROUP_ORDERING)


def change_arguments(broker: Broker, queue: DeclaredQueue, changes: Arguments) -> None:
    """Set some of a queue's arguments, and remove those that are None."""
    definition = queue.definition
    arguments = {**definition.arguments, **changes}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    changed = replace(definition, arguments=arguments)
    check_exchange_name(
        DEAD_LETTER_EXCHANGE,
        resource("queue", definition.name, definition.vhost),
        arguments,
    )
    check_queue_arguments(changed)
    contradictions.check_queue(changed, definition.arguments)
    _check_placement(definition.arguments, arguments)
    reorder = _check_order(queue, arguments)
    if frozen(arguments) != frozen(definition.arguments):
        _redefine(broker, queue, changed, reorder=reorder)
        _tell(broker, queue, "queue.changed", arguments=arguments)


def _check_placement(current: Arguments, arguments: Arguments) -> None:
    """Raise AdministrationError if messages would be placed in other partitions."""
    for key in (PARTITIONS, PARTITION_BY):
        if current.get(key) != arguments.get(key):
            raise AdministrationError(
                "invalid",
                f"'{key}' cannot change: `leveret topic partitions` changes how many partitions a "
                "queue has, and how messages are placed stays as declared",
            )


def _check_order(queue: DeclaredQueue, arguments: Arguments) -> bool:
    """Whether messages will be served in another order.

    Raises AdministrationError if impossible.
    """
    current = queue.definition.arguments
    before, after = type_of(current), type_of(arguments)
    if before != after and "stream" in {before, after}:
        raise AdministrationError(
            "invalid",
            f"'{QUEUE_TYPE}' cannot change from {before} to {after}: what a stream keeps others "
            "hand out once; copy the messages to another queue",
        )
    changed = [key for key in ORDERS if frozen(current.get(key)) != frozen(arguments.get(key))]
    if before == after and QUEUE_TYPE in changed:
        changed.remove(QUEUE_TYPE)  # classic, whether stated or by default
    if changed and not queue.can_reorder:
        raise AdministrationError(
            "invalid",
            f"'{changed[0]}' cannot change now: messages that consumers hold, or that are being "
            "written, have their places; pause the queue, and try again when nothing is unacked",
        )
    return bool(changed)


def pause(broker: Broker, queue: DeclaredQueue, paused: Paused) -> None:
    """Pause deliveries of a queue, and with ALL publishes, too."""
    if paused is Paused.ALL and type_of(queue.definition.arguments) == "stream":
        raise AdministrationError("invalid", "a stream takes whatever is published to it")
    if queue.definition.paused is not paused:
        _redefine(broker, queue, replace(queue.definition, paused=paused))
        _tell(broker, queue, "queue.paused", paused=str(paused))


def resume(broker: Broker, queue: DeclaredQueue) -> None:
    """Resume a paused queue."""
    if queue.definition.paused is not Paused.NOTHING:
        _redefine(broker, queue, replace(queue.definition, paused=Paused.NOTHING))
        queue.wake()
        _tell(broker, queue, "queue.resumed")


def rename(broker: Broker, queue: DeclaredQueue, name: str) -> None:
    """Rename a queue; the old name becomes an alias.

    Policies apply by the new name, permissions by the name that a client uses.
    """
    definition = queue.definition
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise AdministrationError("invalid", f"a name has 1 to {NAME_BYTES_MAX} bytes")
    if len(definition.aliases) >= ALIASES_MAX and name not in definition.aliases:
        raise AdministrationError("limit", f"a queue has at most {ALIASES_MAX} aliases")
    broker.vhosts[definition.vhost].rename_queue(queue, name)
    broker.reconfigure(queue)


def _redefine(
    broker: Broker, queue: DeclaredQueue, definition: QueueDefinition, *, reorder: bool = False
) -> None:
    queue.definition = definition
    if definition.durable:
        broker.metadata.put(definition)
    broker.reconfigure(queue, reorder=reorder)


def _tell(broker: Broker, queue: DeclaredQueue, event: str, **told: object) -> None:
    broker.events.emit(event, {"name": queue.name, "vhost": queue.definition.vhost, **told})
