"""Operations that publish and get messages, for people and tests.

A message travels as AMQP, as by HTTP: features, limits and texts are those that clients meet. The
rights are those of the command line, which may do everything.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from leveret.core.access.all_rights import AllRights
from leveret.core.admin.commands import command
from leveret.core.admin.node import not_running, queue_of, vhost_of
from leveret.core.admin.rights import READ_QUEUE, may
from leveret.core.definitions.administration import AdministrationError
from leveret.core.events import COMMAND_LINE_USER
from leveret.mgmt_ui.contents import content_of, got_row
from leveret.mgmt_ui.operations.topology import broker_of
from leveret.ports.sessions import OverRateError, RejectedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.sessions import Session

COUNT_MAX: Final = 1000  # of one request; more need further requests
TAKEN_BYTES_MAX: Final = 64 << 20  # of bodies in one answer; fewer messages is no error
PEER: Final = ("127.0.0.1", 0)


@asynccontextmanager
async def _session(node: AdminContext, vhost: str) -> AsyncIterator[Session]:
    """Open an AMQP session for the command line; its errors become AdministrationErrors."""
    if node.sessions is None:
        raise not_running()
    rights = AllRights(COMMAND_LINE_USER)
    try:
        async with node.sessions.open(rights, vhost, PEER) as session:
            yield session
    except OverRateError:
        raise AdministrationError("invalid", "a rate limit holds publishers back") from None
    except TimeoutError:
        alarm = broker_of(node).alarms.reason
        why = f"an alarm holds publishers back ({alarm})" if alarm else "the node is overloaded"
        raise AdministrationError("invalid", f"no confirm came: {why}") from None
    except RejectedError:
        raise AdministrationError(
            "invalid", "a queue has refused the message: it is full, or the disk is"
        ) from None
    except ValueError as error:  # a name or a key that no frame can carry
        raise AdministrationError("invalid", str(error)) from None


@command("message.publish", may("write", exchange="exchange"))
async def message_publish(
    node: AdminContext,
    *,
    vhost: str,
    exchange: str,
    routing_key: str,
    payload: str,
    payload_encoding: str,
    properties: dict[str, Any],
    count: int,
) -> dict[str, int]:
    """Publish a message `count` times, confirmed. Returns the number of routed ones."""
    vhost_of(node, vhost)
    if not 1 <= count <= COUNT_MAX:
        raise AdministrationError("invalid", f"count is from 1 to {COUNT_MAX}")
    try:
        content = content_of(
            {
                "payload": payload,
                "payload_encoding": payload_encoding,
                "properties": properties,
            }
        )
    except ValueError as error:
        raise AdministrationError("invalid", str(error)) from None
    routed = 0
    async with _session(node, vhost) as session:
        for _ in range(count):
            routed += await session.publish(exchange, routing_key, *content)
    return {"published": count, "routed": routed}


@command("message.take", READ_QUEUE)
async def message_take(
    node: AdminContext, *, vhost: str, queue: str, count: int, requeue: bool
) -> dict[str, list[dict[str, Any]]]:
    """Get messages from a queue; with `requeue` return them."""
    queue_of(node, vhost, queue)
    if not 1 <= count <= COUNT_MAX:
        raise AdministrationError("invalid", f"count is from 1 to {COUNT_MAX}")
    rows: list[dict[str, Any]] = []
    room = TAKEN_BYTES_MAX
    async with _session(node, vhost) as session:
        while len(rows) < count and room > 0:
            got = await session.get(queue, no_ack=not requeue)
            if got is None:
                break
            room -= len(got.body)
            rows.append(got_row(got, "auto", None))
    return {"messages": rows}
