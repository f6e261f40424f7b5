"""Operations on exchanges, queues, bindings and connections of a running node.

Names, arguments, equivalence and errors are those of AMQP clients' declarations.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.validation import NAME_BYTES_MAX
from leveret.core.json_fields import InvalidFieldError, table_of
from leveret.core.queues.queue import Queue
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.errors import ConnectionClosingError
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.retry.retrying import RetryTopic
from leveret.mgmt_ui.operations.context import not_running
from leveret.mgmt_ui.yielding import in_yielding_chunks
from leveret.ports.callbacks import has_failed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters
    from leveret.ports.authentication import Kind
    from leveret.ports.definitions import Arguments

__all__ = [
    "TOPOLOGY",
    "broker_of",
    "check_short",
    "queue_of",
    "table_arguments",
    "vhost_of",
    "when_caught_up",
]

REASON_BYTES_MAX: Final = 200  # a reply text has 255 at most


def broker_of(node: AdminContext) -> Broker:
    """Return the broker of a running node. Raises AdministrationError for a stopped one."""
    if node.broker is None:
        raise not_running()
    return node.broker


def vhost_of(node: AdminContext, parameters: Parameters) -> Vhost:
    """Return the virtual host of a request. Raises AdministrationError."""
    vhost = broker_of(node).vhosts.get(parameters["vhost"])
    if vhost is None:
        raise AdministrationError("not_found", f"no vhost '{parameters['vhost']}'")
    return vhost


def queue_of(node: AdminContext, parameters: Parameters) -> OpenQueue:
    """Return the queue of a request, exclusive or not. Raises AdministrationError."""
    vhost = vhost_of(node, parameters)
    name = parameters["name"]
    held = vhost.queues.get(name)
    if held is None:
        raise AdministrationError("not_found", vhost.no_queue(name))
    return broker_of(node).find_queue(vhost, name, held.owner)


async def when_caught_up(queue: OpenQueue) -> None:
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


def check_short(what: str, text: str) -> None:
    """Raise AdministrationError for text too long for a short string of AMQP."""
    if len(text.encode()) > NAME_BYTES_MAX:
        raise AdministrationError("invalid", f"{what} has at most {NAME_BYTES_MAX} bytes")


async def _free(node: AdminContext, parameters: Parameters, kind: Kind) -> None:
    """Wait until the bindings of a deleted object of that name are gone."""
    freeing = vhost_of(node, parameters).freeing(kind, parameters["name"])
    if freeing is not None:
        async for _ in in_yielding_chunks(freeing):
            pass


# -- exchanges


async def _exchange_declare(node: AdminContext, parameters: Parameters) -> None:
    check_short("an exchange's name", parameters["name"])
    await _free(node, parameters, "exchange")
    vhost_of(node, parameters).declare_exchange(
        parameters["name"],
        parameters["type"],
        durable=parameters["durable"],
        auto_delete=parameters["auto_delete"],
        internal=parameters["internal"],
        arguments=table_arguments(parameters["arguments"]),
    )


async def _exchange_delete(node: AdminContext, parameters: Parameters) -> None:
    vhost = vhost_of(node, parameters)
    vhost.check_exchange(parameters["name"])
    vhost.delete_exchange(parameters["name"], if_unused=parameters["if_unused"])


# -- queues


async def _queue_declare(node: AdminContext, parameters: Parameters) -> str:
    """Declare a queue; return its name, which the broker may have chosen."""
    check_short("a queue's name", parameters["name"])
    arguments = dict(parameters["arguments"])
    if parameters["type"] is not None:
        arguments.setdefault(QUEUE_TYPE, parameters["type"])
    await _free(node, parameters, "queue")
    declared = vhost_of(node, parameters).declare_queue(
        parameters["name"],
        durable=parameters["durable"],
        exclusive=False,
        auto_delete=parameters["auto_delete"],
        arguments=table_arguments(arguments),
        owner=None,
    )
    return declared.definition.name


async def _queue_delete(node: AdminContext, parameters: Parameters) -> int:
    """Delete a queue; return the number of ready messages."""
    queue, vhost = queue_of(node, parameters), vhost_of(node, parameters)
    if parameters["if_empty"]:
        await when_caught_up(queue)
    return broker_of(node).delete_queue(
        vhost, queue, if_unused=parameters["if_unused"], if_empty=parameters["if_empty"]
    )


async def _queue_purge(node: AdminContext, parameters: Parameters) -> int:
    """Purge a queue; return the number of ready messages and, with `waiting`, waiting ones."""
    queue, waiting = queue_of(node, parameters), parameters["waiting"]
    if not isinstance(queue, Queue):
        raise AdministrationError("invalid", "a stream cannot be purged: its retention does that")
    count = await _drop_waiting(queue) if waiting else 0
    await when_caught_up(queue)
    count += queue.purge()
    if waiting:  # those that were on their way, and for whom it had no room
        count += await _drop_waiting(queue)
    return count


async def _drop_waiting(queue: Queue) -> int:
    """Drop a queue's retries and delayed messages. Returns their number."""
    count = 0
    for topic in (queue.extension(RetryTopic), queue.extension(EtaHold)):
        for dropped in () if topic is None else topic.clear():
            count += dropped
            await asyncio.sleep(0)
    return count


# -- bindings


async def _binding_declare(node: AdminContext, parameters: Parameters) -> None:
    _bind(node, parameters, wanted=True)


async def _binding_delete(node: AdminContext, parameters: Parameters) -> bool:
    """Delete a binding; return whether it existed."""
    return bool(_bind(node, parameters, wanted=False))


def _bind(node: AdminContext, parameters: Parameters, *, wanted: bool) -> bool | None:
    """Create or delete a binding; return, if it was to be deleted, whether it existed."""
    vhost = vhost_of(node, parameters)
    source, destination = parameters["source"], parameters["destination"]
    key, arguments = parameters["routing_key"], table_arguments(parameters["arguments"])
    check_short("a routing key", key)
    match parameters["destination_type"]:
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


async def _connection_close(node: AdminContext, parameters: Parameters) -> None:
    reason = parameters["reason"] or "Closed via management plugin"
    for client in broker_of(node).connections:
        if str(client.describe().endpoints) == parameters["name"]:
            client.shut(ConnectionClosingError(320, _cut(reason)))
            return
    raise AdministrationError("not_found", f"no connection '{parameters['name']}'")


def _cut(reason: str) -> str:
    """Truncate a text to the size of a reply."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


_EXCHANGE: Final = {"vhost": str, "name": str}
_QUEUE: Final = {"vhost": str, "name": str}
_BINDING: Final = {
    "vhost": str,
    "source": str,
    "destination": str,
    "destination_type": str,
    "routing_key": str,
    "arguments": dict,
}
TOPOLOGY: Final[Operations] = {
    "exchange.declare": (
        _exchange_declare,
        {
            **_EXCHANGE,
            "type": str,
            "durable": bool,
            "auto_delete": bool,
            "internal": bool,
            "arguments": dict,
        },
    ),
    "exchange.delete": (_exchange_delete, {**_EXCHANGE, "if_unused": bool}),
    "queue.declare": (
        _queue_declare,
        {**_QUEUE, "type": None, "durable": bool, "auto_delete": bool, "arguments": dict},
    ),
    "queue.delete": (_queue_delete, {**_QUEUE, "if_unused": bool, "if_empty": bool}),
    "queue.purge": (_queue_purge, {**_QUEUE, "waiting": bool}),
    "binding.declare": (_binding_declare, _BINDING),
    "binding.delete": (_binding_delete, _BINDING),
    "connection.close": (_connection_close, {"name": str, "reason": None}),
}
