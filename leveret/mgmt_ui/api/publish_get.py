"""POST /api/exchanges/VHOST/NAME/publish and /api/queues/VHOST/NAME/get, for people and tests.

Applications pull with receipts (leveret.mgmt_ui.api.pull), or use AMQP.

    publish   {"properties": {…}, "routing_key", "payload", "payload_encoding": "string" | "base64"}
              → {"routed": true}
    get       {"count", "ackmode", "encoding": "auto" | "base64", "truncate"}
              → [{"payload_bytes", "redelivered", "exchange", "routing_key", "message_count",
                  "properties", "payload", "payload_encoding"}]
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.routing.message import StoredMessage
from leveret.errors import AmqpError
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import Segment, answer
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_authorised, not_found
from leveret.mgmt_ui.contents import content_of, got_row
from leveret.mgmt_ui.routes import LazyRouter
from leveret.ports.sessions import OverRateError, RejectedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from leveret.core.routing.message import Message
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row
    from leveret.ports.sessions import Session

__all__ = ["publish_content", "publish_message", "router"]

PUBLISH_BYTES_MAX = 32 << 20  # of a request; larger messages need AMQP
GOT_BYTES_MAX = 64 << 20  # of bodies in one answer; fewer messages than asked for is no error
GOT_COUNT_MAX = 10_000
WAITED_SECONDS_MAX = 1  # for a rate; longer waits are answered 429
NO_ACK = {"ack_requeue_false"}
REJECTING = {"reject_requeue_true": True, "reject_requeue_false": False}
ACK_MODES = {"ack_requeue_true", *NO_ACK, *REJECTING}
MESSAGE = {
    "properties": {},
    "routing_key": "orders",
    "payload": "hello",
    "payload_encoding": "string",
}
WANTED = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 50000}

router = LazyRouter()


@asynccontextmanager
async def _session(
    caller: Caller, vhost: str, wait_seconds: Callable[[], int]
) -> AsyncIterator[Session]:
    """Open an AMQP session for the caller; AMQP errors become HTTP errors, as in RabbitMQ.

    `wait_seconds()` is how long a rate limit would delay the request; 0 if none does.
    """
    _require_short(wait_seconds())
    try:
        async with caller.node.sessions.open(caller.rights, vhost, (caller.peer, 0)) as session:
            yield session
    except OverRateError:
        raise _over_rate(max(wait_seconds(), 1)) from None
    except TimeoutError:
        raise _held_back() from None
    except ValueError as error:  # a name or a key that no frame can carry
        raise bad_request(str(error)) from None
    except RejectedError as error:
        if caller.node.broker.alarms.reason:  # the disk has refused
            raise _held_back() from None
        raise bad_request(f"rejected {error.explanation}") from None
    except AmqpError as error:
        if error.code == 404:
            raise not_found(error.explanation) from None
        if error.code == 403:
            raise not_authorised(error.explanation) from None
        raise bad_request(f"{error.code} {error.explanation}") from None


def _held_back() -> ApiError:
    reason = "the node takes no messages now: an alarm holds publishers back"
    return ApiError(503, "service_unavailable", reason)


def _require_short(seconds: int) -> None:
    """Raise ApiError 429 if a rate limit would delay a request for longer than allowed."""
    if seconds > WAITED_SECONDS_MAX:
        raise _over_rate(seconds)


def _over_rate(seconds: int) -> ApiError:
    reason = "over a rate of the user, the virtual host or the queue"
    return ApiError(429, "too_many_requests", reason, {"retry-after": str(seconds)})


# -- publishing


@router.post(
    "/api/exchanges/{vhost}/{name}/publish",
    openapi_extra=body(MESSAGE, "routing_key", "payload", "payload_encoding"),
)
async def publish(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Publish one message; answer whether it was routed."""
    caller.vhost(vhost)
    await caller.require(vhost, "exchange", _exchange(name), "write")  # before all that is read
    asked = await json_object(request, PUBLISH_BYTES_MAX)
    return answer({"routed": await publish_message(caller, vhost, name, asked)})


