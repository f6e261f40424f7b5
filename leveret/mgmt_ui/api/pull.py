"""POST /api/leveret/queues/VHOST/NAME/…: pulling from a queue by HTTP (leveret.features.pull.pull).

    receive   {"count", "wait_ms", "bytes_max", "visibility_timeout_ms", "filter_tags",
               "filter_sql", "encoding"}
              → {"messages": [{"receipt_handle", "payload", …}]}
    ack       {"receipt_handles"}
    nack      {"receipt_handles", "requeue", "delay_ms"}
    extend    {"receipt_handles", "visibility_timeout_ms"}
              → {"results": [{"receipt_handle", "result": "ok" | "stale" | "invalid"}]}

Read permission for the queue is enough: no management tag is needed, since applications do it. A
message is shown as RabbitMQ's /get shows it. A client that hangs up while it waits leaves neither a
consumer nor a lease behind.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from fastapi import Request, Response

from leveret.core.clients import Origin
from leveret.core.settings.arguments import TERM_MS_MAX
from leveret.errors import ChannelError
from leveret.features.pull.pull import HANDLES_MAX, Drawn, Wanted
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import Caller, ClientHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.listing import Segment, answer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_found
from leveret.mgmt_ui.api.reading import check_rates, client_refused, queue_to_read, watching
from leveret.mgmt_ui.api.views import plain
from leveret.mgmt_ui.contents import payload_row
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.routing.message import StoredMessage
    from leveret.features.pull.pull import Outcome, Pulled, QueueLeases
    from leveret.mgmt_ui.api.views import Row

__all__ = ["router"]

BODY_BYTES_MAX = 128 * 1024  # a thousand handles with room to spare
# Number of the node's HTTP connections that may wait for messages; others must get through.
WAITING_MAX = 128
WANTED = {
    "count": 10,
    "wait_ms": 20_000,
    "bytes_max": 1_000_000,
    "visibility_timeout_ms": 30_000,
    "filter_tags": "red",
    "filter_sql": "priority > 4",
    "encoding": "auto",
}
HANDLES = {"receipt_handles": ["1.1"]}

Asked: TypeAlias = dict[str, Any]

router = own_router("/queues/{vhost}/{name}")


# -- receiving


@router.post("/receive", openapi_extra=described(WANTED))
async def receive(caller: ClientHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Receive messages, as soon as there are any."""
    asked = await json_object(request, BODY_BYTES_MAX)
    encoding = asked.pop("encoding", "auto")
    if encoding not in {"auto", "base64"}:
        raise bad_request("encoding is auto or base64")
    try:
        wanted = Wanted(**asked)
    except ValueError as error:
        raise bad_request(str(error)) from None
    queue = await _pulled_queue(caller, vhost, name)
    check_rates(caller, queue)
    pulled = await _receive(caller, request, queue, wanted)
    if pulled is None:
        raise not_found("queue_not_found")
    _trace(caller, request, queue, pulled)
    _account(caller, queue, pulled)
    return answer({"messages": [_row(one, encoding) for one in pulled]})


async def _receive(
    caller: Caller, request: Request, queue: DeclaredQueue, wanted: Wanted
) -> list[Pulled] | None:
    """Wait for messages; none if the client hangs up. None if the queue is deleted."""
    pulls = caller.node.broker.pulls
    if len(pulls.under_way) >= WAITING_MAX:
        raise ApiError(429, "too_many_requests", "too many wait", {"retry-after": "1"})
    done: asyncio.Future[list[Pulled] | None] = asyncio.get_running_loop().create_future()
    try:
        receive = pulls.receive(queue, wanted, done.set_result)
    except ChannelError as error:
        raise client_refused(error) from None

    def hung_up() -> None:
        receive.cancel()
        if not done.done():
            done.set_result([])

    try:
        async with watching(request.receive, hung_up):
            return await done
    finally:
        receive.cancel()


def _row(pulled: Pulled, encoding: str) -> Row:
    message = pulled.message
    row: Row = {
        "receipt_handle": pulled.handle,
        "payload_bytes": len(message.body),
        "redelivered": pulled.redelivered,
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
        "properties": _properties(message),
        **payload_row(message.body, encoding),
    }
    if pulled.return_count is not None:
        row["return_count"] = pulled.return_count
    return row


def _properties(message: StoredMessage) -> Row:
    return {name: plain(value) for name, value in message.properties.items()}


