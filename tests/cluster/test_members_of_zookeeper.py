"""Members of a cluster whose coordinator is a real ZooKeeper, which they lose and find again."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from leveret.cluster.coordination.settings import ZooKeeperSettings
from leveret.cluster.coordination.zookeeper import ZooKeeperCoordinator, boottime_ms
from leveret.config.cluster import ConnectString
from tests.cluster.replicating import COUNT, Cluster, publish
from tests.storage.harness import bodies
from tests.support.ports import free_ports
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, relay, running_server

pytestmark = pytest.mark.zookeeper
ROOTS = iter(range(1000))


class ZooKeeperCluster(Cluster):
    """Nodes each with a relay to the server, which a test may cut."""

    def __init__(self, path, ports, server, stack) -> None:
        super().__init__(path, ports)
        self.server = server
        self.relays = [stack.enter_context(relay(server.port)) for _ in range(COUNT)]
        self.root = f"/cluster-{next(ROOTS)}"

    def now_ms(self) -> int:
        return boottime_ms()

    async def connect(self, number: int):
        address = f"{HOST}:{self.relays[number].port}"
        settings = ZooKeeperSettings(ConnectString((address,), self.root), 4_000)
        coordinator = ZooKeeperCoordinator(settings)
        await coordinator.start()
        return coordinator


@pytest.fixture(scope="module")
def server(tmp_path_factory, processes):
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
async def cluster(tmp_path, server):
    with ExitStack() as stack:
        cluster = ZooKeeperCluster(tmp_path, free_ports(COUNT), server, stack)
        for number in range(COUNT):
            await cluster.start(number)
        await cluster.leader()
        await cluster.in_sync(COUNT)
        yield cluster
        for node in list(cluster.nodes.values()):
            await node.stop()
        assert cluster.failures == []


async def test_who_is_cut_off_serves_no_more_when_another_does(cluster):
    first = await cluster.leader()
    await publish(first, 0, 200)
    cluster.relays[first.number].cut()
    others = [node for node in cluster.nodes.values() if node is not first]
    await eventually(lambda: any(node.serves for node in others))
    assert not first.serves
    assert "lease" in first.member.reason
    second = next(node for node in others if node.serves)
    await publish(second, 200, 200)
    cluster.relays[first.number].heal()
    await first.stop()
    await cluster.start(first.number)
    await cluster.in_sync(COUNT)
    found = await bodies(second.reign.log)
    assert list(found.values()) == [b"%d" % number for number in range(400)]


async def test_a_node_that_comes_back_at_once_leads_in_a_new_incarnation(cluster):
    first = await cluster.leader()
    await publish(first, 0, 20)
    before = first.member.incarnation
    cluster.relays[first.number].swallow()  # nobody hears of its end
    await asyncio.gather(first.stop(), return_exceptions=True)
    cluster.relays[first.number].heal()
    again = await cluster.start(first.number)
    assert again.member.incarnation == before + 1
    leader = await cluster.leader()
    await cluster.in_sync(COUNT)
    await publish(leader, 20, 20)


async def test_without_zookeeper_nobody_serves_and_with_it_somebody_does(cluster):
    first = await cluster.leader()
    await publish(first, 0, 20)
    cluster.server.stop()
    await eventually(lambda: not any(node.serves for node in cluster.nodes.values()))
    cluster.server.start()
    cluster.server.wait_ready()
    await first.stop()
    again = await cluster.start(first.number)
    leader = await cluster.leader()
    await cluster.in_sync(COUNT)
    await publish(leader, 20, 20)
    assert again.member.incarnation > first.member.incarnation
    found = await bodies(leader.reign.log)
    assert list(found.values()) == [b"%d" % number for number in range(40)]
