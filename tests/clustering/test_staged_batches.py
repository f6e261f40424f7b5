"""Batches that are staged on one node, for queues that others lead: all or nothing."""

import httpx
import pytest

from leveret.batch_writer import PERSISTENT_HEADER, pack_chunk, repeated, row_bytes
from tests.clustering.http import AUTH, serve_http, told
from tests.clustering.nodes import BrokerCluster

FIRST, OTHER, THIRD = 0, 1, 2
BATCH = "/batches/%2F/job"


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        for node in cluster.nodes:
            serve_http(node)
        yield cluster


async def stage(node, number, queues, count):
    rows = count * len(queues)
    chunk = pack_chunk(
        rows,
        exchange=repeated(b"", rows),
        routing_key=row_bytes(queues * count),
        header=repeated(PERSISTENT_HEADER, rows),
        value=row_bytes(b"%d" % row for row in range(rows)),
    )
    transport = httpx.ASGITransport(node.app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        path = f"/api/leveret{BATCH}/{number}/parts/0"
        answer = await client.post(path, content=chunk, auth=AUTH, timeout=60)
        assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("leaders", [(OTHER,), (FIRST,), (FIRST, OTHER, THIRD)])
async def test_a_batch_is_published_wherever_its_queues_are_led(cluster, leaders):
    here = cluster.nodes[FIRST]
    names = [f"q{leader}" for leader in leaders]
    for name, leader in zip(names, leaders, strict=True):
        await cluster.add_queue(name, leader=leader, durable=True)
    await stage(here, 1, [name.encode() for name in names], 5)
    asked = {"parts": ["0"], "mandatory": True}
    answer = await told(here, "POST", f"{BATCH}/1/commit", asked)
    assert answer["messages"] == 5 * len(leaders)
    assert (await told(here, "POST", f"{BATCH}/1/commit", asked))["outcome"] != "committed"
    for name in names:
        await here.queue(name).refresh()
        assert here.queue(name).message_count == 5
