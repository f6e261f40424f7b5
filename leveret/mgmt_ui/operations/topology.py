"""Operations on exchanges, queues, bindings and connections of a running node.

Names, arguments, equivalence and errors are those of AMQP clients' declarations.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from leveret.broker import alter_queue
from leveret.core.admin.commands import command
from leveret.core.admin.node import not_running, queue_of, vhost_of
from leveret.core.admin.rights import IN_VHOST, MANAGEMENT, may
from leveret.core.admin.shown import check_short
from leveret.core.definitions.administration import AdministrationError
from leveret.core.json_fields import InvalidFieldError, table_of
from leveret.core.queues.queue import Queue
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.errors import ConnectionClosingError
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.retry.retrying import RetryTopic
from leveret.mgmt_ui.yielding import in_yielding_chunks
from leveret.ports.callbacks import has_failed
from leveret.ports.definitions import Paused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.broker.broker import Broker
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.authentication import Kind
    from leveret.ports.definitions import Arguments

__all__ = ["broker_of", "table_arguments", "when_caught_up"]

REASON_BYTES_MAX: Final = 200  # a reply text has 255 at most


def broker_of(node: AdminContext) -> Broker:
    """Return the broker of a running node. Raises AdministrationError for a stopped one."""
    if node.broker is None:
        raise not_running()
    return node.broker


async def when_caught_up(queue: DeclaredQueue) -> None:
    """Wait until all earlier publishes to a queue are visible in it."""
    if queue.is_caught_up:
        return
    await has_failed(queue.await_commit)  # either way there is nothing more to come


def table_arguments(value: dict[str, Any]) -> Arguments:
    """Return a field table from a JSON object. Raises AdministrationError."""
    try:
        table: Arguments = table_of(value)
    except InvalidFieldError as error:
        raise AdministrationError("invalid", f"arguments{error.path}: {error.problem}") from None
    return table


async def _free(node: AdminContext, vhost: str, kind: Kind, name: str) -> None:
    """Wait until the bindings of a deleted object of that name are gone."""
    freeing = vhost_of(node, vhost).freeing(kind, name)
    if freeing is not None:
        async for _ in in_yielding_chunks(freeing):
            pass


# -- exchanges


@command("exchange.declare", may("configure", exchange="name"))
async def exchange_declare(
    node: AdminContext,
    *,
    vhost: str,
    name: str,
    type_: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, Any],
) -> None:
    """Create an exchange; one that exists must have the same properties."""
    check_short("an exchange's name", name)
    await _free(node, vhost, "exchange", name)
    vhost_of(node, vhost).declare_exchange(
        name,
        type_,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments=table_arguments(arguments),
    )


@command("exchange.delete", may("configure", exchange="name"))
async def exchange_delete(node: AdminContext, *, vhost: str, name: str, if_unused: bool) -> None:
    """Delete an exchange and its bindings."""
    found = vhost_of(node, vhost)
    found.check_exchange(name)
    found.delete_exchange(name, if_unused=if_unused)


# -- queues


@command("queue.declare", may("configure", queue="name"))
async def queue_declare(
    node: AdminContext,
    *,
    vhost: str,
    name: str,
    type_: str | None = None,
    durable: bool,
    auto_delete: bool,
    arguments: dict[str, Any],
) -> str:
    """Declare a queue; return its name, which the broker may have chosen."""
    check_short("a queue's name", name)
    arguments = dict(arguments)
    if type_ is not None:
        arguments.setdefault(QUEUE_TYPE, type_)
    await _free(node, vhost, "queue", name)
    declared = vhost_of(node, vhost).declare_queue(
        name,
        durable=durable,
        exclusive=False,
        auto_delete=auto_delete,
        arguments=table_arguments(arguments),
        owner=None,
    )
    return declared.definition.name


@command("queue.delete", may("configure", queue="name"))
async def queue_delete(
    node: AdminContext, *, vhost: str, name: str, if_unused: bool, if_empty: bool
) -> int:
    """Delete a queue; return the number of ready messages."""
    queue = queue_of(node, vhost, name)
    if if_empty:
        await when_caught_up(queue)
    return broker_of(node).delete_queue(
        vhost_of(node, vhost), queue, if_unused=if_unused, if_empty=if_empty
    )


@command("queue.purge", may("read", queue="name"))
async def queue_purge(node: AdminContext, *, vhost: str, name: str, waiting: bool) -> int:
    """Purge a queue; return the number of ready messages and, with `waiting`, waiting ones."""
    queue = queue_of(node, vhost, name)
    if queue.settings.is_stream:
        raise AdministrationError("invalid", "a stream cannot be purged: its retention does that")
    parts = [part for part in queue.partitions if isinstance(part, Queue)]
    count = await _drop_waiting(parts) if waiting else 0
    await when_caught_up(queue)
    count += sum(part.purge() for part in parts)
    if waiting:  # those that were on their way, and for whom it had no room
        count += await _drop_waiting(parts)
    for part in parts:
        await part.log.settlements_safe()
    return count


async def _drop_waiting(parts: Sequence[Queue]) -> int:
    """Drop the retries and delayed messages of a queue's partitions. Returns their number."""
    count = 0
    for topic in (
        found for part in parts for found in (part.extension(RetryTopic), part.extension(EtaHold))
    ):
        if topic is None or topic.store is None:
            continue
        for dropped in topic.clear():
            count += dropped
            await asyncio.sleep(0)
        await topic.store.settlements_safe()
    return count


