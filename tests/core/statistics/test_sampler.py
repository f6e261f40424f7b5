"""Sampling a broker that is used: exact counts, rates, histories, and what survives a restart."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands

from leveret.core.statistics.keeping import SamplesKeeper
from leveret.core.statistics.sampler import Sampler
from tests.support.client import Client
from tests.support.stage import Stage

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def client(stage):
    return Client(stage).open()


async def pause():
    pass


def sampler_of(stage, histories_max=1000):
    sampler = Sampler(
        stage.broker.vhosts,
        stage.broker.connections,
        stage.broker.statistics,
        5_000,
        histories_max=histories_max,
        pause=pause,
    )
    return lambda seconds: asyncio.run(sampler.sample(T0 + seconds * 1000))


def test_rates_and_histories_follow_what_is_published(stage, client):
    sample = sampler_of(stage)
    statistics, host = stage.broker.statistics, stage.broker.vhosts["/"]
    client.declare("q")
    client.publish("q", *[b"x"] * 50)
    sample(0)
    client.publish("q", *[b"x"] * 100)
    sample(5)
    queue, exchange = host.queues["q"], host.exchanges[""]
    channel = client.connection.channels.by_number[1].slot
    for subject, name in (
        (queue, "publish"),
        (exchange, "publish_in"),
        (exchange, "publish_out"),
        (host, "publish"),
        (channel, "publish"),
        (None, "publish"),
    ):
        assert statistics.rate(subject, name) == 20.0
    sample(10)
    assert statistics.rate(queue, "publish") == statistics.rate(None, "publish") == 0.0
    found = statistics.history(queue, ["publish", "messages_ready"], 15, 5)
    values = [values for _, values in found]
    assert values == [(0, 0), (50, 50), (150, 150), (150, 150)]
    assert [time_ms for time_ms, _ in found] == [T0 + s * 1000 for s in (-5, 0, 5, 10)]
    assert statistics.history(None, ["publish", "messages"], 5, 5)[-1][1] == (150, 150)
    assert statistics.history(host, ["messages"], 5, 5)[-1][1] == (150,)


def test_what_is_handed_out_is_summed(stage, client):
    sample = sampler_of(stage)
    statistics = stage.broker.statistics
    client.declare("q")
    client.publish("q", *[b"x"] * 3)
    sample(0)
    for no_ack in (True, False):
        client.send(commands.Basic.Get(queue="q", no_ack=no_ack))
        client.received()
    sample(5)
    assert statistics.rate(None, "deliver_get") == 0.4
    found = statistics.history(None, ["get", "deliver_get", "messages"], 5, 5)
    assert [values for _, values in found] == [(0, 0, 3), (1, 2, 2)]


def test_where_places_are_few_those_that_rest_give_theirs_up(stage, client):
    sample = sampler_of(stage, histories_max=2)  # the default exchange has one of them
    queues = stage.broker.vhosts["/"].queues

    def has_history(name):
        return bool(queues[name].counters.series.retained)

    for name in ("a", "b"):
        client.declare(name)
        client.publish(name, b"x")
        sample(5 if name == "a" else 10)
    assert (has_history("a"), has_history("b")) == (True, False)
    assert stage.broker.statistics.rate(queues["b"], "publish") == 0.2
    for seconds in (620, 625, 630):
        client.publish("b", b"x")
        sample(seconds)
    assert not has_history("a")


def test_nothing_is_sampled_twice(stage, client):
    sample = sampler_of(stage)
    client.declare("q")
    client.publish("q", b"x")
    sample(5)
    sample(5)
    sample(2)
    series = stage.broker.vhosts["/"].queues["q"].counters.series
    assert list(series.retained[0].times) == [T0 + 5_000]


def test_the_weeks_samples_survive_a_restart(stage, client):
    sample = sampler_of(stage)
    client.declare("q", durable=True)
    warnings: list[str] = []
    keeper = SamplesKeeper(
        stage.broker.statistics, stage.broker.vhosts, stage.state, warnings.append
    )
    for hour in range(3):
        client.publish("q", *[b"x"] * 10)
        sample(hour * 3600)
    asyncio.run(keeper.keep())
    before = stage.broker.statistics.history(None, ["publish"], 7200 * 13, 3600)
    queue = stage.broker.vhosts["/"].queues["q"]
    queue.counters.series = stage.broker.statistics.node_counters.series = None
    again = SamplesKeeper(
        stage.broker.statistics, stage.broker.vhosts, stage.state, warnings.append
    )
    again.restore()
    assert stage.broker.statistics.history(None, ["publish"], 7200 * 13, 3600) == before
    assert queue.counters.series.base["publish"] == 30
    assert warnings == []


def test_damaged_samples_begin_anew_and_say_so(stage, client):
    sample = sampler_of(stage)
    client.declare("q")
    client.publish("q", b"x")
    sample(0)
    warnings: list[str] = []
    keeper = SamplesKeeper(
        stage.broker.statistics, stage.broker.vhosts, stage.state, warnings.append
    )
    asyncio.run(keeper.keep())
    pairs = stage.state.scan(b"statistics\0")
    assert pairs
    stage.state.write([(key, value[:-1]) for key, value in pairs], durable=True)
    stage.broker.statistics.node_counters.series = None
    SamplesKeeper(
        stage.broker.statistics, stage.broker.vhosts, stage.state, warnings.append
    ).restore()
    assert warnings
    assert all("start empty" in text for text in warnings)
    sample(5)
    assert stage.broker.statistics.history(None, ["publish"], 5, 5)[-1][1] == (1,)


def test_samples_of_deleted_queues_are_removed(stage, client):
    sample = sampler_of(stage)
    client.declare("q", durable=True)
    client.publish("q", b"x")
    sample(0)
    keeper = SamplesKeeper(stage.broker.statistics, stage.broker.vhosts, stage.state, print)
    asyncio.run(keeper.keep())
    assert any(b"queue" in key for key, _ in stage.state.scan(b"statistics\0"))
    client.call(commands.Queue.Delete(queue="q"))
    asyncio.run(keeper.keep())
    assert not any(b"queue" in key for key, _ in stage.state.scan(b"statistics\0"))
