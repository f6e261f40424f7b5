"""Commands that a node answers which does not lead: it has no queues, users or connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.mgmt_ui import log_output
from leveret.mgmt_ui.operations.node import described_members

if TYPE_CHECKING:
    import asyncio

    from leveret.cluster.member import ClusterMember
    from leveret.ports.cluster import ClusterView

__all__ = ["perform_following"]


async def perform_following(
    request: object, member: ClusterMember | None, view: ClusterView, stopping: asyncio.Event
) -> dict[str, object]:
    """Perform a request of the control socket (see leveret.mgmt_ui.operations.dispatcher).

    `member` is None before there was a session with ZooKeeper; `view` is what is known then, too.
    """
    name = request.get("operation") if isinstance(request, dict) else None
    if name == "node.stop":
        stopping.set()
        return {"ok": True, "result": None}
    if name == "node.health":
        is_linked = member is not None and not member.over.is_set()
        return {"ok": True, "result": {"serving": is_linked, "alarms": []}}
    if name == "log.show":
        return {"ok": True, "result": log_output.levels()}
    if name == "cluster.nodes":
        return {"ok": True, "result": await described_members(view)}
    return {"ok": False, "error": "not_leading", "explanation": _who_leads(member)}


def _who_leads(member: ClusterMember | None) -> str:
    leader = None if member is None else member.leader
    if leader is None:
        return "this node follows, and no node of the cluster leads now: try again in some seconds"
    _, where = leader
    return (
        f"this node follows node {where.node} at {where.host}, which leads: run the command there; "
        "here are only `cluster status`, `health`, `node stop` and, without arguments, "
        "`node log-level`"
    )
