"""Partitions of a cluster as its nodes tell of them by HTTP: who leads, and what is in sync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx

from leveret.ports.cluster_figures import WELL
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.cluster_processes.launcher import LocalCluster

ADMIN: Final = ("guest", "guest")


def url_of(cluster: LocalCluster, number: int) -> str:
    """Return the URL of a node's management port."""
    return f"http://127.0.0.1:{cluster.nodes[number].ports.http}"


def partitions(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Return all partitions as a live node sees them, `leveret cluster partitions --json`."""
    asked = min(number for number, node in cluster.nodes.items() if node.is_live)
    url = f"{url_of(cluster, asked)}/api/leveret/cluster/partitions"
    rows: list[dict[str, Any]] = httpx.get(url, auth=ADMIN, timeout=60).json()
    return rows


def leaders_of(cluster: LocalCluster, queue: str) -> dict[int, int]:
    """Return the leader of each partition of a queue, once all are live."""
    found: dict[int, int] = {}

    def are_known() -> bool:
        rows = [row for row in partitions(cluster) if row.get("queue") == queue]
        live = {number for number, node in cluster.nodes.items() if node.is_live}
        found.update({row["partition"]: row["leader"] for row in rows})
        return bool(rows) and all(row["leader"] in live for row in rows)

    wait_until(are_known, f"live leaders of {queue}")
    return found


def wait_until_in_sync(cluster: LocalCluster) -> None:
    """Wait until each partition has a leader, and all of its replicas in sync."""
    wait_until(
        lambda: all(row["state"] == WELL for row in partitions(cluster)),
        "all replicas in sync",
    )
