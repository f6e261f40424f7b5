"""/api/leveret/queues/VHOST/NAME: altering a queue in use.

    PATCH   …                  {"arguments": {"x-max-length": 5, "x-expires": null}, "name": "new"}
    PUT     …/pause            {"publishing": true} refuses publishes, too
    DELETE  …/pause            resume
    DELETE  …/aliases/ALIAS    remove an alias, a former name of the queue

Each needs the permissions to declare the queue. Renaming needs all permissions for both names, as
others may have permissions for the new one.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from leveret.core.settings.arguments import DEAD_LETTER_EXCHANGE
from leveret.core.settings.queue_settings import Stated
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import Caller, CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.topology import (
    queue_alias_remove,
    queue_change,
    queue_pause,
    queue_rename,
    queue_resume,
)

__all__ = ["require_to_change", "require_to_configure", "require_to_rename", "router"]

DEAD_LETTERS = "x-dead-letter-"  # prefix of the arguments of dead-lettering

CHANGED = {"arguments": {"x-max-length": 1000}, "name": "orders"}

router = own_router("/queues/{vhost}/{name}")


@router.patch("", openapi_extra=described(CHANGED))
async def change(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Change arguments, then the name."""
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
        await caller.perform(queue_change, vhost=vhost, name=name, arguments=arguments)
    if new_name is not None:
        await caller.perform(queue_rename, vhost=vhost, name=name, new_name=new_name)
    return Response(status_code=204)


async def require_to_change(
    caller: Caller, vhost: str, name: str, arguments: dict[str, Any]
) -> None:
    """Raise ApiError unless the caller has the permissions that dead-lettering needs.

    A dead-letter routing key alone redirects them, where an argument or policy names the exchange.
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
    """Raise ApiError unless the caller has all permissions for the new name.

    Otherwise a user with configure permission could rename a queue to a name that they may read.
    """
    for one in (name, new_name):
        for permission in ("configure", "write", "read"):
            await caller.require(vhost, "queue", one, permission)


@router.put("/pause", openapi_extra=described({"publishing": True}))
async def pause(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Pause delivery until the queue is resumed."""
    asked = await json_object(request)
    publishing = asked.get("publishing", False)
    if not isinstance(publishing, bool):
        raise bad_request("publishing is true or false")
    await caller.perform(queue_pause, vhost=vhost, name=name, publishing=publishing)
    return Response(status_code=204)


@router.delete("/pause")
async def resume(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """Resume a paused queue."""
    await caller.perform(queue_resume, vhost=vhost, name=name)
    return Response(status_code=204)


@router.delete("/aliases/{alias}")
async def remove_alias(
    caller: CallerHere, vhost: Segment, name: Segment, alias: Segment
) -> Response:
    """Remove an alias of a queue; the name may be declared anew then."""
    await require_to_configure(caller, vhost, name)
    queue = caller.vhost(vhost).queues.get(name)
    if queue is None or alias not in queue.definition.aliases:
        raise not_found("alias_not_found")
    await caller.perform(queue_alias_remove, vhost=vhost, alias=alias)
    return Response(status_code=204)


async def require_to_configure(caller: Caller, vhost: str, name: str) -> None:
    """Raise ApiError unless the caller may see the virtual host and configure the queue."""
    caller.vhost(vhost)
    await caller.require(vhost, "queue", name, "configure")
    caller.require_shared(vhost, name)