def _trace(caller: Caller, request: Request, queue: DeclaredQueue, pulled: list[Pulled]) -> None:
    """Publish the delivered messages to the firehose."""
    broker = caller.node.broker
    vhost = broker.vhosts.get(queue.definition.vhost)
    if vhost is None or not vhost.traced:
        return
    peer = f"{request.client.host}:{request.client.port}" if request.client is not None else ""
    origin = Origin(f"{peer} (HTTP)", 0, caller.name)
    for one in pulled:
        broker.tracer.delivered(vhost, one.message, queue.name, origin, redelivered=one.redelivered)


def _account(caller: Caller, queue: DeclaredQueue, pulled: list[Pulled]) -> None:
    """Count the delivered messages for the user, as for deliveries of a connection."""
    usage = Usage(messages_out=len(pulled), bytes_out=sum(one.stored_bytes for one in pulled))
    broker = caller.node.broker
    if (vhost := broker.vhosts.get(queue.definition.vhost)) is not None:
        broker.rates.pulled(caller.name, vhost.definition, queue, len(pulled))
    broker.usage.ended(Drawn(queue.definition.vhost, caller.name, usage))


# -- settling


@router.post("/ack", openapi_extra=described(HANDLES, "receipt_handles"))
async def ack(caller: ClientHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Acknowledge messages."""
    asked = await json_object(request, BODY_BYTES_MAX)
    handles = _handles(asked)
    leases = await _leases(caller, vhost, name)
    return _told(handles, leases.settle(handles))


@router.post(
    "/nack",
    openapi_extra=described({**HANDLES, "requeue": True, "delay_ms": 0}, "receipt_handles"),
)
async def nack(caller: ClientHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Return messages to the queue, or discard them."""
    asked = await json_object(request, BODY_BYTES_MAX)
    handles = _handles(asked)
    delay_ms = _milliseconds(asked, "delay_ms", 0)
    requeue = asked.get("requeue", True)
    if not isinstance(requeue, bool):
        raise bad_request("requeue is true or false")
    if delay_ms and not requeue:
        raise bad_request("delay_ms is for messages that are requeued")
    leases = await _leases(caller, vhost, name)
    outcomes = leases.return_(handles, delay_ms) if requeue else leases.discard(handles)
    return _told(handles, outcomes)


@router.post(
    "/extend",
    openapi_extra=described(
        {**HANDLES, "visibility_timeout_ms": 30_000}, "receipt_handles", "visibility_timeout_ms"
    ),
)
async def extend(caller: ClientHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Extend or shorten the leases of messages."""
    asked = await json_object(request, BODY_BYTES_MAX)
    handles = _handles(asked)
    for_ms = _milliseconds(asked, "visibility_timeout_ms", None)
    leases = await _leases(caller, vhost, name)
    return _told(handles, leases.extend(handles, for_ms))


def _told(handles: list[str], outcomes: list[Outcome]) -> Response:
    results = [
        {"receipt_handle": handle, "result": outcome.value}
        for handle, outcome in zip(handles, outcomes, strict=True)
    ]
    return answer({"results": results})


# -- what was asked, and of which queue


def _handles(asked: Asked) -> list[str]:
    handles = asked.get("receipt_handles")
    if not isinstance(handles, list) or not 1 <= len(handles) <= HANDLES_MAX:
        raise bad_request(f"receipt_handles is a list of 1 to {HANDLES_MAX}")
    if not all(isinstance(handle, str) for handle in handles):
        raise bad_request("a receipt handle is a string")
    return handles


def _milliseconds(asked: Asked, key: str, default: int | None) -> int:
    value = asked.get(key, default)
    if type(value) is not int or not 0 <= value <= TERM_MS_MAX:
        raise bad_request(f"{key} is a whole number from 0 to {TERM_MS_MAX}")
    return value


async def _pulled_queue(caller: Caller, vhost: str, name: str) -> DeclaredQueue:
    """Return a queue that the caller may pull from. Raises ApiError 400, 401, 403 and 404."""
    queue = await queue_to_read(caller, vhost, name)
    if queue.settings.is_stream:
        raise bad_request("a stream is read by offset, and not pulled from")
    return queue


async def _leases(caller: Caller, vhost: str, name: str) -> QueueLeases:
    return caller.node.broker.pulls.leases(await _pulled_queue(caller, vhost, name))
