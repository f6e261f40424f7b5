"""The page of a cluster's nodes."""

import pytest

from leveret.ports.cluster import MemberFacts
from tests.support.browser import Browser

HOSTILE = "<script>alert(1)</script>"


class Cluster:
    """`ClusterView` of three nodes."""

    node = 1

    async def members(self):
        return [
            MemberFacts(0, "follower", True, True, "a", "10.0.0.1", 25672, "0.1.0", 17, 4, ""),
            MemberFacts(1, "leader", True, True, HOSTILE, "10.0.0.2", 25672, "0.1.0", 0, 0, ""),
            MemberFacts(2, "follower", False, False, "c", "", 0, "", None, None, "it is stopped"),
        ]


@pytest.fixture
async def administrator(site):
    site.equip(cluster=Cluster())
    browser = Browser(site)
    await browser.sign_in()
    return browser


async def test_nodes_are_listed_with_their_roles_and_lags(administrator):
    text = await administrator.text("/nodes")
    for part in ("leader", "in sync", "not live", "it is stopped", "10.0.0.1:25672", ">17<"):
        assert part in text, part
    assert HOSTILE not in text
    assert 'href="/nodes"' in await administrator.text("/overview")


async def test_a_node_of_its_own_has_no_such_link(site):
    browser = Browser(site)
    await browser.sign_in()
    assert 'href="/nodes"' not in await browser.text("/overview")
    assert "a single node" in await browser.text("/nodes")


async def test_only_monitors_may_look(site, administrator):
    site.add_user("clerk", "management")
    browser = Browser(site)
    await browser.sign_in("clerk")
    assert (await browser.get("/nodes")).status_code == 403
    assert 'href="/nodes"' not in await browser.text("/overview")
