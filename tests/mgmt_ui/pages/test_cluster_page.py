"""The page of a cluster, which only its administrators have."""

import pytest

from tests.support.browser import Browser
from tests.support.operated_cluster import OperatedStandIn


@pytest.fixture
def cluster():
    return OperatedStandIn()


@pytest.fixture
async def guest(site, cluster):
    site.equip(cluster=cluster)
    browser = Browser(site)
    await browser.sign_in()
    return browser


async def test_nodes_moves_problems_and_links_are_shown(guest):
    text = await guest.text("/cluster")
    for shown in (
        "up, controller",
        "rack &lt;a&gt;",
        "host-2:25672",
        '<a href="/queues/%2F/orders">orders</a>',
        "under-replicated",
        "50 of 200",
        "1, 3",
        "0.25 ms",
    ):
        assert shown in text
    assert 'href="/cluster"' in await guest.text("/overview")


@pytest.mark.parametrize(
    ("address", "fields", "asked", "told"),
    [
        ("nodes/drain", {"node": "2"}, ("drain", 2), "Node 2 is drained"),
        ("nodes/undrain", {"node": "2"}, ("undrain", 2), "may have replicas again"),
        ("nodes/add", {"node": "2"}, ("add", 2), "gets its share"),
        ("rebalance", {}, ("rebalance",), "is balanced"),
        (
            "moves/cancel",
            {"vhost": "/", "queue": "moving", "partition": "0"},
            ("cancel", ("/", "moving"), 0),
            "The move of moving was ended",
        ),
    ],
)
async def test_what_is_done_there(guest, cluster, address, fields, asked, told):
    answer = await guest.submit(f"/cluster/{address}", **fields)
    assert answer.headers["location"] == "/cluster"
    assert cluster.asked == [asked]
    assert any(told in notice for notice in await guest.notices("/cluster"))


async def test_what_makes_no_sense(guest, cluster):
    assert (await guest.submit("/cluster/nodes/explode", node="2")).status_code == 404
    assert (await guest.submit("/cluster/nodes/drain", node="")).status_code == 400
    assert cluster.asked == []


async def test_a_node_by_itself_has_no_such_page(site, guest):
    site.equip(cluster=None)
    alone = Browser(site)
    await alone.sign_in()
    assert (await alone.get("/cluster")).status_code == 404
    assert 'href="/cluster"' not in await alone.text("/overview")


async def test_who_is_no_administrator_does_not_see_it(site, guest):
    site.add_user("monitor", "monitoring")
    monitor = Browser(site)
    await monitor.sign_in("monitor")
    assert 'href="/cluster"' not in await monitor.text("/overview")
    assert (await monitor.get("/cluster")).status_code in (401, 403)
