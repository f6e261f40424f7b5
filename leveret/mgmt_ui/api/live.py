"""/api/leveret/queues/VHOST/NAME: changing a queue while it is used.

    PATCH   …                  {"arguments": {"x-max-length": 5, "x-expires": null}, "name": "new"}
    PUT     …/pause            {"publishing": true} refuses what is published, too
    DELETE  …/pause            go on
    DELETE  …/aliases/ALIAS    forget a name that the queue had

Each needs what declaring the queue would need. Another name needs all permissions for both names,
as messages and publishers come along to where others may be let in.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from leveret.core.queues.arguments import DEAD_LETTER_EXCHANGE
from leveret.core.queues.settings import Stated
from leveret.mgmt_ui.api.answers import Segment
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import Caller, CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import bad_request, not_found

__all__ = ["require_to_change", "require_to_configure", "require_to_rename", "router"]

DEAD_LETTERS = "x-dead-letter-"  # how the arguments begin that say where dead letters go

CHANGED = {"arguments": {"x-max-length": 1000}, "name": "orders"}

router = own_router("/queues/{vhost}/{name}")


@router.patch("", openapi_extra=described(CHANGED))
async def change(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Other arguments, then another name."""
    asked = await json_object(request)
    arguments, new_name = asked.get("arguments"), asked.get("name")
    if not isinstance(arguments, (dict, type(None))) or not isinstance(new_name, (str, type(None))):
        raise bad_request("arguments is an object, and name is text")
    if arguments is None and new_name is None:
        raise bad_request("state arguments, or a name")
    await require_to_configure(caller, vhost, name)
    if new_name is not None:
        await require_to_rename(caller, vhost, name, new_name)
    if arguments is not None:
        await require_to_change(caller, vhost, name, arguments)
        await caller.perform("queue.change", vhost=vhost, name=name, arguments=arguments)
    if new_name is not None:
        await caller.perform("queue.rename", vhost=vhost, name=name, new_name=new_name)
    return Response(status_code=204)


async def require_to_change(
    caller: Caller, vhost: str, name: str, arguments: dict[str, Any]
) -> None:
    """Raise ApiError unless the caller may do himself what he lets a queue do with dead letters.

    A key alone is enough to send them elsewhere, where an argument or a policy names the exchange.
    """
    if not any(argument.startswith(DEAD_LETTERS) for argument in arguments):
        return
    await caller.require(vhost, "queue", name, "read")
    queue = caller.vhost(vhost).queues.get(name)
    own, policy = (queue.definition.arguments, queue.policy.definition) if queue else ({}, {})
    stated = {key: value for key, value in {**own, **arguments}.items() if value is not None}
    exchange = Stated(stated, policy)(DEAD_LETTER_EXCHANGE.removeprefix("x-"))
    if isinstance(exchange, str):
        await caller.require(vhost, "exchange", exchange, "write")


async def require_to_rename(caller: Caller, vhost: str, name: str, new_name: str) -> None:
    """Raise ApiError unless the caller may do with the queue what the other name lets people do.

    Else who may configure a queue could call it something that he may read.
    """
    for one in (name, new_name):
        for permission in ("configure", "write", "read"):
            await caller.require(vhost, "queue", one, permission)


@router.put("/pause", openapi_extra=described({"publishing": True}))
async def pause(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Hand out nothing until somebody lets the queue go on."""
    asked = await json_object(request)
    publishing = asked.get("publishing", False)
    if not isinstance(publishing, bool):
        raise bad_request("publishing is true or false")
    await require_to_configure(caller, vhost, name)
    await caller.perform("queue.pause", vhost=vhost, name=name, publishing=publishing)
    return Response(status_code=204)


@router.delete("/pause")
async def resume(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """Let the queue go on."""
    await require_to_configure(caller, vhost, name)
    await caller.perform("queue.resume", vhost=vhost, name=name)
    return Response(status_code=204)


@router.delete("/aliases/{alias}")
async def remove_alias(
    caller: CallerHere, vhost: Segment, name: Segment, alias: Segment
) -> Response:
    """Forget a name that the queue had; it may be declared anew then."""
    await require_to_configure(caller, vhost, name)
    queue = caller.vhost(vhost).queues.get(name)
    if queue is None or alias not in queue.definition.aliases:
        raise not_found("alias_not_found")
    await caller.perform("queue.alias.remove", vhost=vhost, alias=alias)
    return Response(status_code=204)


async def require_to_configure(caller: Caller, vhost: str, name: str) -> None:
    """Raise ApiError unless the caller may configure a queue of a virtual host that he may see."""
    caller.vhost(vhost)
    await caller.require(vhost, "queue", name, "configure")
    caller.require_shared(vhost, name)
