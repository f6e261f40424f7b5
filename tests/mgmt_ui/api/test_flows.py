"""Publishes and deliveries by channel, in RabbitMQ's form."""

import pytest
from pamqp import commands

from leveret.core.statistics.sampler import Sampler
from tests.support.client import Client
from tests.support.site import Site

T0 = 1_700_000_000_000


async def pause():
    pass


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def sampler(site):
    return Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=pause,
    )


@pytest.fixture
def client(site):
    """Publishes three to the default exchange and five to `x`, one of which goes nowhere."""
    client = Client(site.stage).open()
    client.declare("q")
    client.call(commands.Exchange.Declare(exchange="x", exchange_type="direct"))
    client.call(commands.Queue.Bind(queue="q", exchange="x", routing_key="k"))
    client.publish("q", b"1", b"2", b"3")
    client.publish("k", b"4", b"5", b"6", b"7", exchange="x")
    client.publish("none", b"8", exchange="x")
    return client


def consume(client, queue="q", tag="c"):
    client.consume(queue, tag)
    client.received()


def counts(stats):
    return {name: n for name, n in stats.items() if not name.endswith("_details") and n}


async def channel_name(site):
    (row,) = await site.json("/api/channels")
    return row["name"]


async def the_channel(site, query=""):
    name = await channel_name(site)
    return await site.json(f"/api/channels/{name.replace(' ', '%20')}{query}")


async def test_a_channel_says_where_it_has_published(site, client):
    default, other = (await the_channel(site))["publishes"]
    assert default["exchange"] == {"name": "", "vhost": "/"}
    assert counts(default["stats"]) == {"publish": 3}
    assert other["exchange"] == {"name": "x", "vhost": "/"}
    assert counts(other["stats"]) == {"publish": 5, "drop_unroutable": 1}


async def test_an_exchange_says_who_has_published_to_it(site, client):
    (flow,) = (await site.json("/api/exchanges/%2F/x"))["incoming"]
    assert counts(flow["stats"]) == {"publish": 5, "drop_unroutable": 1}
    details = flow["channel_details"]
    assert details["name"] == await channel_name(site)
    assert (details["number"], details["user"]) == (1, "guest")
    assert (await site.json("/api/exchanges/%2F/amq.fanout"))["incoming"] == []


async def test_returns_of_single_messages_count_for_their_exchange(site, client):
    client.publish("none", b"9", exchange="x", mandatory=True)
    (flow,) = (await site.json("/api/exchanges/%2F/x"))["incoming"]
    assert counts(flow["stats"])["return_unroutable"] == 1


async def test_queue_and_channel_say_what_was_handed_out(site, client):
    client.send(commands.Basic.Get(queue="q"))
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    client.received()
    consume(client, "q", "c")
    consume(client, "q", "d")
    client.send(commands.Basic.Ack(delivery_tag=3, multiple=True))
    client.send(commands.Basic.Cancel(consumer_tag="c"), commands.Basic.Cancel(consumer_tag="d"))
    expected = {"get": 1, "get_no_ack": 1, "deliver": 5, "deliver_get": 7, "ack": 2}
    (mine,) = (await the_channel(site))["deliveries"]
    assert mine["queue"] == {"name": "q", "vhost": "/"}
    assert counts(mine["stats"]) == expected
    shown = await site.json("/api/queues/%2F/q")
    (flow,) = shown["deliveries"]
    assert flow["channel_details"]["name"] == await channel_name(site)
    assert counts(flow["stats"]) == expected
    assert shown["consumer_details"] == []


async def test_a_queue_names_its_consumers(site, client):
    client.declare("other")
    consume(client, "q", "c")
    consume(client, "other", "d")
    (consumer,) = (await site.json("/api/queues/%2F/q"))["consumer_details"]
    assert consumer["consumer_tag"] == "c"
    assert consumer in await site.json("/api/consumers")


async def test_rates_are_those_of_the_last_interval(site, client, sampler):
    await sampler.sample(T0)
    client.publish("k", *[b"x"] * 10, exchange="x")
    consume(client, "q")
    await sampler.sample(T0 + 5_000)
    shown = await the_channel(site, "?msg_rates_age=10&msg_rates_incr=5")
    (published,) = [one for one in shown["publishes"] if one["exchange"]["name"] == "x"]
    assert published["stats"]["publish_details"] == {"rate": 2.0}
    (handed_out,) = shown["deliveries"]
    assert handed_out["stats"]["deliver_details"] == {"rate": 17 / 5}
    assert handed_out["stats"]["deliver_get_details"] == {"rate": 17 / 5}


async def test_pairs_take_no_history_from_queues(site, client, sampler):
    consume(client, "q")
    await sampler.sample(T0)
    await sampler.sample(T0 + 5_000)
    (connection,) = site.broker.connections
    (channel,) = connection.channels.by_number.values()
    pairs = list(channel.pairs())
    assert len(pairs) == 3
    assert all(not pair.series.retained for pair in pairs)


async def test_what_is_counted_stays_when_permissions_change(site, client):
    site.permit("guest", "/")
    client.publish("k", b"x", exchange="x")
    (flow,) = (await site.json("/api/exchanges/%2F/x"))["incoming"]
    assert counts(flow["stats"])["publish"] == 6


async def test_nothing_is_told_of_what_was_deleted(site, client):
    consume(client, "q")
    client.call(commands.Exchange.Delete(exchange="x"))
    client.send(commands.Queue.Delete(queue="q"))
    shown = await the_channel(site)
    assert [one["exchange"]["name"] for one in shown["publishes"]] == [""]
    assert shown["deliveries"] == []


async def test_without_statistics_there_are_none(site, client):
    consume(client, "q")
    assert "publishes" not in await the_channel(site, "?disable_stats=true")
    for path in ("queues/%2F/q", "exchanges/%2F/x"):
        shown = await site.json(f"/api/{path}?disable_stats=true")
        assert not {"deliveries", "incoming", "consumer_details"} & shown.keys()


async def test_lists_do_not_name_pairs(site, client):
    for path in ("queues", "exchanges", "channels"):
        for row in await site.json(f"/api/{path}"):
            assert not {"deliveries", "incoming", "publishes"} & row.keys()
