"""Publishes repeated until they are confirmed are stored once, under any kills."""

from __future__ import annotations

import random

import pytest
from pamqp import commands

from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, durability_of, kill_after
from tests.harness.resender import Resender
from tests.harness.transformer import Transformer
from tests.harness.wire import Client

pytestmark = pytest.mark.usefixtures("processes")

WINDOW = {"x-dedup-window": True}


def drained(port: int, queue: str) -> list[bytes]:
    """Take out what a queue holds, in order."""
    with Client(port) as client:
        count = client.count(queue)
        client.consume(queue, no_ack=True)
        return [delivery.body for delivery in client.deliveries(count)]


def declare(port: int) -> None:
    """An exchange with a window before two queues, and a third queue with one of its own."""
    with Client(port) as client:
        exchange = {"exchange": "once", "exchange_type": "fanout", "durable": True}
        client.call(1, commands.Exchange.Declare(**exchange, arguments=WINDOW))
        for queue in ("in", "beside"):
            client.declare(queue)
            client.call(1, commands.Queue.Bind(queue=queue, exchange="once", routing_key=""))
        client.declare("out", **WINDOW)


@pytest.mark.covers("C-207", "C-208")
@pytest.mark.kills
def test_a_chain_from_a_window_over_transactions_is_exactly_once(tmp_path, seed):
    rng = random.Random(seed)
    settings = {"durability": durability_of(seed), "dedup_keys_max": 1000}
    with BrokerProcess(tmp_path / "data", **settings) as broker:
        declare(broker.port)
        events = Events()
        resender = Resender("once", "", lambda number: {"headers": {"x-dedup-id": number}}, events)
        worker = Transformer("in", ("out",), seed, events)
        for _ in range(2):
            resender.start(broker.port)
            worker.start(broker.port)
            kill_after(broker, events, rng.randint(1, 2000))
            resender.join()
            worker.join()
            broker.start()
        resender.start(broker.port)
        resender.stop()
        worker.start(broker.port)
        worker.stop()
        assert not resender.troubles
        assert not worker.troubles
        everything = list(range(resender.next))
        assert [int(body) for body in drained(broker.port, "beside")] == everything
        left = [int(body) for body in drained(broker.port, "in")]
        moved = [int(body.removeprefix(b"was ")) for body in drained(broker.port, "out")]
        assert sorted(left + moved) == everything
        assert "belong to no queue" not in broker.log()
        broker.check_untroubled()
