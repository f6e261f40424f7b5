"""Nodes of the cluster: who leads, who follows, how far behind, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.mgmt_ui.operations.node import described_members
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from typing import Any

__all__ = ["router"]

router = LazyRouter()


@router.get("/nodes")
async def list_nodes(request: Request, viewer: ViewerHere) -> Response:
    """Show the nodes; a single node says that it is one."""
    viewer.caller.require_monitor()
    cluster = viewer.node.context.cluster
    rows: list[dict[str, Any]] = [] if cluster is None else await described_members(cluster)
    return page(request, viewer, "nodes.html.j2", rows=rows)
