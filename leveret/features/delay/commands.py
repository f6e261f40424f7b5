"""Operations on delayed messages (see leveret.features.delay.schedules).

`id` names one message; without it, the other parameters are a filter, and `all` selects every
message. With `queue` it is about the Celery tasks that it holds. A list scans a bounded number of
messages; `after` says where the next request continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode
from leveret.core.admin.rights import IN_VHOST, READ_QUEUE
from leveret.core.admin.shown import integer, no_cursor, payload, properties
from leveret.core.definitions.administration import AdministrationError
from leveret.features.delay.rules import DELAY_MS_MAX
from leveret.features.delay.schedules import row_of
from leveret.features.delay.search import DelayedMessageFilter

if TYPE_CHECKING:
    from leveret.features.delay.schedules import Schedules
    from leveret.features.delay.search import Cursor

__all__ = ["ScheduleCriteria", "cursor_of", "filter_of"]

ROWS_MAX = 10_000  # of one answer; more need further requests


class ScheduleNode(AdminNode, Protocol):
    """Parts of a node that commands on delayed messages use."""

    @property
    def schedules(self) -> Schedules | None:
        """Delayed messages of a running node, else None."""
        ...


class ScheduleCriteria(TypedDict):
    """Parameters that messages must meet, all of them."""

    exchange: str | None
    routing_key: str | None
    headers: dict[str, Any]
    due_from_ms: Any
    due_before_ms: Any
    message_id: str | None


class ScheduleSelection(ScheduleCriteria):
    """Parameters of a change: an id, or criteria, or that all are meant."""

    id: str | None
    all: bool


@query("schedule.list", READ_QUEUE)
async def schedule_list(
    node: ScheduleNode,
    *,
    vhost: str,
    id_: str | None = None,
    queue: str | None = None,
    limit: int,
    after: Any = None,
    **criteria: Unpack[ScheduleCriteria],
) -> dict[str, Any]:
    """Return messages, in the order in which they are due."""
    schedules = _schedules(node, vhost, queue)
    limit = min(max(limit, 0), ROWS_MAX)
    selection, begin = filter_of(criteria), cursor_of(after)
    pending = schedules.pending_count(vhost, queue)
    if id_ is not None:
        found = await schedules.find(vhost, id_, queue=queue)
        rows = [row_of(found)] if found is not None and selection.has(found) else []
        return {"rows": rows, "after": None, "pending": pending}
    page = await schedules.page(vhost, selection, limit, begin, queue=queue)
    following = None if page.following is None else list(page.following)
    return {"rows": page.rows, "after": following, "pending": pending}


@query("schedule.show", READ_QUEUE)
async def schedule_show(
    node: ScheduleNode, *, vhost: str, queue: str | None = None, id_: str
) -> dict[str, Any]:
    """Return one message with its properties, its headers and its payload."""
    found = await _schedules(node, vhost, queue).find(vhost, id_, queue=queue)
    if found is None:
        raise _unknown(vhost, id_)
    row = row_of(found)
    told: Any = properties(found.header, found.flags)["properties"]
    return {**row, "properties": {**told, "headers": row["headers"]}, **payload(found.body)}


@command("schedule.cancel", READ_QUEUE)
async def schedule_cancel(
    node: ScheduleNode,
    *,
    vhost: str,
    queue: str | None = None,
    **selection: Unpack[ScheduleSelection],
) -> int:
    """Cancel one message, or all that meet every condition given."""
    schedules, chosen = _schedules(node, vhost, queue), _chosen(selection)
    return _found(await schedules.cancel(vhost, chosen, queue=queue), vhost, selection)


@command("schedule.deliver_now", IN_VHOST)
async def schedule_deliver_now(
    node: ScheduleNode, *, vhost: str, **selection: Unpack[ScheduleSelection]
) -> int:
    """Deliver one message at once, or all that meet every condition given."""
    schedules, chosen = _schedules(node, vhost), _chosen(selection)
    count = await schedules.reschedule(vhost, chosen, schedules.wall_ms())
    return _found(count, vhost, selection)


@command("schedule.reschedule", IN_VHOST)
async def schedule_reschedule(
    node: ScheduleNode,
    *,
    vhost: str,
    delay_ms: Any = None,
    due_ms: Any = None,
    **selection: Unpack[ScheduleSelection],
) -> int:
    """Change the time of messages; return their number."""
    schedules, chosen = _schedules(node, vhost), _chosen(selection)
    if (delay_ms is None) == (due_ms is None):
        raise AdministrationError("invalid", "either a delay or a time is stated")
    now_ms = schedules.wall_ms()
    if due_ms is None:
        due_ms = now_ms + integer("delay_ms", delay_ms)
    if integer("due_ms", due_ms) - now_ms > DELAY_MS_MAX:
        raise AdministrationError("invalid", "that is more than 366 days from now")
    count = await schedules.reschedule(vhost, chosen, max(due_ms, now_ms))
    return _found(count, vhost, selection)


def _schedules(node: ScheduleNode, vhost: str, queue: str | None = None) -> Schedules:
    """Return the schedules. Raises AdministrationError without node, virtual host or queue."""
    node.administration.vhost(vhost)
    if node.schedules is None:
        raise AdministrationError("invalid", "no node runs here: only a running one knows")
    if queue is not None and queue not in node.vhosts[vhost].queues:
        raise AdministrationError("not_found", node.vhosts[vhost].no_queue(queue))
    return node.schedules


def _chosen(selection: ScheduleSelection) -> str | DelayedMessageFilter:
    id_, criteria = selection["id"], filter_of(selection)
    if (id_ is not None) + (not criteria.is_everything) + selection["all"] != 1:
        text = "state either an id, or what messages have in common, or that all are meant"
        raise AdministrationError("invalid", text)
    return criteria if id_ is None else id_


def filter_of(criteria: ScheduleCriteria) -> DelayedMessageFilter:
    """Return the filter of delayed messages. Raises AdministrationError."""
    due_from_ms, due_before_ms = criteria["due_from_ms"], criteria["due_before_ms"]
    return DelayedMessageFilter(
        criteria["exchange"],
        criteria["routing_key"],
        criteria["headers"],
        None if due_from_ms is None else integer("due_from_ms", due_from_ms),
        None if due_before_ms is None else integer("due_before_ms", due_before_ms),
        criteria["message_id"],
    )


def cursor_of(value: object) -> Cursor | None:
    """Return the cursor of a list. Raises AdministrationError."""
    match value:
        case None:
            return None
        case [int(due_ms), int(offset)] if min(due_ms, offset) >= 0:
            return due_ms, offset
    raise no_cursor()


def _found(count: int, vhost: str, selection: ScheduleSelection) -> int:
    if selection["id"] is not None and not count:
        raise _unknown(vhost, selection["id"])
    return count


def _unknown(vhost: str, id_: str) -> AdministrationError:
    return AdministrationError("not_found", f"no message with id '{id_}' waits in vhost '{vhost}'")
