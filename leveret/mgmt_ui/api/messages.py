"""/api/leveret/queues/VHOST/NAME/messages: browse and alter messages of a queue or stream.

    GET     …/messages               browse: ?from, after, order, limit, truncate, encoding and the
                                     criteria of leveret.features.browse.selection, `header` as
                                     name=value; a parameter may be repeated
    GET     …/messages/OFFSET        one message
    GET     …/messages/OFFSET/body   its payload, for download
    PATCH   …/messages/OFFSET        replace it by a changed copy
    DELETE  …/messages/OFFSET        settle it
    POST    …/messages/delete        {"select": {…}, "after", "limit"}
    POST    …/messages/move, copy    also with "to_queue", or "exchange" and "routing_key"

Of a queue with several partitions `partition` names one: in the query, or within `select`. Without
it all are browsed, one after the other, and `after` is like 2:17, partition and offset.

Users who may read from the queue may browse and delete; to move and to copy they need permission to
publish to the destination, and to edit, to write to the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.core.admin.node import partition_of
from leveret.core.definitions.administration import AdministrationError
from leveret.errors import StorageError
from leveret.features.browse.browsing import find
from leveret.features.browse.commands import (
    message_copy,
    message_delete,
    message_edit,
    message_list,
    message_move,
    message_show,
)
from leveret.mgmt_ui.api.bodies import (
    headers,
    json_object,
    path_number,
    whole_number,
    whole_numbers,
)
from leveret.mgmt_ui.api.callers import Caller, CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.describing import query as described_query
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.places import place_of, place_text
from leveret.mgmt_ui.api.problems import bad_request, not_found, queue_not_found, refused_operation

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["offset_after", "require_to_browse", "require_to_transfer", "router"]

EDIT_BYTES_MAX = 32 * 1024 * 1024  # of a changed payload, in base64 or with every byte escaped
NUMBERS = {"from", "limit", "truncate"}
CRITERIA = {"state", "exchange", "routing_key", "text", "tags", "sql"}
TIMES = {"since", "until"}
ORDERS = {"forwards": False, "backwards": True}
SHOWN = {"truncate": 4096, "encoding": "auto", "partition": 0}
BROWSED = {
    **SHOWN,
    "from": 0,
    "after": "17",
    "limit": 100,
    "order": "forwards",
    "state": "ready",
    "exchange": "orders",
    "routing_key": "k",
    "text": "part of a payload",
    "tags": "red",
    "sql": "priority > 4",
    "since": 1_700_000_000_000,
    "until": 1_800_000_000_000,
    "message_id": ["m-1"],
    "offset": [17],
    "header": ["name=value"],
}
PART = described_query({"partition": 0})
CHOSEN = {"select": {"state": "ready"}, "after": 17, "limit": 100}
SENT = {**CHOSEN, "to_queue": "orders", "exchange": "again", "routing_key": "k"}
CHANGED = {
    "payload": "text",
    "payload_encoding": "string",
    "routing_key": "k",
    "headers": {"name": "value"},
    "properties": {"priority": 5},
}

router = own_router("/queues/{vhost}/{name}/messages")


@router.api_route("", methods=READ, openapi_extra=described_query(BROWSED))
async def browse(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Browse messages, also leased ones, without any effect on them."""
    await require_to_browse(caller, vhost, name)
    query = request.query_params
    order = query.get("order", "forwards")
    if order not in ORDERS:
        raise bad_request("order is forwards or backwards")
    numbers = {key: whole_number(query, key) for key in NUMBERS}
    found = await caller.perform(
        message_list,
        vhost=vhost,
        queue=name,
        select=_selection(request),
        after=place_of(query.get("after"), offset_after),
        backwards=ORDERS[order],
        encoding=query.get("encoding"),
        **numbers,
    )
    return answer({**found, "after": place_text(found["after"])})


def offset_after(text: str) -> int:
    """Parse the offset in a query after which a list continues. Raises ApiError 400."""
    return path_number(text, "after")


def _selection(request: Request) -> dict[str, Any]:
    """Return the selection of a query string, as operations take it."""
    query = request.query_params
    select: dict[str, Any] = {key: query[key] for key in CRITERIA if key in query}
    select |= {key: whole_number(query, key) for key in TIMES if key in query}
    if "partition" in query:
        select["partition"] = whole_number(query, "partition")
    if ids := query.getlist("message_id"):
        select["message_ids"] = ids
    if offsets := whole_numbers(query, "offset"):
        select["offsets"] = offsets
    if stated := headers(query):
        select["headers"] = stated
    return select


