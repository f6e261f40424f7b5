"""GET /api/leveret/usage: messages and bytes sent and received, by the hour.

Query parameters: `since` and `until` (seconds since 1970; default: the last day), `of` (`vhost`,
`user` or `queue`), `vhost` and `name`. Monitors see all; others see the virtual hosts that they may
enter, and among users only themselves.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from leveret.mgmt_ui.api.bodies import whole_number
from leveret.mgmt_ui.api.callers import Caller, CallerHere
from leveret.mgmt_ui.api.describing import query as described
from leveret.mgmt_ui.api.listing import READ, answer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import bad_request
from leveret.mgmt_ui.operations.records import usage_list
from leveret.ports.usage import HOUR_SECONDS, Subject

__all__ = ["router", "visible_usage"]

DAY_HOURS = 24

ASKED = {
    "since": 1_700_000_000,
    "until": 1_800_000_000,
    "of": "queue",
    "vhost": "/",
    "name": "orders",
}

router = own_router("/usage")


@router.api_route("", methods=READ, openapi_extra=described(ASKED))
async def list_usage(caller: CallerHere, request: Request) -> Response:
    """Usage records by hour and by virtual host, user or queue."""
    query = request.query_params
    subject = query.get("of")
    if subject not in {None, *Subject}:
        raise bad_request("of is vhost, user or queue")
    now = caller.node.broker.timers.wall_ms() // 1000
    until = whole_number(query, "until", now + HOUR_SECONDS)
    since = whole_number(query, "since", now - DAY_HOURS * HOUR_SECONDS)
    asked = {"subject": subject, "vhost": query.get("vhost"), "name": query.get("name")}
    return answer(await visible_usage(caller, since=since, until=until, **asked))


async def visible_usage(caller: Caller, **asked: Any) -> list[dict[str, Any]]:
    """Return the usage records that the caller may see; none if the node keeps none."""
    if caller.node.context.usage is None:
        return []
    found: list[dict[str, Any]] = await caller.perform(usage_list, **asked)
    if caller.is_monitor:
        return found
    names = {vhost.name for vhost in caller.visible_vhosts()}
    return [
        row
        for row in found
        if row["vhost"] in names and (row["subject"] != Subject.USER or row["name"] == caller.name)
    ]
