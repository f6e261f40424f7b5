"""Limits of virtual hosts and of users, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.core.access.limits import USER_LIMITS, VHOST_LIMITS
from leveret.mgmt_ui.api.problems import bad_request
from leveret.mgmt_ui.operations.rules import limits_clear, limits_list, limits_set
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import FormHere, act
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import AdministratorHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.forms import Form

__all__ = ["router"]

router = LazyRouter(prefix="/limits")


@router.get("")
async def list_limits(request: Request, viewer: AdministratorHere) -> Response:
    """Show all limits."""
    return page(
        request,
        viewer,
        "limits.html.j2",
        rows=await viewer.caller.perform(limits_list),
        vhosts=sorted(viewer.broker.vhosts),
        vhost_limits=VHOST_LIMITS,
        user_limits=USER_LIMITS,
    )


@router.post("")
async def set_limit(viewer: AdministratorHere, form: FormHere) -> Response:
    """Set a limit; -1 means none."""
    kind, name, limit = form.text("kind"), form.text("name"), form.text("limit")
    value = form.integer("value")
    if value is None:
        raise bad_request("a limit is a whole number; -1 means unlimited")
    return await act(
        viewer,
        limits_set,
        kind=kind,
        name=name,
        limits={limit: value},
        done=f"The limit {limit} of {kind} {name} was set to {value}.",
        then=_back(form),
    )


@router.post("/clear")
async def clear_limit(viewer: AdministratorHere, form: FormHere) -> Response:
    """Remove a limit."""
    kind, name, limit = form.text("kind"), form.text("name"), form.text("limit")
    done = f"The limit {limit} of {kind} {name} was cleared."
    return await act(
        viewer, limits_clear, kind=kind, name=name, limit=limit, done=done, then=_back(form)
    )


def _back(form: Form) -> str:
    """Return the address to go back to: the user's page, if the form was there."""
    return path("users", form.text("name")) if form.word("back") == "user" else "/limits"
