"""/api/policies and /api/operator-policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.core.definitions.document import policy_row
from leveret.mgmt_ui.api.bodies import json_object, require_fields, text
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    done,
    listed,
    vhosts_of,
)
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.rules import policy_clear, policy_set
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.ports.definitions import PolicyDefinition


__all__ = ["router"]

POLICIES: ObjectKind[PolicyDefinition] = ObjectKind(
    lambda policy: (policy.vhost, policy.name), policy_row
)
EXAMPLE = {
    "pattern": "^orders-",
    "definition": {"max-length": 10_000},
    "priority": 1,
    "apply-to": "queues",
}


def _routes(path: str, *, operator: bool) -> LazyRouter:
    """Return the routes of policies or operator policies, which need different rights."""
    router = LazyRouter(tags=[path])

    def find(caller: Caller, vhost: str, name: str) -> PolicyDefinition | None:
        held = caller.node.context.administration.policies.select(vhost, operator=operator)
        return next((policy for policy in held if policy.name == name), None)

    @router.api_route(f"/api/{path}", methods=READ)
    @router.api_route(f"/api/{path}/{{vhost}}", methods=READ)
    async def list_policies(
        caller: CallerHere, query: QueryHere, vhost: Segment | None = None
    ) -> Response:
        """Policies of one virtual host, or of all whose contents the caller may list."""
        policies = caller.node.context.administration.policies
        hosts = vhosts_of(caller, vhost)
        found = [one for host in hosts for one in policies.select(host.name, operator=operator)]
        return await listed(found, POLICIES, query)

    @router.api_route(f"/api/{path}/{{vhost}}/{{name}}", methods=READ)
    async def show_policy(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
        """One policy."""
        caller.vhost(vhost)
        return answer(policy_row(_found(find(caller, vhost, name))))

    @router.put(
        f"/api/{path}/{{vhost}}/{{name}}", openapi_extra=body(EXAMPLE, "pattern", "definition")
    )
    async def put_policy(
        caller: CallerHere, request: Request, vhost: Segment, name: Segment
    ) -> Response:
        """Set a policy, which applies at once."""
        _require_maker(caller, vhost, operator=operator)
        asked = await json_object(request)
        require_fields(asked, "pattern", "definition")
        if not isinstance(asked["definition"], dict):
            raise bad_request("definition is an object")
        is_new = find(caller, vhost, name) is None
        await caller.perform(
            policy_set,
            vhost=vhost,
            name=name,
            pattern=text(asked, "pattern", None),
            definition=asked["definition"],
            priority=asked.get("priority", 0),
            apply_to=text(asked, "apply-to", "all"),
            operator=operator,
        )
        return done(is_new=is_new)

    @router.delete(f"/api/{path}/{{vhost}}/{{name}}")
    async def delete_policy(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
        """Delete a policy; its settings end at once."""
        _require_maker(caller, vhost, operator=operator)
        _found(find(caller, vhost, name))
        await caller.perform(policy_clear, vhost=vhost, name=name, operator=operator)
        return done()

    return router


def _require_maker(caller: Caller, vhost: str, *, operator: bool) -> None:
    if operator:
        caller.require_administrator()
    else:
        caller.require_policymaker(vhost)
    caller.vhost(vhost)


def _found(policy: PolicyDefinition | None) -> PolicyDefinition:
    if policy is None:
        raise not_found()
    return policy


router = LazyRouter(
    routes=[
        *_routes("policies", operator=False).routes,
        *_routes("operator-policies", operator=True).routes,
    ]
)
