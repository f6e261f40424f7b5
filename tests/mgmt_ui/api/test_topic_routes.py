"""Topics by HTTP: listed, shown, and given other partitions."""

import pytest
from pamqp import commands

from leveret.core.settings.partitioning import PARTITIONS_MAX
from leveret.ports import Durability
from tests.support.client import Client
from tests.support.site import Site

TOPICS = "/api/leveret/topics"
TOPIC = f"{TOPICS}/%2F/orders"
PARTITIONS = f"{TOPIC}/partitions"


@pytest.fixture
async def site(tmp_path):
    async with Site().running(tmp_path) as site:
        site.administration.add_vhost("other")
        yield site


@pytest.fixture
def client(site):
    """Declares a queue with partitions, a stream, one that keeps its messages, and a plain one."""
    client = Client(site.stage).open()
    client.declare("orders", durable=True, arguments={"x-partitions": 3})
    client.declare("views", durable=True, arguments={"x-queue-type": "stream"})
    client.declare("kept", durable=True, arguments={"x-retention": "1d"})
    client.declare("plain", durable=True)
    return client


async def change(site, status=200, user="guest", **asked):
    answer = await site.ask("PUT", PARTITIONS, asked, user)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_topics_are_listed_of_all_virtual_hosts_or_of_one(site, client):
    names = [row["name"] for row in await site.json(TOPICS)]
    assert names == ["kept", "orders", "views"]
    assert [row["name"] for row in await site.json(f"{TOPICS}/%2F")] == names
    assert await site.json(f"{TOPICS}/other") == []
    assert await site.error(f"{TOPICS}/none") == (404, "not_found", "vhost_not_found")
    page = await site.json(f"{TOPICS}?page=1&page_size=1&sort=partitions&sort_reverse=true")
    assert ([row["name"] for row in page["items"]], page["total_count"]) == (["orders"], 3)
    [orders] = (await site.json(f"{TOPICS}?page=1&name=ord"))["items"]
    assert orders == {
        "vhost": "/",
        "name": "orders",
        "type": "classic",
        "partitions": 3,
        "retired": 0,
        "partition_by": "key",
        "messages": 0,
        "unacked": 0,
        "consumers": 0,
        "groups": 0,
        "retention_ms": None,
        "retention_bytes": None,
        "retention_messages": None,
    }


async def test_a_topic_is_shown_with_its_partitions_and_groups(site, client):
    client.publish("views", b"0", b"1", b"2")
    client.prefetch(1)
    client.consume("views", "c", arguments={"x-consumer-group": "billing"})
    client.send(commands.Channel.Close(200, "", 0, 0))
    shown = await site.json(f"{TOPICS}/%2F/views")
    assert shown["group_lags"] == {"billing": 0}
    [partition] = shown["partition_details"]
    assert partition["bytes"] > 0
    assert partition == {
        "partition": 0,
        "state": "active",
        "messages": 3,
        "unacked": 0,
        "first": 0,
        "end": 3,
        "bytes": partition["bytes"],
    }
    assert len((await site.json(TOPIC))["partition_details"]) == 3
    assert (await site.json(f"{TOPICS}/%2F/plain"))["partitions"] == 1
    code, error, reason = await site.error(f"{TOPICS}/%2F/none")
    assert (code, error) == (404, "not_found")
    assert "none" in reason


async def test_a_partition_ends_where_readers_and_groups_do(site, client):
    client.publish("views", b"0", b"1")
    client.prefetch(1)
    client.consume("views", "c", arguments={"x-consumer-group": "billing"})
    site.stage.queue("views").log.durability = Durability.FSYNC
    client.publish("views", b"2")  # written, and not flushed
    paths = [f"{TOPICS}/%2F/views", "/api/leveret/consumer-groups/%2F/views/billing"]
    rows = [row for path in paths for row in (await site.json(path))["partition_details"]]
    rows += (await site.json(f"{TOPICS}/%2F/views/offsets"))["partitions"]
    assert [row["end"] for row in rows] == [2, 2, 2]


