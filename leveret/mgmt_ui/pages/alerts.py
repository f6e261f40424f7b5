"""Alerts page: firing and past alerts, and the alert rules.

Users who can list a virtual host see its alerts and rules; its policymakers set the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.features.alerts.commands import alert_clear, alert_set, alert_status, rule_rows
from leveret.features.alerts.rules import AlertCondition, AlertSeverity
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, open_names, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

PAST_MAX = 100  # of those that are over or have begun
TEXTS = ("condition", "queues", "groups", "severity", "summary", "webhook", "secret")

router = LazyRouter(prefix="/alerts")


@router.get("")
async def list_alerts(request: Request, viewer: ViewerHere) -> Response:
    """Show the alerts and rules; `edit` names a rule to fill the form with."""
    query, form = request.query_params, Form({})
    for row in _rules(viewer):
        if (row["vhost"], row["name"]) == (query.get("vhost", ""), query.get("edit", "")):
            form = _filled_in(row)
    return await _list(request, viewer, form, "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    names = set(open_names(viewer))
    found: dict[str, list[Row]] = {"firing": [], "past": []}
    if viewer.node.context.alerting is not None:  # of a running node
        found = await viewer.caller.perform(alert_status, vhost=None)
    shown = {part: [row for row in rows if row["vhost"] in names] for part, rows in found.items()}
    return page(
        request,
        viewer,
        "alerts.html.j2",
        status=status,
        firing=shown["firing"],
        past=shown["past"][:PAST_MAX],
        rules=_rules(viewer),
        vhosts=sorted(names),
        conditions=list(AlertCondition),
        severities=list(AlertSeverity),
        may_set=viewer.caller.is_policymaker,
        now_ms=viewer.now_ms,
        form=form,
        failure=failure,
    )


def _rules(viewer: Viewer) -> list[Row]:
    return [row for name in open_names(viewer) for row in rule_rows(viewer.node.context, name)]


def _filled_in(row: Row) -> Form:
    """Return the form filled in from a rule, however it was written."""
    rule: dict[str, Any] = row["rule"] if isinstance(row["rule"], dict) else {}
    fields = {key: str(rule.get(key) or "") for key in (*TEXTS, "above", "below", "for_seconds")}
    fields |= {"vhost": row["vhost"], "name": row["name"]}
    fields["disabled"] = "" if rule.get("enabled", True) else "1"
    return Form({name: [value] for name, value in fields.items()})


@router.post("")
async def set_rule(request: Request, viewer: ViewerHere, form: FormHere) -> Response:
    """Set or replace a rule; an invalid form is shown again."""
    vhost, name = form.text("vhost", "/"), form.text("name")
    _require(viewer, vhost)
    try:
        await viewer.caller.perform(alert_set, vhost=vhost, name=name, rule=_rule(form))
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"Alert rule {name} in {vhost} was saved.")
    return seeing("/alerts")


def _rule(form: Form) -> dict[str, Any]:
    """Return the rule of a form as JSON. Raises ApiError 400."""
    rule: dict[str, Any] = {key: form.word(key) for key in TEXTS if form.word(key)}
    for key in ("above", "below", "for_seconds"):
        if form.word(key):
            try:
                rule[key] = float(form.word(key))
            except ValueError:
                raise bad_request(f"{key} must be a number, not {form.word(key)}") from None
    return {**rule, "enabled": not form.flag("disabled")}


@router.post("/clear")
async def clear_rule(viewer: ViewerHere, form: FormHere) -> Response:
    """Delete a rule; its alerts end."""
    vhost, name = form.text("vhost"), form.text("name")
    _require(viewer, vhost)
    done = f"Alert rule {name} in {vhost} was deleted."
    return await act(viewer, alert_clear, vhost=vhost, name=name, done=done, then="/alerts")


def _require(viewer: Viewer, vhost: str) -> None:
    """Raise ApiError 401 or 404 unless the user may set rules there."""
    viewer.caller.require_policymaker(vhost)
    viewer.caller.vhost(vhost)
