"""/api/parameters and /api/global-parameters: runtime parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from leveret.core.definitions.document import OPERATOR_POLICY, VHOST_LIMITS, parameter_rows
from leveret.features.alerts.commands import without_secret
from leveret.features.alerts.rules import COMPONENT
from leveret.features.shovels.parameters import COMPONENT as SHOVEL
from leveret.features.shovels.parameters import direct_vhosts, without_passwords
from leveret.mgmt_ui.api.bodies import json_object, require_fields
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.rules import (
    global_parameter_clear,
    global_parameter_set,
    parameter_clear,
    parameter_set,
)

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row
    from leveret.ports.definitions import GlobalParameterDefinition


__all__ = ["require_direct_vhosts", "router"]

router = APIRouter(tags=["parameters"])

PARAMETERS: ObjectKind[Row] = ObjectKind(
    lambda row: (row["vhost"], row["component"], row["name"]),
    lambda row: row,
    ("vhost", "component", "name"),
)
GLOBAL: ObjectKind[GlobalParameterDefinition] = ObjectKind(
    lambda parameter: (parameter.name,),
    lambda parameter: {"name": parameter.name, "value": parameter.value},
    ("name",),
)
# Components that are no mere values here, and where they are set.
ELSEWHERE = {
    COMPONENT: "/api/leveret/alert-rules",  # which keeps a secret that is shown hidden
    VHOST_LIMITS: "/api/vhost-limits",
    OPERATOR_POLICY: "/api/operator-policies",
    "policy": "/api/policies",
}
VALUE = body({"value": {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://"}}, "value")


# -- of components


@router.api_route("/api/parameters", methods=READ)
@router.api_route("/api/parameters/{component}", methods=READ)
@router.api_route("/api/parameters/{component}/{vhost}", methods=READ)
async def list_parameters(
    caller: CallerHere,
    query: QueryHere,
    component: Segment | None = None,
    vhost: Segment | None = None,
) -> Response:
    """Parameters, limits of virtual hosts and operator policies among them; for policymakers."""
    caller.require_policymaker(vhost)
    names = {host.name for host in caller.open_vhosts()}
    if vhost is not None:
        names = {caller.vhost(vhost).name}
    rows = [
        row
        for row in _rows(caller)
        if row["vhost"] in names and component in {None, row["component"]}
    ]
    return await listed(rows, PARAMETERS, query)


@router.api_route("/api/parameters/{component}/{vhost}/{name}", methods=READ)
async def show_parameter(
    caller: CallerHere, component: Segment, vhost: Segment, name: Segment
) -> Response:
    """One parameter."""
    caller.require_policymaker(vhost)
    caller.vhost(vhost)
    return answer(_existing(caller, component, vhost, name))


@router.put("/api/parameters/{component}/{vhost}/{name}", openapi_extra=VALUE)
async def put_parameter(
    caller: CallerHere, request: Request, component: Segment, vhost: Segment, name: Segment
) -> Response:
    """Set a parameter."""
    caller.require_policymaker(vhost)
    caller.vhost(vhost)
    asked = await json_object(request)
    require_fields(asked, "value")
    _require_plain(component)
    if component == SHOVEL:
        require_direct_vhosts(caller, asked["value"])
    is_new = _find(caller, component, vhost, name) is None
    await caller.perform(
        parameter_set, vhost=vhost, component=component, name=name, value=asked["value"]
    )
    return done(is_new=is_new)


@router.delete("/api/parameters/{component}/{vhost}/{name}")
async def delete_parameter(
    caller: CallerHere, component: Segment, vhost: Segment, name: Segment
) -> Response:
    """Delete a parameter."""
    caller.require_policymaker(vhost)
    caller.vhost(vhost)
    _existing(caller, component, vhost, name)
    _require_plain(component)
    await caller.perform(parameter_clear, vhost=vhost, component=component, name=name)
    return done()


def _rows(caller: Caller) -> list[Row]:
    administration = caller.node.context.administration
    rows = parameter_rows(
        administration.vhosts(),
        administration.policies.select(operator=True),
        administration.parameters.select(),
    )
    return [{**row, "value": _shown(row["component"], row["value"])} for row in rows]


def _shown(component: str, value: Any) -> Any:
    """Return a parameter's value without its secrets."""
    if component == COMPONENT:
        return without_secret(value)
    return without_passwords(value) if component == SHOVEL else value


def require_direct_vhosts(caller: Caller, shovel: Any) -> None:
    """Raise ApiError 400 unless the caller may enter what a shovel enters without a login.

    The texts are RabbitMQ's.
    """
    for name in sorted(direct_vhosts(shovel)):
        if name not in caller.node.broker.vhosts or not caller.enters(name):
            text = f'user "{caller.name}" may not connect to vhost "{name}"'
            raise bad_request(f"Validation failed\n\n{text}\n")


def _find(caller: Caller, component: str, vhost: str, name: str) -> Row | None:
    key = (vhost, component, name)
    return next((row for row in _rows(caller) if PARAMETERS.identity(row) == key), None)


def _existing(caller: Caller, component: str, vhost: str, name: str) -> Row:
    row = _find(caller, component, vhost, name)
    if row is None:
        raise not_found()
    return row


def _require_plain(component: str) -> None:
    if component in ELSEWHERE:
        raise bad_request(f"{component}: this is set by {ELSEWHERE[component]}")


# -- of the node


@router.api_route("/api/global-parameters", methods=READ)
async def list_global_parameters(caller: CallerHere, query: QueryHere) -> Response:
    """Parameters of the node, for policymakers."""
    caller.require_policymaker()
    return await listed(caller.node.context.administration.parameters.all_global(), GLOBAL, query)


@router.api_route("/api/global-parameters/{name}", methods=READ)
async def show_global_parameter(caller: CallerHere, name: Segment) -> Response:
    """One parameter of the node."""
    caller.require_policymaker()
    return answer({"name": name, "value": _existing_global(caller, name)})


@router.put("/api/global-parameters/{name}", openapi_extra=VALUE)
async def put_global_parameter(caller: CallerHere, request: Request, name: Segment) -> Response:
    """Set a parameter of the node."""
    caller.require_policymaker()
    asked = await json_object(request)
    require_fields(asked, "value")
    is_new = name not in _global(caller)
    await caller.perform(global_parameter_set, name=name, value=asked["value"])
    return done(is_new=is_new)


@router.delete("/api/global-parameters/{name}")
async def delete_global_parameter(caller: CallerHere, name: Segment) -> Response:
    """Delete a parameter of the node."""
    caller.require_policymaker()
    _existing_global(caller, name)
    await caller.perform(global_parameter_clear, name=name)
    return done()


def _global(caller: Caller) -> dict[str, Any]:
    held = caller.node.context.administration.parameters.all_global()
    return {parameter.name: parameter.value for parameter in held}


def _existing_global(caller: Caller, name: str) -> Any:
    held = _global(caller)
    if name not in held:
        raise not_found()
    return held[name]
