"""Common parts of the routes: query parameters of lists, and responses.

Every handler is a coroutine on the broker's own loop: nothing it reads can change while it does not
wait, and nothing needs a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, Request, Response
from fastapi import Query as Parameter
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AfterValidator

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.listing import ObjectKind, Query, all_pages, in_order, in_pieces, one_page
from leveret.mgmt_ui.api.message_stats import Shown
from leveret.mgmt_ui.yielding import in_chunks, in_yielding_chunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.core.routing.bindings import QueueLike
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row

__all__ = [
    "PRIVATE",
    "READ",
    "QueryHere",
    "Segment",
    "answer",
    "done",
    "listed",
    "message_counts",
    "queues_of",
    "shown",
    "streamed",
    "vhosts_of",
]

READ = ["GET", "HEAD"]
PRIVATE = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}
DOTS = {".;": ".", "..;": ".."}


def _segment(sent: str) -> str:
    return DOTS.get(sent) or unquote(sent)


# Routes match the path as it was sent, so that `%2F` is a virtual host and not two slashes. Clients
# take `.` and `..` for steps through the path, even as `%2E`: with an empty parameter (RFC 3986,
# 3.3) they are names. Of a name itself, a semicolon is sent as `%3B`.
Segment = Annotated[str, AfterValidator(_segment)]


def answer(value: Any, status: int = 200) -> Response:
    """Return a JSON response with `value`."""
    return JSONResponse(value, status, PRIVATE)


def streamed(value: dict[str, Any]) -> Response:
    """Return a response with `value` as JSON, encoded in slices as its lists may be long."""
    return _sent(in_pieces(value))


def done(*, is_new: bool = False) -> Response:
    """Return an empty response: 201 if something was created, else 204."""
    return Response(status_code=201 if is_new else 204)


async def listed(items: list[Any], kind: ObjectKind[Any], query: Query) -> Response:
    """Respond with all items, encoded while they are sent, or with the requested page."""
    ordered = await in_order(items, kind, query)
    if query.page is None:
        return _sent(all_pages(ordered, kind, query))
    return answer(await one_page(ordered, len(items), kind, query))


def _sent(pieces: AsyncIterator[str]) -> Response:
    return StreamingResponse(in_chunks(pieces), headers=PRIVATE, media_type="application/json")


async def _query(
    request: Request,
    *,
    page: str | None = None,  # noqa: ARG001  # these are for the API's description
    page_size: str | None = None,  # noqa: ARG001
    name_part: Annotated[str | None, Parameter(alias="name")] = None,  # noqa: ARG001
    sort: str | None = None,  # noqa: ARG001
    sort_reverse: str | None = None,  # noqa: ARG001
    columns: str | None = None,  # noqa: ARG001
    disable_stats: str | None = None,  # noqa: ARG001
    enable_queue_totals: str | None = None,  # noqa: ARG001
    use_regex: str | None = None,  # noqa: ARG001
) -> Query:
    """Parse the query; a coroutine, because FastAPI calls plain functions in a thread."""
    return Query.parse(request.query_params)


QueryHere = Annotated[Query, Depends(_query)]


def queues_of(hosts: Iterable[Vhost]) -> list[QueueLike]:
    """Return all queues of some virtual hosts; fast even for a hundred thousand queues."""
    return list(chain.from_iterable(host.queues.values() for host in hosts))


def vhosts_of(caller: Caller, name: str | None) -> list[Vhost]:
    """Return the virtual host of the path, or all whose contents the caller may list."""
    return caller.open_vhosts() if name is None else [caller.vhost(name)]


def shown(caller: Caller, query: Query) -> Shown:
    """Return the statistics that a query asks for."""
    return Shown(caller.node.broker.statistics, query.ranges)


async def message_counts(hosts: Iterable[Vhost]) -> Row:
    """Return the summed message counts of the queues of some virtual hosts."""
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    async for part in in_yielding_chunks(queues_of(hosts)):
        for queue in part:
            for name, count in views.queue_counts(queue).items():
                totals[name] += count
    return totals
