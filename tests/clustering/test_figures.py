"""Every node shows the figures of queues that others lead, as far as these answer."""

import aio_pika
import pytest

from leveret.clustering import figures
from leveret.links.errors import PeerRefusedError
from leveret.mgmt_ui.queue_nodes import QueueNodes
from leveret.ports.link_kinds import LED_FIGURES
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import connected
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


async def publish(node, name, count):
    channel = await connected(node)
    for number in range(count):
        message = aio_pika.Message(b"%d" % number, delivery_mode=2)
        await channel.default_exchange.publish(message, name)


async def filled(cluster, name, count, *, leader):
    await cluster.add_queue(name, leader=leader)
    await publish(cluster.nodes[leader], name, count)


async def test_figures_of_all_nodes_in_pages(cluster, monkeypatch):
    monkeypatch.setattr(figures, "PAGE_ROWS", 2)
    for number in range(5):
        await filled(cluster, f"q{number}", number + 1, leader=OTHER)
    await filled(cluster, "third", 9, leader=THIRD)
    here = cluster.nodes[FIRST]
    await here.figures.refresh()
    assert [here.queue(f"q{number}").message_count for number in range(5)] == [1, 2, 3, 4, 5]
    assert here.queue("third").message_count == 9


async def test_nobody_is_asked_twice_in_a_second(cluster, monkeypatch):
    await filled(cluster, "q", 1, leader=OTHER)
    here = cluster.nodes[FIRST]
    await here.figures.refresh()
    await publish(cluster.nodes[OTHER], "q", 3)
    await here.figures.refresh()
    assert here.queue("q").message_count == 1
    monkeypatch.setattr(figures, "FRESH_SECONDS", 0.0)
    await here.figures.refresh()
    assert here.queue("q").message_count == 4


async def test_a_node_that_does_not_answer_is_not_waited_for(cluster, monkeypatch):
    monkeypatch.setattr(figures, "FRESH_SECONDS", 0.0)
    await filled(cluster, "q", 1, leader=OTHER)
    await filled(cluster, "third", 2, leader=THIRD)
    here = cluster.nodes[FIRST]
    await here.figures.refresh()
    await cluster.nodes[OTHER].links.close()
    await here.figures.refresh()
    assert here.queue("q").message_count == 1, "as of the last answer"
    assert here.queue("third").message_count == 2


@pytest.mark.parametrize(
    "answer",
    [b"", b"\n", b"x", b"2", b"\nq/0 1", b"\nq/0 1 2 x 0", b"\nunknown/0 1 2 3 0", b"\xff"],
)
async def test_what_makes_no_sense_changes_nothing(cluster, monkeypatch, answer):
    await filled(cluster, "q", 1, leader=OTHER)

    async def answered(*_args, **_options):
        return memoryview(answer if asked.append(1) or len(asked) < 3 else b"")

    asked = []
    here = cluster.nodes[FIRST]
    await here.figures.refresh()
    monkeypatch.setattr(figures, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(type(here.links.peer(OTHER)), "request", answered)
    await here.figures.refresh()
    assert here.queue("q").message_count == 1


@pytest.mark.parametrize("payload", [b"", b"x", b"1 2", b"-1", b"1" * 30, b"1" * 9000, b"\xff"])
async def test_a_request_that_makes_no_sense_is_refused(cluster, payload):
    with pytest.raises(PeerRefusedError):
        await cluster.nodes[FIRST].links.peer(OTHER).request(LED_FIGURES, payload, timeout_s=60)


async def test_a_page_may_be_empty(cluster):
    await filled(cluster, "q", 1, leader=OTHER)
    peer = cluster.nodes[FIRST].links.peer(OTHER)
    assert bytes(await peer.request(LED_FIGURES, b"0", timeout_s=60)).endswith(b"/0 1 0 0 0")
    assert bytes(await peer.request(LED_FIGURES, b"1", timeout_s=60)) == b""


async def test_the_nodes_of_a_queue(cluster):
    await cluster.add_queue("q", leader=OTHER, replicas=(1, 2))
    for node in cluster.nodes:
        told = node.figures.nodes_of(node.queue("q"))
        assert told == QueueNodes("leveret-1", *[("leveret-1", "leveret-2")] * 2)
    await cluster.nodes[OTHER].kill()
    here = cluster.nodes[FIRST]
    await eventually(
        lambda: (
            here.figures.nodes_of(here.queue("q"))
            == QueueNodes("leveret-2", ("leveret-1", "leveret-2"), ("leveret-2",))
        )
    )
