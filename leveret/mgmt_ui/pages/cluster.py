"""The cluster, for administrators of one: nodes, partitions that are not well, moves and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request, Response

from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.cluster import (
    cluster_add,
    cluster_cancel_moves,
    cluster_drain,
    cluster_links,
    cluster_moves,
    cluster_partitions,
    cluster_rebalance,
    cluster_status,
    cluster_undrain,
)
from leveret.mgmt_ui.pages.forms import FormHere, act
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import AdministratorHere

if TYPE_CHECKING:
    from leveret.core.admin.commands import AnyCommand

__all__ = ["router"]

PROBLEMS_MAX: Final = 200  # rows of a page; the command line shows all
VERBS: Final[dict[str, tuple[AnyCommand, str]]] = {
    "add": (cluster_add, "Node {} gets its share of the replicas."),
    "drain": (cluster_drain, "Node {} is drained: its replicas move to other nodes."),
    "undrain": (cluster_undrain, "Node {} may have replicas again."),
}

router = APIRouter(prefix="/cluster")


@router.get("")
async def show(request: Request, viewer: AdministratorHere) -> Response:
    """Show the cluster; a node by itself has no such page."""
    if viewer.node.context.cluster is None:
        raise not_found()
    perform = viewer.caller.perform
    return page(
        request,
        viewer,
        "cluster.html.j2",
        cluster=await perform(cluster_status),
        problems=await perform(cluster_partitions, problems=True, limit=PROBLEMS_MAX),
        moves=await perform(cluster_moves),
        links=await perform(cluster_links),
        problems_max=PROBLEMS_MAX,
    )


@router.post("/nodes/{verb}")
async def change_node(viewer: AdministratorHere, form: FormHere, verb: str) -> Response:
    """Drain a node, or let it have replicas again."""
    if verb not in VERBS:
        raise not_found()
    node = form.integer("node")
    if node is None:
        raise bad_request("a node has a number")
    command, done = VERBS[verb]
    return await act(viewer, command, number=node, done=done.format(node), then="/cluster")


@router.post("/rebalance")
async def rebalance(viewer: AdministratorHere, _: FormHere) -> Response:
    """Give all nodes as much."""
    done = "The cluster is balanced: partitions move where a node has more than others."
    return await act(viewer, cluster_rebalance, done=done, then="/cluster")


@router.post("/moves/cancel")
async def cancel_move(viewer: AdministratorHere, form: FormHere) -> Response:
    """End the move of a partition."""
    name = form.text("queue")
    return await act(
        viewer,
        cluster_cancel_moves,
        vhost=form.text("vhost"),
        name=name,
        partition=form.integer("partition"),
        done=f"The move of {name} was ended.",
        then="/cluster",
    )
