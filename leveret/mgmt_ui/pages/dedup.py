"""De-duplication page: windows, idempotent producers, prepared messages.

Users who may enter the virtual host may list. Configure permission for the queue or exchange allows
to remove an id from its window; write permission for the exchange of a prepared message to decide
about it; administrators may reset producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.features.dedup.commands import (
    dedup_forget,
    dedup_list,
    producers_forget,
    producers_list,
)
from leveret.features.transactions.commands import (
    prepared_commit,
    prepared_list,
    prepared_rollback,
    prepared_show,
)
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.pages.formats import with_query
from leveret.mgmt_ui.pages.forms import FormHere, act, open_names
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import AdministratorHere, ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

ROWS_MAX = 200  # of each kind; the API and the command line list all
KINDS = ("queue", "exchange")
DECISIONS = {
    "commit": (prepared_commit, "committed"),
    "rollback": (prepared_rollback, "rolled back"),
}

router = LazyRouter(prefix="/once")


@router.get("")
async def show_all(request: Request, viewer: ViewerHere) -> Response:
    """Show windows, producers and prepared messages of one virtual host."""
    names = open_names(viewer)
    vhost = request.query_params.get("vhost") or ("/" if "/" in names else next(iter(names), "/"))
    viewer.caller.vhost(vhost)
    windows = await _list(viewer, dedup_list, vhost)
    producers = await _list(viewer, producers_list, vhost)
    prepared = await _list(viewer, prepared_list, vhost)
    return page(
        request,
        viewer,
        "once.html.j2",
        vhost=vhost,
        vhosts=names,
        windows=[
            {**row, "may": viewer.may("configure", row["kind"], vhost, row["name"])}
            for row in windows[:ROWS_MAX]
        ],
        window_count=len(windows),
        producers=sorted(producers, key=lambda row: -row["last_at"])[:ROWS_MAX],
        producer_count=len(producers),
        prepared=[
            {**row, "may": viewer.may("write", "exchange", vhost, row["exchange"] or "amq.default")}
            for row in prepared[:ROWS_MAX]
        ],
        prepared_count=len(prepared),
        may_forget=viewer.caller.is_administrator,
    )


async def _list(viewer: Viewer, operation: AnyCommand, vhost: str) -> list[Row]:
    if viewer.node.context.dedup is None:  # of a node that keeps none
        return []
    found: list[Row] = await viewer.caller.perform(operation, vhost=vhost)
    return found


@router.post("/forget")
async def forget(viewer: ViewerHere, form: FormHere) -> Response:
    """Remove an id from a window, so that a message with it is accepted again."""
    vhost, kind, name, id_ = (form.text(each) for each in ("vhost", "kind", "name", "id"))
    viewer.caller.vhost(vhost)
    if kind not in KINDS:
        raise bad_request("a de-duplication window belongs to a queue or an exchange")
    return await act(
        viewer,
        dedup_forget,
        vhost=vhost,
        queue=name if kind == "queue" else None,
        exchange=name if kind == "exchange" else None,
        id=id_,
        done=f"Id {id_} was removed from the window of {kind} {name}.",
        then=_back(vhost),
    )


@router.post("/producers/forget")
async def forget_producer(viewer: AdministratorHere, form: FormHere) -> Response:
    """Let a producer start anew."""
    vhost, id_ = form.text("vhost"), form.text("id")
    viewer.caller.vhost(vhost)
    done = f"Producer {id_} was deleted. It may start again with any epoch and sequence number 0."
    user = form.text("user") or None
    return await act(
        viewer, producers_forget, vhost=vhost, id=id_, user=user, done=done, then=_back(vhost)
    )


@router.post("/prepared/{decision}")
async def decide(viewer: ViewerHere, form: FormHere, decision: str) -> Response:
    """Commit a prepared message to its queues, or roll it back."""
    vhost, id_ = form.text("vhost"), form.text("id")
    viewer.caller.vhost(vhost)
    if decision not in DECISIONS:
        raise not_found()
    found = await viewer.caller.perform(prepared_show, vhost=vhost, id_=id_)
    await viewer.caller.require(vhost, "exchange", found["exchange"] or "amq.default", "write")
    command, told = DECISIONS[decision]
    done = f"Message {id_} was {told}."
    return await act(viewer, command, vhost=vhost, id_=id_, done=done, then=_back(vhost))


def _back(vhost: str) -> str:
    return with_query("/once", vhost=vhost)
