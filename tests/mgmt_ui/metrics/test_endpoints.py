"""Metrics as a scraper gets them, asked in-process."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pamqp import commands
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from leveret.core.alarms import Resource
from leveret.mgmt_ui import yielding
from leveret.mgmt_ui.metrics import endpoints
from leveret.mgmt_ui.web import create_metrics_app
from leveret.ports.definitions import UserDefinition, VhostDefinition
from tests.support.client import Client
from tests.support.http import in_process_client
from tests.support.site import Site

OPEN = {"accept": "application/openmetrics-text;version=1.0.0"}
VIEWS = ("/metrics", "/metrics/per-object", "/metrics/memory-breakdown")
HOSTILE = 'a"b\\c\nd\x01é'


class Scraped:
    """A node, its users' port and its scrapers' port."""

    def __init__(self, **settings):
        self.site = Site(**settings)
        self.app = create_metrics_app(self.site.node)

    async def get(self, path, headers=None):
        async with in_process_client(self.app) as client:
            return await client.get(path, headers=headers)

    async def scrape(self, path="/metrics"):
        """Values by name and labels."""
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in parse_text(response.text)
            for sample in family.samples
        }


@pytest.fixture
def scraped(tmp_path):
    return Scraped(data_dir=tmp_path)


@pytest.fixture
def amqp(scraped):
    """A client with a queue `q` of three messages, one of them delivered, and a hostile queue."""
    client = Client(scraped.site.stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"1", b"2", b"3")
    client.prefetch(1)
    client.consume("q")
    client.deliveries()
    client.declare("hostile")
    hostile = scraped.site.broker.vhosts["/"].queues["hostile"]
    hostile.definition = replace(hostile.definition, name=HOSTILE)  # pamqp would not send it
    return client


@pytest.mark.covers("B-461")
async def test_sums_are_told_with_whose_they_are(scraped, amqp):
    values = await scraped.scrape()
    identity = ("leveret@test", "leveret", "aggregated")
    assert values["rabbitmq_identity_info", identity] == 1
    assert values["rabbitmq_connections", ()] == 1
    assert values["rabbitmq_channels", ()] == 1
    assert values["rabbitmq_consumers", ()] == 1
    assert values["rabbitmq_queues", ()] == 2
    assert values["rabbitmq_queue_messages", ()] == 3
    assert values["rabbitmq_queue_messages_unacked", ()] == 1
    assert values["rabbitmq_process_open_fds", ()] > 2
    assert values["rabbitmq_process_resident_memory_bytes", ()] > 1 << 20
    assert values["rabbitmq_alarms_memory_used_watermark", ()] == 0


async def test_traffic_is_told_as_it_was(scraped, amqp):
    amqp.publish("nowhere", b"dropped")
    values = await scraped.scrape()
    protocol = ("amqp091",)
    assert values["rabbitmq_global_messages_received_total", protocol] == 4
    assert values["rabbitmq_global_messages_routed_total", protocol] == 3
    assert values["rabbitmq_global_messages_unroutable_dropped_total", protocol] == 1
    assert values["rabbitmq_global_publishers", protocol] == 1
    assert values["rabbitmq_global_consumers", protocol] == 1
    classic = ("amqp091", "rabbit_classic_queue")
    assert values["rabbitmq_global_messages_delivered_total", classic] == 1
    assert values["rabbitmq_global_messages_delivered_consume_manual_ack_total", classic] == 1
    assert values["rabbitmq_global_messages_acknowledged_total", classic] == 0
    assert values["rabbitmq_channel_messages_published_total", ()] == 4
    assert values["rabbitmq_message_size_bytes_count", protocol] == 4
    assert values["rabbitmq_message_size_bytes_sum", protocol] == 10
    assert values["rabbitmq_message_size_bytes_bucket", (*protocol, "100")] == 4
    assert values["leveret_delivery_latency_seconds_count", ()] == 1
    assert values["rabbitmq_queues_declared_total", ()] == 2
    assert values["rabbitmq_channels_opened_total", ()] == 1
    each = await scraped.scrape("/metrics/per-object")
    assert each["rabbitmq_queue_messages_delivered_ack_total", ("/", "q")] == 1
    assert each["rabbitmq_exchange_messages_published_total", ("/", "")] == 4


async def test_sums_do_not_fall_when_a_queue_is_deleted(scraped, amqp):
    names = [
        ("rabbitmq_queue_messages_delivered_ack_total", ()),
        ("rabbitmq_global_messages_routed_total", ("amqp091",)),
    ]
    before = await scraped.scrape()
    amqp.send(commands.Queue.Delete(queue="q"))
    after = await scraped.scrape()
    assert after["rabbitmq_queues", ()] == before["rabbitmq_queues", ()] - 1
    assert [after[name] for name in names] == [before[name] for name in names] == [1, 3]


async def test_features_are_told(scraped, amqp):
    amqp.declare("once", arguments={"x-dedup-window": 60_000})
    amqp.publish("once", *[b"again"] * 3, headers={"x-dedup-id": "k"})
    amqp.declare("mixed")
    amqp.publish("mixed", b"1", b"2", headers={"x-tags": "red"})
    amqp.publish("mixed", b"3", headers={"x-tags": "blue"})
    amqp.consume("mixed", tag="blue", arguments={"x-filter-tags": "blue"})
    amqp.deliveries()
    values = await scraped.scrape()
    assert values["leveret_duplicates_total", ()] == 2
    assert values["leveret_filter_looks_total", ()] == 3
    assert values["leveret_filter_finds_total", ()] == 1
    each = await scraped.scrape("/metrics/per-object")
    assert each["leveret_vhost_messages_published_total", ("/",)] == 9


async def test_logins_are_told(scraped):
    site = scraped.site
    assert (await site.get("/api/whoami")).status_code == 200
    site.stage.access.put_user(UserDefinition("known", "hash of something else", ("management",)))
    assert (await site.get("/api/whoami", "known")).status_code == 401
    values = await scraped.scrape()
    assert values["rabbitmq_auth_attempts_total", ()] == 2
    assert values["rabbitmq_auth_attempts_succeeded_total", ()] == 1
    assert values["rabbitmq_auth_attempts_failed_total", ()] == 1


async def test_alarms_are_told(scraped):
    scraped.site.broker.alarms.set(Resource.DISK, low=True)
    values = await scraped.scrape()
    assert values["rabbitmq_alarms_free_disk_space_watermark", ()] == 1
    assert values["rabbitmq_alarms_memory_used_watermark", ()] == 0


async def test_what_was_given_up_is_told_by_where_it_went(scraped, amqp):
    amqp.declare("small", arguments={"x-max-length": 1})
    amqp.publish("small", b"1", b"2", b"3")
    values = await scraped.scrape()
    name = "rabbitmq_global_messages_dead_lettered_maxlen_total"
    assert values[name, ("rabbit_classic_queue", "disabled")] == 2
    assert values[name, ("rabbit_quorum_queue", "at_least_once")] == 0
    assert values["leveret_messages_retried_total", ("rejected",)] == 0


@pytest.mark.covers("B-463")
async def test_objects_are_told_one_by_one(scraped, amqp):
    values = await scraped.scrape("/metrics/per-object")
    assert values["rabbitmq_queue_messages", ("/", "q")] == 3
    assert values["rabbitmq_queue_messages", ("/", HOSTILE.replace("\x01", "\\x01"))] == 0
    assert values["leveret_queue_messages_written_total", ("/", "q")] == 3
    assert ("rabbitmq_queue_messages", ()) not in values


async def test_consumer_groups_are_told_by_partition(scraped, amqp):
    amqp.declare("views", durable=True, arguments={"x-queue-type": "stream"})
    amqp.prefetch(2)
    amqp.consume("views", "m", arguments={"x-consumer-group": "billing"})
    amqp.publish("views", b"1", b"2", b"3")
    amqp.deliveries()
    amqp.send(commands.Basic.Ack(2))  # the first of the stream: another queue has delivered one
    sums = await scraped.scrape()
    assert sums["leveret_consumer_groups", ()] == 1
    assert sums["leveret_consumer_group_members", ()] == 1
    assert sums["leveret_consumer_group_lag", ()] == 2
    assert "leveret_consumer_group_committed_offset" not in {name for name, _ in sums}
    each = await scraped.scrape("/metrics/per-object")
    group, place = ("/", "views", "billing"), ("/", "views", "billing", "0")
    assert each["leveret_consumer_group_members", group] == 1
    assert each["leveret_consumer_group_lag", place] == 2
    assert each["leveret_consumer_group_unacked", place] == 2
    assert each["leveret_consumer_group_committed_offset", place] == 1
    assert each["leveret_consumer_group_end_offset", place] == 3
    family = "/metrics/detailed?family=leveret_consumer_group_partitions"
    assert len(await scraped.scrape(f"{family}&vhost=%2F&queue=views")) == 4
    assert await scraped.scrape(f"{family}&queue=q") == {}
    assert await scraped.scrape(f"{family}&vhost=other") == {}


@pytest.mark.covers("B-460")
async def test_families_are_chosen_and_narrowed_down(scraped, amqp):
    scraped.site.broker.add_vhost(VhostDefinition("other"))
    values = await scraped.scrape(
        "/metrics/detailed?family=queue_coarse_metrics&family=vhost_status&vhost=%2F&queue=q"
    )
    assert set(values) == {
        ("rabbitmq_detailed_queue_messages_ready", ("/", "q")),
        ("rabbitmq_detailed_queue_messages_unacked", ("/", "q")),
        ("rabbitmq_detailed_queue_messages", ("/", "q")),
        ("rabbitmq_cluster_vhost_status", ("/",)),
    }
    assert await scraped.scrape("/metrics/detailed") == {}
    assert await scraped.scrape("/metrics/detailed?family=nonsense&vhost=nowhere") == {}


async def test_consumer_count_is_part_of_the_larger_family(scraped, amqp):
    one = "/metrics/detailed?queue=q&family=queue_consumer_count"
    alone = await scraped.scrape(one)
    assert alone == {("rabbitmq_detailed_queue_consumers", ("/", "q")): 1}
    both = await scraped.get(f"{one}&family=queue_metrics")
    assert both.text.count("# TYPE rabbitmq_detailed_queue_consumers ") == 1


@pytest.mark.covers("B-460")
async def test_every_family_can_be_asked_for_and_is_told_once(scraped, amqp):
    for name in endpoints.FAMILIES:
        response = await scraped.get(f"/metrics/detailed?family={name}")
        assert response.status_code == 200
    for view in VIEWS:
        text = (await scraped.get(view)).text
        heads = [line for line in text.splitlines() if line.startswith("# TYPE ")]
        assert len(heads) == len(set(heads)), view


@pytest.mark.parametrize("view", VIEWS)
async def test_openmetrics_is_told_to_those_who_ask_for_it(scraped, amqp, view):
    response = await scraped.get(view, OPEN)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert list(parse_open(response.text))


async def test_many_objects_are_told_in_pieces(scraped, amqp, monkeypatch):
    monkeypatch.setattr(yielding, "CHUNK_CHARACTERS", 100)
    for number in range(500):
        amqp.declare(f"q{number}")
    values = await scraped.scrape("/metrics/per-object")
    assert sum(name == "rabbitmq_queue_messages" for name, _ in values) == 502


async def test_others_are_served_while_many_objects_are_told(scraped, amqp):
    for number in range(1000):
        amqp.declare(f"q{number}")
    passes = 0

    async def others():
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        busy = group.create_task(others())
        await asyncio.sleep(0)
        before = passes
        await scraped.get("/metrics/detailed?family=queue_coarse_metrics")
        busy.cancel()
    chunks, families = 7, 3  # 10, 20, 40 and so on at most, of each family
    assert passes - before >= chunks * families


async def test_management_port_tells_monitors_only(scraped):
    site = scraped.site
    site.add_user("monica", "monitoring")
    site.add_user("max", "management")
    for path in (*VIEWS, "/metrics/detailed?family=queue_metrics"):
        assert (await site.get(path, "monica")).status_code == 200
        assert await site.error(path, "max") == (401, "not_authorised", "Not monitor user")
        assert (await site.get(path, None)).status_code == 401
        assert (await scraped.get(path)).status_code == 200


async def test_nothing_else_is_served_without_a_password(scraped):
    for path in ("/", "/api/overview", "/api/queues", "/metrics/", "/metrics/other"):
        assert (await scraped.get(path)).status_code == 404, path


@pytest.mark.covers("B-463")
async def test_channels_are_told_of_by_name_only(scraped, amqp):
    (client,) = scraped.site.broker.connections
    channel = f"{client.describe().endpoints} (1)"
    families = "family=channel_exchange_metrics&family=channel_queue_metrics"
    values = await scraped.scrape(f"/metrics/detailed?{families}")
    published = "rabbitmq_detailed_channel_messages_published_total"
    assert values[published, (channel, "/", "")] == 3
    delivered = "rabbitmq_detailed_channel_messages_delivered_ack_total"
    assert values[delivered, (channel, "/", "q")] == 1
    assert values["rabbitmq_detailed_channel_get_empty_total", (channel, "/", "q")] == 0
    other = await scraped.scrape(f"/metrics/detailed?{families}&queue=other&vhost=%2F")
    assert (delivered, (channel, "/", "q")) not in other
    assert not [
        name
        for name, _ in await scraped.scrape("/metrics/per-object")
        if "channel" in name and not name.startswith(("rabbitmq_channels", "rabbitmq_connection"))
    ]


@pytest.mark.covers("B-463")
async def test_a_queue_tells_its_memory_and_when_its_head_was_made(scraped, amqp):
    made = datetime(2023, 11, 14, tzinfo=UTC)
    amqp.declare("aged")
    amqp.publish("aged", b"x" * 1000, timestamp=made)
    values = await scraped.scrape("/metrics/detailed?family=queue_metrics")
    head = "rabbitmq_detailed_queue_head_message_timestamp"
    assert values[head, ("/", "aged")] == made.timestamp()
    assert (head, ("/", "q")) not in values
    memory = "rabbitmq_detailed_queue_process_memory_bytes"
    assert values[memory, ("/", "aged")] > 1000
    assert values["rabbitmq_detailed_queue_consumer_capacity", ("/", "q")] == 0
    sums = await scraped.scrape()
    assert sums["rabbitmq_queue_process_memory_bytes", ()] > values[memory, ("/", "aged")]
    assert "rabbitmq_queue_head_message_timestamp" not in {name for name, _ in sums}
