"""/api/shovels: the states of shovels, as RabbitMQ's plugin for its management has them.

Monitors see those of all virtual hosts that they may list; policymakers restart and delete them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.features.shovels.commands import shovel_delete, shovel_restart, shovel_status
from leveret.features.shovels.parameters import COMPONENT, without_passwords
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.problems import not_found

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row

__all__ = ["router"]

router = APIRouter(tags=["shovels"])

SHOVELS: ObjectKind[Row] = ObjectKind(
    lambda row: (row["vhost"], row["name"]), lambda row: row, ("vhost", "name")
)
SHOVEL = "/api/shovels/vhost/{vhost}/{name}"


@router.api_route("/api/shovels", methods=READ)
@router.api_route("/api/shovels/{vhost}", methods=READ)
async def list_shovels(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """The states of shovels, of one virtual host or of all."""
    caller.require_monitor()
    names = {host.name for host in caller.open_vhosts()}
    if vhost is not None:
        names = {caller.vhost(vhost).name}
    rows = [row for row in await caller.perform(shovel_status) if row["vhost"] in names]
    return await listed(rows, SHOVELS, query)


@router.api_route(SHOVEL, methods=READ)
async def show_shovel(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """The parameter of one shovel that has a state."""
    caller.require_monitor()
    caller.vhost(vhost)
    await _require_state(caller, vhost, name)
    parameter = caller.node.context.administration.parameters.find(vhost, COMPONENT, name)
    if parameter is None:
        raise not_found()
    value = without_passwords(parameter.value)
    return answer({"value": value, "vhost": vhost, "component": COMPONENT, "name": name})


@router.delete(SHOVEL)
async def delete_shovel(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """Delete a shovel."""
    caller.require_policymaker(vhost)
    caller.vhost(vhost)
    await caller.perform(shovel_delete, vhost=vhost, name=name)
    return done()


@router.delete(f"{SHOVEL}/restart")
async def restart_shovel(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """Connect a shovel anew."""
    caller.require_policymaker(vhost)
    caller.vhost(vhost)
    await caller.perform(shovel_restart, vhost=vhost, name=name)
    return done()


async def _require_state(caller: Caller, vhost: str, name: str) -> None:
    """Raise ApiError 404 unless a node tells of a shovel."""
    rows = await caller.perform(shovel_status)
    if not any((row["vhost"], row["name"]) == (vhost, name) for row in rows):
        raise not_found()
