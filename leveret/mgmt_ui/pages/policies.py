"""Page of policies, set by policymakers, and operator policies, set by administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.settings.policies import APPLY_TO
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.operations.rules import policy_clear, policy_list, policy_set
from leveret.mgmt_ui.pages.formats import as_json
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, arguments_of, open_names, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = LazyRouter(prefix="/policies")


@router.get("")
async def list_policies(request: Request, viewer: ViewerHere) -> Response:
    """Show the policies that the user may list; `edit` names one to fill the form with."""
    query = request.query_params
    form = Form({})
    if query.get("edit"):
        operator = bool(query.get("operator"))
        for row in await _rows(viewer, operator=operator):
            if (row["vhost"], row["name"]) == (query.get("vhost", ""), query["edit"]):
                form = _filled_in(row, operator=operator)
    return await _list(request, viewer, form, "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    return page(
        request,
        viewer,
        "policies.html.j2",
        status=status,
        policies=await _rows(viewer, operator=False),
        operator_policies=await _rows(viewer, operator=True),
        vhosts=open_names(viewer),
        kinds=sorted(APPLY_TO),
        may_set=viewer.caller.is_policymaker,
        form=form,
        failure=failure,
    )


async def _rows(viewer: Viewer, *, operator: bool) -> list[Row]:
    held: list[Row] = await viewer.caller.perform(policy_list, vhost=None, operator=operator)
    names = set(open_names(viewer))
    return [row for row in held if row["vhost"] in names]


def _filled_in(row: Row, *, operator: bool) -> Form:
    """Return the form filled in from a policy."""
    fields = {
        "vhost": row["vhost"],
        "name": row["name"],
        "pattern": row["pattern"],
        "apply_to": row["apply-to"],
        "priority": str(row["priority"]),
        "arguments": as_json(row["definition"]),
        "operator": "1" if operator else "",
    }
    return Form({name: [value] for name, value in fields.items()})


@router.post("")
async def set_policy(request: Request, viewer: ViewerHere, form: FormHere) -> Response:
    """Set or replace a policy; an invalid form is shown again."""
    _require(viewer, form)
    vhost, name = form.text("vhost", "/"), form.text("name")
    try:
        answer = await viewer.caller.perform(
            policy_set,
            vhost=vhost,
            name=name,
            pattern=form.text("pattern"),
            definition=arguments_of(form),
            priority=form.integer("priority") or 0,
            apply_to=form.word("apply_to") or "all",
            operator=form.flag("operator"),
        )
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"{_title(form)} {name} in {vhost} was saved.")
    for warning in answer["warnings"]:
        viewer.session.tell(f"{warning}.")
    return seeing("/policies")


@router.post("/clear")
async def clear_policy(viewer: ViewerHere, form: FormHere) -> Response:
    """Delete a policy."""
    _require(viewer, form)
    policy: dict[str, Any] = {
        "vhost": form.text("vhost"),
        "name": form.text("name"),
        "operator": form.flag("operator"),
    }
    done = f"{_title(form)} {policy['name']} in {policy['vhost']} was deleted."
    return await act(viewer, policy_clear, **policy, done=done, then="/policies")


def _require(viewer: Viewer, form: Form) -> None:
    """Raise ApiError 401 or 404 unless the user may set policies there."""
    if form.flag("operator"):
        viewer.caller.require_administrator()
    else:
        viewer.caller.require_policymaker(form.text("vhost", "/"))
    viewer.caller.vhost(form.text("vhost", "/"))


def _title(form: Form) -> str:
    return "Operator policy" if form.flag("operator") else "Policy"