async def test_a_change_is_tried_and_then_made(site, client):
    four = {"active": [0, 1, 2, 3], "retired": []}
    assert await change(site, count=4, dry_run=True) == four
    assert (await site.json(TOPIC))["partitions"] == 3
    assert await change(site, count=4) == four
    assert (await site.json(TOPIC))["partitions"] == 4
    assert await change(site, count=1) == {"active": [0], "retired": [1, 2, 3]}
    shown = await site.json(TOPIC)
    assert (shown["partitions"], shown["retired"]) == (1, 3)
    states = [row["state"] for row in shown["partition_details"]]
    assert states == ["active", "retired", "retired", "retired"]


async def test_what_cannot_be_is_refused_with_the_reason(site, client):
    assert (await change(site, 400))["reason"] == "count is missing"
    for count in (0, PARTITIONS_MAX + 1):
        told = await change(site, 400, count=count)
        assert f"1 to {PARTITIONS_MAX} partitions" in told["reason"]
    for count in ("4", True, None, 1.5):
        assert "count is a whole number" in (await change(site, 400, count=count))["reason"]
    assert "dry_run is true or false" in (await change(site, 400, count=1, dry_run=7))["reason"]
    answer = await site.ask("PUT", f"{TOPICS}/%2F/plain/partitions", {"count": 2})
    assert answer.status_code == 400
    assert "only queues declared with 'x-partitions'" in answer.json()["reason"]
    answer = await site.ask("PUT", f"{TOPICS}/%2F/none/partitions", {"count": 2})
    assert answer.status_code == 404


async def test_who_may_not_configure_may_look_and_change_nothing(site, client):
    site.add_user("monica", "monitoring")
    assert await site.json(TOPICS, "monica") == []
    assert (await site.get(TOPIC, "monica")).status_code == 401
    site.permit("monica", "/", "^$", "^.*$", "^.*$")
    assert len(await site.json(TOPICS, "monica")) == 3
    assert (await site.json(TOPIC, "monica"))["partitions"] == 3
    for dry_run in (True, False):
        await change(site, 401, "monica", count=4, dry_run=dry_run)
    site.permit("monica", "/", "^orders$", "^$", "^$")
    await change(site, 200, "monica", count=4)


async def test_a_change_is_in_the_audit_log(site, client):
    await change(site, count=2)
    [row] = (await site.json("/api/leveret/audit?operation=topic."))["rows"]
    assert (row["operation"], row["parameters"]["count"]) == ("topic.set_partitions", 2)


async def test_the_description_of_the_api_has_the_routes(site):
    paths = (await site.json("/api/openapi.json"))["paths"]
    described = paths["/api/leveret/topics/{vhost}/{name}/partitions"]["put"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["count"]
    assert set(schema["properties"]) == {"count", "dry_run"}
    assert "get" in paths["/api/leveret/topics/{vhost}/{name}"]


async def test_a_queue_tells_the_partitions_that_it_has_now(site, client):
    row = await site.json("/api/queues/%2F/orders")
    assert row["partitions"] == [0, 1, 2]
    assert list(row)[list(row).index("arguments") + 1] == "partitions"
    await change(site, count=5)
    for query in ("", "?disable_stats=true"):
        row = await site.json(f"/api/queues/%2F/orders{query}")
        assert (row["arguments"], row["partitions"]) == ({"x-partitions": 3}, [0, 1, 2, 3, 4])
    assert "partitions" not in await site.json("/api/queues/%2F/plain")


async def test_a_redeclaration_with_another_number_says_how_many_there_are(site, client):
    await change(site, count=5)
    client.declare("orders", durable=True, arguments={"x-partitions": 3})
    declare = commands.Queue.Declare(queue="orders", durable=True, arguments={"x-partitions": 5})
    assert client.call(declare).reply_text == (
        "PRECONDITION_FAILED - inequivalent arg 'x-partitions' for queue 'orders' in vhost '/': "
        "received '5' but current is '3', with which it was declared; it has 5 partitions now"
    )
