"""/api/leveret/alerts and /api/leveret/alert-rules: firing alerts, and alert rules.

Users who can see a virtual host see its alerts; its policymakers set the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.features.alerts.commands import alert_clear, alert_set, alert_status, rule_rows
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import not_found

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row

__all__ = ["router"]

router = own_router()
RULES = "/alert-rules"
RULE = {
    "condition": "backlog",
    "above": 10_000,
    "below": 10,
    "queues": "^orders",
    "groups": "^billing",
    "for_seconds": 60,
    "severity": "critical",
    "summary": "Orders are not worked off",
    "webhook": "https://example.org/hook",
    "secret": "a secret",
    "enabled": True,
}


@router.api_route("/alerts", methods=READ)
async def list_alerts(caller: CallerHere) -> Response:
    """Alerts that are firing, and those that began or ended lately."""
    visible = {vhost.name for vhost in caller.visible_vhosts()}
    found = await caller.perform(alert_status, vhost=None)
    shown = {part: [row for row in rows if row["vhost"] in visible] for part, rows in found.items()}
    return answer(shown)


@router.api_route(RULES, methods=READ)
@router.api_route(f"{RULES}/{{vhost}}", methods=READ)
async def list_rules(caller: CallerHere, vhost: Segment | None = None) -> Response:
    """The rules of one virtual host, or of all that the caller may list."""
    if vhost is not None:
        caller.vhost(vhost)
        return answer(rule_rows(caller.node.context, vhost))
    return answer(
        [row for host in caller.open_vhosts() for row in rule_rows(caller.node.context, host.name)]
    )


@router.api_route(f"{RULES}/{{vhost}}/{{name}}", methods=READ)
async def show_rule(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """One rule."""
    caller.vhost(vhost)
    return answer(_existing(caller, vhost, name))


@router.put(f"{RULES}/{{vhost}}/{{name}}", openapi_extra=described(RULE))
async def put_rule(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Set a rule: 201 where it is new, 204 where it is replaced."""
    caller.vhost(vhost)
    caller.require_policymaker()
    rule = await json_object(request)
    is_new = not any(row["name"] == name for row in rule_rows(caller.node.context, vhost))
    await caller.perform(alert_set, vhost=vhost, name=name, rule=rule)
    return Response(status_code=201 if is_new else 204)


@router.delete(f"{RULES}/{{vhost}}/{{name}}")
async def delete_rule(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """Delete a rule; its alerts end."""
    caller.vhost(vhost)
    caller.require_policymaker()
    _existing(caller, vhost, name)
    await caller.perform(alert_clear, vhost=vhost, name=name)
    return Response(status_code=204)


def _existing(caller: Caller, vhost: str, name: str) -> Row:
    for row in rule_rows(caller.node.context, vhost):
        if row["name"] == name:
            return row
    raise not_found()
