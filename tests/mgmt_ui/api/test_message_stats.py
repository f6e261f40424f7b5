"""Statistics as RabbitMQ's HTTP API has them: counters, rates, samples, and who may see them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pamqp import commands

from leveret.core.statistics.sampler import Sampler
from tests.support.client import Client
from tests.support.site import Site

T0 = 1_700_000_000_000
RANGE = "msg_rates_age=10&msg_rates_incr=5&lengths_age=10&lengths_incr=5"
RANGE += "&data_rates_age=10&data_rates_incr=5"


async def pause():
    pass


@pytest.fixture
def site():
    return Site()


@pytest.fixture
async def busy(site):
    """Sampled at 0, 5 and 10 seconds: 50 published, 20 more, and 30 delivered of which 10 acked."""
    broker = site.broker
    sampler = Sampler(
        broker.vhosts, broker.connections, broker.statistics, 5_000, histories_max=100, pause=pause
    )
    client = Client(site.stage).open()
    client.call(commands.Confirm.Select())
    client.declare("q")
    client.publish("q", *[b"x"] * 50)
    client.received()
    await sampler.sample(T0)
    client.publish("q", *[b"x"] * 20)
    client.publish("nowhere", b"x")
    client.received()
    await sampler.sample(T0 + 5_000)
    client.call(commands.Basic.Qos(prefetch_count=30))
    client.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    client.received()
    client.send(commands.Basic.Ack(delivery_tag=10, multiple=True))
    client.received()
    await sampler.sample(T0 + 10_000)
    return client


def counts(stats):
    return {name: n for name, n in stats.items() if not name.endswith("_details") and n}


async def test_counters_add_up(site, busy):
    queue = await site.json("/api/queues/%2F/q")
    handed_out = {"deliver": 40, "deliver_get": 40, "ack": 10}  # ten more after the acks
    assert counts(queue["message_stats"]) == {"publish": 70, **handed_out}
    assert queue["messages"] == 60
    exchange = await site.json("/api/exchanges/%2F/amq.default")
    assert counts(exchange["message_stats"]) == {"publish_in": 71, "publish_out": 70}
    published = {"publish": 71, "confirm": 71, "drop_unroutable": 1}
    for subject in (await site.json("/api/overview"), (await site.json("/api/vhosts"))[0]):
        assert counts(subject["message_stats"]) == {**published, **handed_out}


async def test_rates_are_those_of_the_last_interval(site, busy):
    for path in ("/api/overview", "/api/queues/%2F/q"):
        stats = (await site.json(path))["message_stats"]
        assert stats["deliver_get_details"] == {"rate": 8.0}
        assert stats["ack_details"] == {"rate": 2.0}
        assert stats["publish_details"] == {"rate": 0.0}
    queue = await site.json("/api/queues/%2F/q")
    assert queue["messages_details"] == {"rate": -2.0}
    assert queue["messages_unacknowledged_details"] == {"rate": 6.0}


async def test_consumers_are_utilised_while_nothing_waits_for_them(site, busy):
    """At 0, 5 and 10 seconds something waited, at 15 and 20 nothing did."""
    sampler = Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=pause,
    )

    async def utilisation():
        queue = await site.json("/api/queues/%2F/q")
        assert queue["consumer_capacity"] == queue["consumer_utilisation"]
        return queue["consumer_utilisation"]

    assert await utilisation() == 0.0
    busy.call(commands.Queue.Purge(queue="q"))
    await sampler.sample(T0 + 15_000)
    assert await utilisation() == 1 / 4
    await sampler.sample(T0 + 20_000)
    assert await utilisation() == 2 / 5
    busy.call(commands.Basic.Cancel(consumer_tag="c"))
    assert await utilisation() == 0.0


@pytest.mark.covers("B-440")
@pytest.mark.parametrize("path", ["overview", "queues/%2F/q"])
async def test_samples_are_the_newest_first(site, busy, path):
    shown = await site.json(f"/api/{path}?{RANGE}")
    first = 51 if path == "overview" else 50
    last = 71 if path == "overview" else 70
    expected = [(T0 + 10_000, last), (T0 + 5_000, last), (T0, first - (path == "overview"))]
    details = shown["message_stats"]["publish_details"]
    assert details["samples"] == [{"sample": n, "timestamp": t} for t, n in expected]
    assert details["avg"] == sum(n for _, n in expected) / 3
    assert details["avg_rate"] == (expected[0][1] - expected[2][1]) / 10
    totals = shown["queue_totals"] if path == "overview" else shown
    samples = totals["messages_details"]["samples"]
    assert [each["sample"] for each in samples] == [60, 70, 50]


async def test_connections_show_what_went_over_their_sockets(site, busy):
    (row,) = await site.json(f"/api/connections?{RANGE}")
    assert row["recv_oct"] > 71 * 20
    assert row["send_oct"] > 40 * 20
    assert row["recv_cnt"] > 0
    assert row["send_cnt"] > 0
    assert len(row["recv_oct_details"]["samples"]) == 3
    (bare,) = await site.json("/api/connections?disable_stats=true")
    assert "recv_oct" not in bare


async def test_channels_show_what_they_did(site, busy):
    (row,) = await site.json(f"/api/channels?{RANGE}")
    published = {"publish": 71, "confirm": 71, "drop_unroutable": 1}
    handed_out = {"deliver": 40, "deliver_get": 40, "ack": 10}
    assert counts(row["message_stats"]) == {**published, **handed_out}
    assert len(row["message_stats"]["publish_details"]["samples"]) == 3
    (bare,) = await site.json("/api/channels?disable_stats=true")
    assert "message_stats" not in bare


async def test_what_rests_says_since_when(site, busy):
    busy.declare("idle")
    assert "idle_since" not in await site.json("/api/queues/%2F/q")
    busy.publish("idle", b"x")
    sampler = Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=pause,
    )
    await sampler.sample(T0 + 15_000)
    await sampler.sample(T0 + 20_000)
    idle = await site.json("/api/queues/%2F/idle")
    assert idle["idle_since"] == "2023-11-14T22:13:35.000+00:00"


async def test_churn_and_retentions(site, busy):
    overview = await site.json("/api/overview")
    churn = overview["churn_rates"]
    assert counts(churn) == {
        "connection_created": 1,
        "channel_created": 1,
        "queue_declared": 1,
        "queue_created": 1,
    }
    assert churn["queue_created_details"] == {"rate": 0.0}
    assert overview["rates_mode"] == "basic"
    policies = overview["sample_retention_policies"]
    assert policies["global"][:4] == [605, 3660, 29400, 86400]
    assert policies["basic"][:2] == [605, 3600]
    assert policies["detailed"] == [605]


async def test_whoever_is_no_monitor_sees_the_sums_of_his_virtual_hosts(site, busy):
    site.add_user("u", "management")
    assert (await site.json("/api/overview", "u"))["message_stats"] == {}
    site.permit("u", "/")
    shown = await site.json(f"/api/overview?{RANGE}", "u")
    assert counts(shown["message_stats"])["publish"] == 71
    assert len(shown["message_stats"]["publish_details"]["samples"]) == 3


@pytest.mark.covers("B-440")
@pytest.mark.parametrize(
    "query",
    [
        "msg_rates_age=x&msg_rates_incr=5",
        "msg_rates_age=10&msg_rates_incr=0",
        "lengths_age=5&lengths_incr=10",
        "data_rates_age=604801&data_rates_incr=604801",
        "msg_rates_age=604800&msg_rates_incr=5",
        "msg_rates_age=-5&msg_rates_incr=5",
    ],
)
async def test_ranges_have_limits(site, query):
    for path in ("/api/overview", "/api/queues"):
        status, error, _ = await site.error(f"{path}?{query}")
        assert (status, error) == (400, "bad_request")


async def test_half_a_range_asks_for_nothing(site, busy):
    shown = await site.json("/api/overview?msg_rates_age=10")
    assert shown["message_stats"]["publish_details"] == {"rate": 0.0}


async def test_a_node_shows_what_it_takes_and_took(tmp_path):
    site = Site(data_dir=tmp_path)
    sampler = Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=pause,
    )
    took = {"mem_used": 1000, "fd_used": 10, "sockets_used": 1, "disk_free": 9000}
    await sampler.sample(T0, took)
    await sampler.sample(T0 + 5_000, {**took, "mem_used": 2000, "disk_free": 8000})
    asked = "node_stats_age=5&node_stats_incr=5"
    for path in (f"/api/nodes?{asked}", f"/api/nodes/leveret@test?{asked}"):
        shown = await site.json(path)
        row = shown[0] if isinstance(shown, list) else shown
        assert row["mem_used"] > 1_000_000  # as it is now
        samples = row["mem_used_details"]["samples"]
        assert [each["sample"] for each in samples] == [2000, 1000]
        assert row["mem_used_details"]["rate"] == 200.0
        assert row["disk_free_details"]["rate"] == -200.0
        assert row["sockets_used"] == 0
        assert row["fd_used_details"]["avg"] == 10
    bare = await site.json("/api/nodes/leveret@test")
    assert bare["fd_used_details"] == {"rate": 0.0}
    assert bare["mem_used_details"] == {"rate": 200.0}
    assert bare["queue_declared_details"] == {"rate": 0.0}
    without = await site.json("/api/nodes/leveret@test?disable_stats=true")
    assert without["mem_used"] > 0
    assert "mem_used_details" not in without


@pytest.mark.covers("B-444")
async def test_queues_have_the_fields_that_tools_read(site):
    client = Client(site.stage).open()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    client.publish("q", b"1", b"2", timestamp=datetime(2023, 11, 14, tzinfo=UTC))
    client.send(commands.Basic.Get(queue="q"))
    client.send(commands.Basic.Nack(delivery_tag=1, requeue=True))
    client.send(commands.Basic.Get(queue="q"))
    client.send(commands.Basic.Ack(delivery_tag=2))
    sampler = Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=pause,
    )
    await sampler.sample(T0)
    await sampler.sample(T0 + 5_000)
    (row,) = await site.json("/api/queues")
    node = "leveret@test"
    expected = {
        "name": "q",
        "vhost": "/",
        "type": "quorum",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {"x-queue-type": "quorum"},
        "state": "running",
        "node": node,
        "leader": node,
        "members": [node],
        "online": [node],
        "policy": None,
        "operator_policy": None,
        "consumers": 0,
        "messages": 1,
        "messages_ready": 1,
        "messages_unacknowledged": 0,
        "consumer_utilisation": 0,
        "consumer_capacity": 0,
        "head_message_timestamp": 1_699_920_000,
        "messages_details": {"rate": 0.0},
    }
    assert {name: row[name] for name in expected} == expected
    assert row["memory"] > 1000
    assert row["idle_since"].startswith("2023-11-14T22:13:20")
    stats = row["message_stats"]
    assert [stats[name] for name in ("publish", "deliver_get", "ack", "redeliver")] == [2, 2, 1, 1]
    assert all(f"{name}_details" in stats for name in ("publish", "deliver_get", "ack"))
