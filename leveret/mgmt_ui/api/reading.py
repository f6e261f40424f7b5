"""Queues that applications read by HTTP: which ones, how fast, and clients that hang up meanwhile.

For the routes of pulling, of topics, of batch leases and of staged batches. Permission to read is
enough, as for a consumer: applications need no management tag.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from leveret.core.access.authentication import answered
from leveret.core.access.permissions import authorise, check_vhost
from leveret.errors import (
    ChannelError,
    ConnectionClosingError,
    PermissionDeniedError,
    StorageError,
)
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_authorised, not_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.callers import Caller

__all__ = [
    "check_rates",
    "client_refused",
    "entered_vhost",
    "queue_to_read",
    "unreadable",
    "watching",
]


def client_refused(error: ChannelError) -> ApiError:
    """Return the answer for what would close a client's channel."""
    if isinstance(error, PermissionDeniedError):
        return not_authorised(error.explanation)
    if error.code == 403:
        return ApiError(403, "forbidden", error.explanation)
    return not_found(error.explanation) if error.code == 404 else bad_request(error.explanation)


async def entered_vhost(caller: Caller, name: str) -> Vhost:
    """Return a virtual host that the caller may enter. Raises ApiError 401 and 404."""
    vhost: Vhost | None = caller.node.broker.vhosts.get(name)
    if vhost is None:
        raise not_found("vhost_not_found")
    try:
        await answered(lambda: check_vhost(caller.rights, name))
    except ConnectionClosingError as error:
        raise not_authorised(error.explanation) from None
    return vhost


async def queue_to_read(caller: Caller, vhost_name: str, name: str) -> DeclaredQueue:
    """Return a queue that the caller may read from, opened.

    Raises ApiError 400, 401, 403, 404 and 503.
    """
    vhost = await entered_vhost(caller, vhost_name)
    try:
        await answered(lambda: authorise(caller.rights, vhost_name, "queue", name, "read"))
        queue: DeclaredQueue = caller.node.broker.find_queue(vhost, name, None)
    except ChannelError as error:
        if error.code == 404:
            raise not_found("queue_not_found") from None
        raise client_refused(error) from None
    try:
        await queue.opened()
    except StorageError as error:
        raise unreadable(error) from None
    if queue.deleted:
        raise not_found("queue_not_found")
    return queue


def unreadable(error: StorageError) -> ApiError:
    """Return the answer to a request for what a log holds."""
    return ApiError(503, "service_unavailable", f"the log cannot be read now: {error}")


def check_rates(caller: Caller, queue: DeclaredQueue) -> None:
    """Raise ApiError 429 if rates of consumers are exceeded, with the time to wait."""
    broker = caller.node.broker
    vhost = broker.vhosts[queue.definition.vhost].definition
    seconds = broker.rates.pull_wait_seconds(caller.name, vhost, queue)
    if seconds:
        text = "over a consume-rate of the user, the virtual host or the queue"
        raise ApiError(429, "too_many_requests", text, {"retry-after": str(seconds)})


@asynccontextmanager
async def watching(receive: Receive, hung_up: Callable[[], None]) -> AsyncIterator[None]:
    """Call `hung_up` if the client hangs up meanwhile; its body has been read before."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_watch(receive, hung_up))
        yield
        watch.cancel()


async def _watch(receive: Receive, hung_up: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    hung_up()