@command("queue.change", may("configure", queue="name"))
async def queue_change(
    node: AdminContext, *, vhost: str, name: str, arguments: dict[str, Any]
) -> None:
    """Change arguments: null removes one, others stay."""
    queue = queue_of(node, vhost, name)
    table = table_arguments(arguments)
    await when_caught_up(queue)
    alter_queue.change_arguments(broker_of(node), queue, table)


@command("queue.rename", may("configure", queue="name"))
async def queue_rename(node: AdminContext, *, vhost: str, name: str, new_name: str) -> None:
    """Rename a queue; the old name stays an alias until `queue remove-alias`."""
    alter_queue.rename(broker_of(node), queue_of(node, vhost, name), new_name)


@command("queue.alias.remove", IN_VHOST)
async def queue_alias_remove(node: AdminContext, *, vhost: str, alias: str) -> None:
    """Remove an alias of a renamed queue: clients that use it get 404."""
    vhost_of(node, vhost).remove_alias(alias)


@command("queue.pause", may("configure", queue="name"))
async def queue_pause(node: AdminContext, *, vhost: str, name: str, publishing: bool) -> None:
    """Stop delivering from a queue until it is resumed."""
    paused = Paused.ALL if publishing else Paused.DELIVERIES
    alter_queue.pause(broker_of(node), queue_of(node, vhost, name), paused)


@command("queue.resume", may("configure", queue="name"))
async def queue_resume(node: AdminContext, *, vhost: str, name: str) -> None:
    """Resume the delivery of a paused queue."""
    alter_queue.resume(broker_of(node), queue_of(node, vhost, name))


# -- bindings


class BindingNames(TypedDict):
    """Parameters that name a binding."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any]


@command("binding.declare", may("read", exchange="source"))
async def binding_declare(node: AdminContext, **binding: Unpack[BindingNames]) -> None:
    """Bind a queue or an exchange to an exchange; nothing changes if the binding exists."""
    _bind(node, binding, wanted=True)


@command("binding.delete", may("read", exchange="source"))
async def binding_delete(node: AdminContext, **binding: Unpack[BindingNames]) -> bool:
    """Delete a binding; return whether it existed."""
    return bool(_bind(node, binding, wanted=False))


def _bind(node: AdminContext, binding: BindingNames, *, wanted: bool) -> bool | None:
    """Create or delete a binding; return, if it was to be deleted, whether it existed."""
    vhost = vhost_of(node, binding["vhost"])
    source, destination = binding["source"], binding["destination"]
    key, arguments = binding["routing_key"], table_arguments(binding["arguments"])
    check_short("a routing key", key)
    match binding["destination_type"]:
        case "queue":
            held = vhost.queues.get(destination)
            owner = None if held is None else held.owner
            bind = vhost.bind_queue if wanted else vhost.unbind_queue
            return bind(destination, source, key, arguments, owner)
        case "exchange":
            bind_exchange = vhost.bind_exchange if wanted else vhost.unbind_exchange
            return bind_exchange(destination, source, key, arguments)
        case other:
            raise AdministrationError("invalid", f"bindings lead to a queue, not to '{other}'")


# -- connections


@command("connection.close", MANAGEMENT)
async def connection_close(node: AdminContext, *, name: str, reason: str | None = None) -> None:
    """Close a connection; its client gets the reason."""
    reason = reason or "Closed via management plugin"
    for client in broker_of(node).connections:
        if str(client.describe().endpoints) == name:
            client.shut(ConnectionClosingError(320, _cut(reason)))
            return
    raise AdministrationError("not_found", f"no connection '{name}'")


def _cut(reason: str) -> str:
    """Truncate a text to the size of a reply."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
