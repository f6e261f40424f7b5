"""A node that is asked to stop hands over what it leads first: other clients notice nothing."""

import aio_pika
import pytest

from tests.cluster_processes.launcher import LocalCluster
from tests.clustering.test_takeover import Publisher


@pytest.fixture
def cluster(tmp_path):
    with LocalCluster(tmp_path) as cluster:
        yield cluster


async def connected(node):
    host, port = node.amqp
    connection = await aio_pika.connect(f"amqp://guest:guest@{host}:{port}/")
    return connection, await connection.channel()


async def test_publishers_elsewhere_notice_no_stop(cluster):
    _, second, _ = cluster.nodes.values()
    connection, channel = await connected(second)
    arguments = {"x-queue-type": "quorum"}
    await channel.declare_queue("another", durable=True, arguments=arguments)  # led by node 2
    queue = await channel.declare_queue("q", durable=True, arguments=arguments)
    publisher = Publisher(channel)
    await publisher.more(100)
    leaders = [node for node in cluster.nodes.values() if node is not second]
    for node in leaders:  # one of them leads, or none: then they hand nothing over
        node.terminate()
        await publisher.more(100)
        assert node.ended() == 0
        node.start()
        await publisher.more(100)
    sent = await publisher.stop()
    bodies = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        bodies.append(int(message.body))
    # Where a disk is too slow for a hand-over, others are elected, and may store some twice.
    first_times = list(dict.fromkeys(bodies))
    assert first_times == sorted(first_times)
    assert first_times[: len(sent)] == sent
    assert len(bodies) - len(first_times) <= 2 * len(leaders)
    await connection.close()
