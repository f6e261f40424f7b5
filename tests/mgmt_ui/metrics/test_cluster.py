"""Metrics of a cluster, and none of it by a node of its own."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from leveret.mgmt_ui.web import create_metrics_app
from tests.support.operated_cluster import OperatedStandIn
from tests.support.site import Site


async def scrape(site, path="/metrics"):
    """Return values by name and labels."""
    transport = httpx.ASGITransport(create_metrics_app(site.node))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        response = await client.get(path)
    assert response.status_code == 200, response.text
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in parse_text(response.text)
        for sample in family.samples
    }


@pytest.fixture
def site(tmp_path):
    return Site(data_dir=tmp_path)


@pytest.fixture
def clustered(site):
    site.equip(cluster=OperatedStandIn())
    return site


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
async def test_partitions_and_moves_are_counted(clustered, path):
    values = await scrape(clustered, path)
    counts = {
        name.removeprefix("leveret_cluster_"): value
        for (name, labels), value in values.items()
        if name.startswith("leveret_cluster_") and not labels
    }
    assert counts == {
        "coordinator_connected": 1,
        "controller": 0,
        "metadata_sequence": 17,
        "partitions": 5,
        "partitions_without_leader": 1,
        "partitions_below_min_isr": 1,
        "partitions_under_replicated": 2,
        "partitions_led": 2,
        "replicas": 4,
        "moves": 2,
        "moves_stuck": 1,
    }


async def test_nodes_and_links_are_told_one_by_one(clustered):
    values = await scrape(clustered)
    up = {labels: value for (name, labels), value in values.items() if name.endswith("_node_up")}
    assert up == {("1",): 1, ("2",): 1, ("3",): 0}
    assert values["leveret_cluster_node_draining", ("2",)] == 1
    assert values["leveret_cluster_node_disk_alarm", ("2",)] == 1
    assert values["leveret_cluster_node_memory_alarm", ("2",)] == 0
    assert values["leveret_cluster_node_disk_alarm", ("1",)] == 0
    assert values["leveret_cluster_node_clock_offset_seconds", ("2",)] == -3.5
    assert values["leveret_cluster_node_clock_offset_seconds", ("3",)] == 0
    link = ("2", "out")
    assert values["leveret_link_up", link] == 1
    assert values["leveret_link_breaker_open", link] == 0
    assert values["leveret_link_sent_bytes_total", link] == 1234
    assert values["leveret_link_received_bytes_total", link] == 4321
    assert values["leveret_link_round_trip_seconds", link] == 0.00025
    assert values["rabbitmq_unreachable_cluster_peers_count", ()] == 2


@pytest.mark.parametrize(
    ("breaker", "value"), [("closed", 0), ("", 0), ("open", 1), ("half open", 1)]
)
async def test_a_breaker_that_is_not_closed_is_open(clustered, monkeypatch, breaker, value):
    link = {**OperatedStandIn().links()[0], "breaker": breaker, "dialed": breaker != ""}
    monkeypatch.setattr(OperatedStandIn, "links", lambda _: [link])
    values = await scrape(clustered)
    told = {labels: each for (name, labels), each in values.items() if "breaker_open" in name}
    assert list(told.values()) == [value]


async def test_a_node_of_its_own_has_no_controller_that_could_be_missing(site):
    """Or alerts would fire."""
    values = await scrape(site)
    assert not [
        name
        for name, labels in values
        if name.startswith(("leveret_cluster_node", "leveret_link"))
        or name in {"leveret_cluster_controller", "leveret_cluster_coordinator_connected"}
    ]
    assert values["leveret_cluster_partitions_without_leader", ()] == 0
    assert values["rabbitmq_unreachable_cluster_peers_count", ()] == 0


async def test_families_are_told_by_name(clustered):
    values = await scrape(clustered, "/metrics/detailed?family=leveret_links")
    assert values["leveret_detailed_link_up", ("2", "out")] == 1