@router.api_route("/{offset}", methods=READ, openapi_extra=described_query(SHOWN))
async def show(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """One message."""
    await require_to_browse(caller, vhost, name)
    query = request.query_params
    return answer(
        await caller.perform(
            message_show,
            vhost=vhost,
            queue=name,
            offset=path_number(offset, "offset"),
            truncate=whole_number(query, "truncate"),
            encoding=query.get("encoding"),
            partition=whole_number(query, "partition"),
        )
    )


@router.api_route("/{offset}/body", methods=READ, openapi_extra=PART)
async def body(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """A message's payload, always as plain bytes for download."""
    await require_to_browse(caller, vhost, name)
    host = caller.vhost(vhost)
    if name not in host.queues:
        raise queue_not_found(host, name)
    queue = caller.node.broker.find_queue(host, name, host.queues[name].owner)
    partition = whole_number(request.query_params, "partition")
    try:
        seen = await find(partition_of(queue, partition), path_number(offset, "offset"))
    except AdministrationError as error:
        raise refused_operation(error.code, str(error)) from None
    except StorageError as error:
        raise refused_operation("storage", str(error)) from None
    if seen is None:
        raise not_found("message_not_found")
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="message-{seen.offset}.bin"',
        "x-content-type-options": "nosniff",
    }
    return Response(seen.message.body, headers=headers, media_type="application/octet-stream")


@router.patch("/{offset}", openapi_extra=described(CHANGED) | PART)
async def edit(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """Replace a message by a changed copy at the tail of the queue."""
    await require_to_browse(caller, vhost, name)
    await caller.require(vhost, "queue", name, "write")
    changes = await json_object(request, EDIT_BYTES_MAX)
    return answer(
        await caller.perform(
            message_edit,
            vhost=vhost,
            queue=name,
            offset=path_number(offset, "offset"),
            changes=changes,
            partition=whole_number(request.query_params, "partition"),
        )
    )


@router.delete("/{offset}", openapi_extra=PART)
async def delete_one(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """Settle one message, unless a consumer holds it."""
    await require_to_browse(caller, vhost, name)
    select = {
        "offsets": [path_number(offset, "offset")],
        "partition": whole_number(request.query_params, "partition"),
    }
    deleted = await caller.perform(
        message_delete, vhost=vhost, queue=name, select=select, after=None, limit=None
    )
    if deleted["skipped"]:
        raise bad_request("a consumer has the message")
    if not deleted["deleted"]:
        raise not_found("message_not_found")
    return Response(status_code=204)


@router.post("/delete", openapi_extra=described(CHOSEN))
async def delete(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Settle the selected messages."""
    await require_to_browse(caller, vhost, name)
    asked = await json_object(request)
    return answer(await caller.perform(message_delete, vhost=vhost, queue=name, **_selected(asked)))


@router.post("/move", openapi_extra=described(SENT))
async def move(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Publish the selected messages elsewhere and settle them here."""
    return await _transfer(message_move, caller, request, vhost, name)


@router.post("/copy", openapi_extra=described(SENT))
async def copy(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Publish copies of the selected messages elsewhere."""
    return await _transfer(message_copy, caller, request, vhost, name)


async def _transfer(
    operation: AnyCommand, caller: Caller, request: Request, vhost: str, name: str
) -> Response:
    await require_to_browse(caller, vhost, name)
    asked = await json_object(request)
    where = {key: asked.get(key) for key in ("to_queue", "exchange", "routing_key")}
    await require_to_transfer(caller, vhost, where)
    return answer(
        await caller.perform(operation, vhost=vhost, queue=name, **_selected(asked), **where)
    )


async def require_to_transfer(caller: Caller, vhost: str, where: Mapping[str, Any]) -> None:
    """Raise ApiError unless the caller may publish to the destination."""
    exchange, key = where["exchange"], where["routing_key"]
    await caller.require(vhost, "exchange", exchange if isinstance(exchange, str) else "", "write")
    if where["to_queue"] is not None:
        await caller.require(vhost, "queue", str(where["to_queue"]), "write")
    if isinstance(exchange, str) and not caller.is_administrator:
        await _require_topic(caller, vhost, exchange, key)


async def _require_topic(caller: Caller, vhost: str, exchange: str, key: object) -> None:
    """Raise ApiError unless topic permissions allow the routing keys of the messages."""
    found = caller.vhost(vhost).exchanges.get(exchange)
    if found is not None and found.definition.type == "topic" and not isinstance(key, str):
        # The messages' keys were allowed for their publishers, which says nothing about the caller.
        raise bad_request("state a routing key: this is a topic exchange")
    await caller.require_topic(vhost, exchange, str(key), "write")


def _selected(asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "select": asked.get("select", {}),
        "after": asked.get("after"),
        "limit": asked.get("limit"),
    }


async def require_to_browse(caller: Caller, vhost: str, name: str) -> None:
    """Raise ApiError unless the caller may see the virtual host and read from the queue.

    Exclusive queues are only for administrators.
    """
    caller.vhost(vhost)
    await caller.require(vhost, "queue", name, "read")
    caller.require_shared(vhost, name)
