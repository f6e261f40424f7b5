"""/api/leveret/cluster: what is asked of the cluster, and what of it is told."""

import pytest

from leveret.mgmt_ui.operations.runtime import Runtime
from tests.support.operated_cluster import LINK, MOVE, PARTITION, STATUS, OperatedStandIn
from tests.support.site import Site

HERE = "/api/leveret/cluster"


@pytest.fixture
def cluster():
    return OperatedStandIn()


@pytest.fixture
def site(cluster):
    site = Site()
    site.equip(cluster=cluster)
    return site


async def test_what_there_is(site):
    assert await site.json(HERE) == STATUS
    assert len(await site.json(f"{HERE}/partitions")) == 2
    assert await site.json(f"{HERE}/partitions?problems=true") == [PARTITION]
    assert await site.json(f"{HERE}/moves") == [MOVE]
    assert await site.json(f"{HERE}/links") == [LINK]


@pytest.mark.parametrize(
    ("method", "path", "body", "asked", "answer"),
    [
        ("POST", "nodes/3/add", None, ("add", 3), {"moving": 3}),
        ("POST", "nodes/3/drain", None, ("drain", 3), {"moving": 3, "staying": 0}),
        ("POST", "nodes/3/undrain", None, ("undrain", 3), None),
        ("DELETE", "nodes/3", None, ("remove", 3, False), None),
        ("DELETE", "nodes/3?force=true", None, ("remove", 3, True), None),
        ("POST", "rebalance", None, ("rebalance",), {"moving": 2}),
        (
            "POST",
            "moves/%2F/q",
            {"nodes": [2, 3], "partition": 1},
            ("move", ("/", "q"), 1, [2, 3]),
            {"moving": 1},
        ),
        ("DELETE", "moves/%2F/q", None, ("cancel", ("/", "q"), None), {"ended": 1}),
        (
            "POST",
            "elections/%2F/q",
            {"node": 3},
            ("elect", ("/", "q"), None, 3),
            [{"partition": 0, "leader": 3}],
        ),
        (
            "POST",
            "elections/%2F/q",
            {"unclean": True},
            ("unclean", ("/", "q"), None, None),
            [{"partition": 0, "leader": 2}],
        ),
    ],
)
async def test_what_is_changed(site, cluster, method, path, body, asked, answer):
    got = await site.ask(method, f"{HERE}/{path}", body)
    assert got.status_code == (204 if answer is None else 200), got.text
    assert answer is None or got.json() == answer
    assert cluster.asked == [asked]


async def test_what_makes_no_sense(site, cluster):
    assert (await site.ask("POST", f"{HERE}/nodes/3/explode")).status_code == 404
    assert (await site.ask("POST", f"{HERE}/nodes/x/drain")).status_code == 400
    assert (await site.ask("POST", f"{HERE}/moves/%2F/q", {})).status_code == 400
    assert (await site.ask("POST", f"{HERE}/moves/%2F/q", {"nodes": ["a"]})).status_code == 400
    assert (await site.ask("POST", f"{HERE}/moves/%2F/q", {"node": [1]})).status_code == 400
    assert cluster.asked == []


async def test_a_node_by_itself_has_no_cluster(site):
    runtime = Runtime(site.stage.configuration, 0, site.broker.timers.wall_ms)
    site.equip(cluster=None, runtime=runtime)
    status, _, reason = await site.error(HERE)
    assert status == 400
    assert "by itself" in reason


async def test_others_than_administrators_are_refused(site):
    site.add_user("monitor", "monitoring")
    assert (await site.get(HERE, "monitor")).status_code == 401


ORDERS = {
    "readable_name": "queue 'orders' in vhost '/'",
    "name": "orders",
    "virtual_host": "/",
    "type": "quorum",
}


async def failed(site, check):
    response = await site.get(f"/api/health/checks/{check}")
    assert response.status_code == 503
    return response.json()


async def test_a_node_on_which_queues_hang_is_critical(site, cluster):
    """Answers are RabbitMQ's, down to the words."""
    check = "node-is-quorum-critical"
    assert await site.json(f"/api/health/checks/{check}") == {"status": "ok"}
    cluster.critical_rows = [PARTITION, {**PARTITION, "partition": 1}]
    assert await failed(site, check) == {
        "status": "failed",
        "reason": "There are quorum queues that would lose their quorum if the target node is shut "
        "down",
        "queues": [ORDERS],
    }


async def test_quorum_queues_without_leader_are_told(site, cluster):
    check = "quorum-queues-without-elected-leaders"
    assert await site.json(f"/api/health/checks/{check}/all-vhosts") == {"status": "ok"}
    cluster.problems = [{**PARTITION, "state": "without leader"}]
    for path in ("all-vhosts", "vhost/%2F", "all-vhosts/pattern/ord.*"):
        assert await failed(site, f"{check}/{path}") == {
            "status": "failed",
            "reason": "Detected quorum queues without an elected leader",
            "queues": [ORDERS],
        }
    for path in ("vhost/other", "all-vhosts/pattern/x"):
        assert await site.json(f"/api/health/checks/{check}/{path}") == {"status": "ok"}
    response = await site.get(f"/api/health/checks/{check}/all-vhosts/pattern/%28")
    assert response.status_code == 400


async def test_the_size_of_the_cluster_counts_nodes_that_are_up(site):
    told = await failed(site, "reached-target-cluster-size")
    assert (told["target_size"], told["actual_size"]) == (3, 2)
