"""Operations that alter a queue in use (see leveret.broker.alter_queue)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker import alter_queue
from leveret.core.definitions.administration import AdministrationError
from leveret.core.json_fields import InvalidFieldError, table_of
from leveret.mgmt_ui.operations.topology import broker_of, queue_of, vhost_of, when_caught_up
from leveret.ports.definitions import Paused

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters

__all__ = ["LIVE"]


async def _change(node: AdminContext, parameters: Parameters) -> None:
    """Change arguments: null removes one, others stay."""
    queue = queue_of(node, parameters)
    try:
        arguments = table_of(parameters["arguments"])
    except InvalidFieldError as error:
        raise AdministrationError("invalid", f"arguments{error.path}: {error.problem}") from None
    await when_caught_up(queue)
    alter_queue.change_arguments(broker_of(node), queue, arguments)


async def _rename(node: AdminContext, parameters: Parameters) -> None:
    alter_queue.rename(broker_of(node), queue_of(node, parameters), parameters["new_name"])


async def _alias_remove(node: AdminContext, parameters: Parameters) -> None:
    vhost_of(node, parameters).remove_alias(parameters["alias"])


async def _pause(node: AdminContext, parameters: Parameters) -> None:
    paused = Paused.ALL if parameters["publishing"] else Paused.DELIVERIES
    alter_queue.pause(broker_of(node), queue_of(node, parameters), paused)


async def _resume(node: AdminContext, parameters: Parameters) -> None:
    alter_queue.resume(broker_of(node), queue_of(node, parameters))


_QUEUE: Final = {"vhost": str, "name": str}
LIVE: Final[Operations] = {
    "queue.change": (_change, {**_QUEUE, "arguments": dict}),
    "queue.rename": (_rename, {**_QUEUE, "new_name": str}),
    "queue.alias.remove": (_alias_remove, {"vhost": str, "alias": str}),
    "queue.pause": (_pause, {**_QUEUE, "publishing": bool}),
    "queue.resume": (_resume, _QUEUE),
}
