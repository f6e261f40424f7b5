"""Operations on delayed messages (see leveret.features.delay.schedules).

`id` names one message; without it, the other parameters are a filter, and `all` selects every
message. With `queue` it is about the Celery tasks that it holds. A list scans a bounded number of
messages; `after` says where the next request continues.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.errors import StorageError
from leveret.features.delay.rules import DELAY_MS_MAX
from leveret.features.delay.schedules import row_of
from leveret.features.delay.search import DelayedMessageFilter
from leveret.mgmt_ui.operations.shown import payload, properties
from leveret.ports.callbacks import has_failed

if TYPE_CHECKING:
    from leveret.features.delay.schedules import Schedules
    from leveret.features.delay.search import Cursor
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters

__all__ = ["CRITERIA", "SCHEDULES", "cursor_of", "selection_of"]

ROWS_MAX = 10_000  # of one answer; more need further requests


async def _list(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    schedules = _schedules(node, parameters)
    limit = min(max(parameters["limit"], 0), ROWS_MAX)
    selection, after = selection_of(parameters), cursor_of(parameters["after"])
    vhost, queue = parameters["vhost"], parameters["queue"]
    pending = schedules.pending_count(vhost, queue)
    if parameters["id"] is not None:
        found = await schedules.find(vhost, parameters["id"], queue=queue)
        rows = [row_of(found)] if found is not None and selection.has(found) else []
        return {"rows": rows, "after": None, "pending": pending}
    page = await schedules.page(vhost, selection, limit, after, queue=queue)
    following = None if page.following is None else list(page.following)
    return {"rows": page.rows, "after": following, "pending": pending}


async def _show(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    schedules, vhost, queue = _schedules(node, parameters), parameters["vhost"], parameters["queue"]
    found = await schedules.find(vhost, parameters["id"], queue=queue)
    if found is None:
        raise _unknown(parameters)
    row = row_of(found)
    told: Any = properties(found.header, found.flags)["properties"]
    return {**row, "properties": {**told, "headers": row["headers"]}, **payload(found.body)}


async def _cancel(node: AdminContext, parameters: Parameters) -> int:
    schedules, chosen = _schedules(node, parameters), _chosen(parameters)
    vhost, queue = parameters["vhost"], parameters["queue"]
    return _found(await schedules.cancel(vhost, chosen, queue=queue), parameters)


async def _deliver_now(node: AdminContext, parameters: Parameters) -> int:
    schedules, chosen = _schedules(node, parameters), _chosen(parameters)
    count = await schedules.deliver_now(parameters["vhost"], chosen)
    await _written(schedules, parameters)
    return _found(count, parameters)


async def _reschedule(node: AdminContext, parameters: Parameters) -> int:
    schedules, chosen = _schedules(node, parameters), _chosen(parameters)
    delay_ms, due_ms = parameters["delay_ms"], parameters["due_ms"]
    if (delay_ms is None) == (due_ms is None):
        raise AdministrationError("invalid", "either a delay or a time is stated")
    now_ms = schedules.wall_ms()
    if due_ms is None:
        due_ms = now_ms + _integer("delay_ms", delay_ms)
    if _integer("due_ms", due_ms) - now_ms > DELAY_MS_MAX:
        raise AdministrationError("invalid", "that is more than 366 days from now")
    count = await schedules.reschedule(parameters["vhost"], chosen, max(due_ms, now_ms))
    await _written(schedules, parameters)
    return _found(count, parameters)


async def _written(schedules: Schedules, parameters: Parameters) -> None:
    """Wait until rescheduled messages are durable. Raises StorageError."""
    if await has_failed(partial(schedules.await_commit, parameters["vhost"])):
        raise StorageError("the disk refused it, and nothing has changed: see the node's log")


def _schedules(node: AdminContext, parameters: Parameters) -> Schedules:
    """Return the schedules. Raises AdministrationError without node, virtual host or queue."""
    vhost, queue = node.administration.vhost(parameters["vhost"]).name, parameters.get("queue")
    if node.schedules is None:
        raise AdministrationError("invalid", "no node runs here: only a running one knows")
    if queue is not None and queue not in node.vhosts[vhost].queues:
        raise AdministrationError("not_found", node.vhosts[vhost].no_queue(queue))
    return node.schedules


def _chosen(parameters: Parameters) -> str | DelayedMessageFilter:
    selection = selection_of(parameters)
    stated = (
        (parameters["id"] is not None) + (not selection.is_everything) + (parameters["all"] is True)
    )
    if stated != 1:
        text = "state either an id, or what messages have in common, or that all are meant"
        raise AdministrationError("invalid", text)
    return selection if parameters["id"] is None else parameters["id"]


def selection_of(parameters: Parameters) -> DelayedMessageFilter:
    """Return the filter of delayed messages. Raises AdministrationError."""
    return DelayedMessageFilter(
        parameters["exchange"],
        parameters["routing_key"],
        parameters["headers"],
        _optional("due_from_ms", parameters),
        _optional("due_before_ms", parameters),
        parameters["message_id"],
    )


def cursor_of(value: object) -> Cursor | None:
    """Return the cursor of a list. Raises AdministrationError."""
    match value:
        case None:
            return None
        case [int(due_ms), int(offset)] if min(due_ms, offset) >= 0:
            return due_ms, offset
    raise AdministrationError("invalid", "bad parameter 'after'")


def _optional(name: str, parameters: Parameters) -> int | None:
    return None if parameters[name] is None else _integer(name, parameters[name])


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise AdministrationError("invalid", f"bad parameter '{name}'")
    return value


def _found(count: int, parameters: Parameters) -> int:
    if parameters["id"] is not None and not count:
        raise _unknown(parameters)
    return count


def _unknown(parameters: Parameters) -> AdministrationError:
    text = f"no message with id '{parameters['id']}' waits in vhost '{parameters['vhost']}'"
    return AdministrationError("not_found", text)


CRITERIA: Final = {
    "exchange": None,
    "routing_key": None,
    "headers": dict,
    "due_from_ms": object,
    "due_before_ms": object,
    "message_id": None,
}
_COMMON: Final = {"vhost": str, **CRITERIA}
_CHOSEN: Final = {**_COMMON, "id": None, "all": bool}
SCHEDULES: Final[Operations] = {
    "schedule.list": (_list, {**_COMMON, "id": None, "queue": None, "limit": int, "after": object}),
    "schedule.show": (_show, {"vhost": str, "queue": None, "id": str}),
    "schedule.cancel": (_cancel, {**_CHOSEN, "queue": None}),
    "schedule.deliver_now": (_deliver_now, _CHOSEN),
    "schedule.reschedule": (_reschedule, {**_CHOSEN, "delay_ms": object, "due_ms": object}),
}