async def publish_message(caller: Caller, vhost: str, name: str, asked: dict[str, Any]) -> bool:
    """Publish a message given as JSON; return whether it was routed. Raises ApiError."""
    try:
        content = content_of(asked)
    except ValueError as error:
        raise bad_request(str(error)) from None
    routing_key = asked.get("routing_key")
    if not isinstance(routing_key, str):
        raise bad_request("[{key_missing,routing_key}]")
    return await publish_content(caller, vhost, name, routing_key, content)


async def publish_content(
    caller: Caller, vhost: str, name: str, routing_key: str, content: tuple[bytes, bytes]
) -> bool:
    """Publish a content header and its body; return whether it was routed. Raises ApiError."""
    exchange = _exchange(name)
    names = exchange.encode(errors="replace"), routing_key.encode(errors="replace")
    message = StoredMessage(*names, *content, 0)
    wait_seconds = partial(_publish_wait_seconds, caller, vhost, exchange, message)
    async with _session(caller, vhost, wait_seconds) as session:
        return await session.publish(exchange, routing_key, *content)


def _exchange(name: str) -> str:
    """Return AMQP's name of an exchange from a path's."""
    return "" if name == "amq.default" else name


def _publish_wait_seconds(caller: Caller, vhost: str, exchange: str, message: Message) -> int:
    """Return how long rate limits, those of queues included, would delay a publish, in seconds."""
    host = caller.vhost(vhost)
    found, graph = host.exchanges.get(exchange), host.topology.graph
    key = message.routing_key.decode()
    queues = [] if found is None else graph.find_queues(found, [key], message)
    opened = [queue for queue in queues if isinstance(queue, DeclaredQueue)]
    return caller.node.broker.rates.publish_wait_seconds(caller.name, host.definition, opened)


# -- getting


@router.post(
    "/api/queues/{vhost}/{name}/get", openapi_extra=body(WANTED, "count", "ackmode", "encoding")
)
async def get(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Get messages, with or without removing them."""
    caller.vhost(vhost)
    asked = await json_object(request)
    count, mode, encoding = _count(asked), asked.get("ackmode"), asked.get("encoding")
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode is one of {', '.join(sorted(ACK_MODES))}")
    if encoding not in {"auto", "base64"}:
        raise bad_request("encoding is auto or base64")
    truncate = _number(asked.get("truncate"))
    if truncate is not None and (type(truncate) is not int or truncate < 0):
        raise bad_request("truncate is a number of bytes")
    rows: list[Row] = []
    wait_seconds = partial(_get_wait_seconds, caller, vhost, name)
    async with _session(caller, vhost, wait_seconds) as session:
        room = GOT_BYTES_MAX
        tags = []
        while len(rows) < count and room > 0:
            got = await session.get(name, no_ack=mode in NO_ACK)
            if got is None:
                break
            room -= len(got.body)
            tags.append(got.tag)
            rows.append(got_row(got, encoding, truncate))
        if mode in REJECTING:
            for tag in tags:
                session.reject(tag, requeue=REJECTING[mode])
    return answer(rows)


def _get_wait_seconds(caller: Caller, vhost: str, name: str) -> int:
    host = caller.vhost(vhost)
    queue = host.queues.get(name)
    if not isinstance(queue, DeclaredQueue):
        return 0
    return caller.node.broker.rates.pull_wait_seconds(caller.name, host.definition, queue)


def _count(asked: dict[str, Any]) -> int:
    count = _number(asked.get("count"))
    if type(count) is not int or not 1 <= count <= GOT_COUNT_MAX:
        raise bad_request(f"count is a whole number from 1 to {GOT_COUNT_MAX}")
    return count


def _number(value: object) -> object:
    """Return a number from JSON as it is; rabbitmqadmin sends it as text."""
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    return int(str(value)) if is_digits else value
