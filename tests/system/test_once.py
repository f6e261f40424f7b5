"""Publishes repeated until they are confirmed are stored once, under any kills."""

from __future__ import annotations

import random
import time

import pytest
from pamqp import commands

from tests.harness.broker import BrokerProcess
from tests.harness.resender import Resender
from tests.harness.transformer import Transformer
from tests.harness.wire import Client

pytestmark = pytest.mark.usefixtures("processes")

WINDOW = {"x-dedup-window": True}


def drained(port: int, queue: str) -> list[int]:
    """The numbers that a queue holds, in order."""
    with Client(port) as client:
        count = client.count(queue)
        client.consume(queue, no_ack=True)
        return [int(delivery.body) for delivery in client.deliveries(count)]


def under_kills(broker: BrokerProcess, resender: Resender, kills: int) -> None:
    """Let the broker be killed under the publisher; in the end everything is confirmed."""
    rng = random.Random(7)
    for _ in range(kills):
        resender.start(broker.port)
        time.sleep(rng.uniform(0.3, 1.5))
        broker.kill()
        resender.join()
        broker.start()
    resender.start(broker.port)
    time.sleep(0.5)
    resender.stop()
    assert not resender.troubles
    assert not resender.unconfirmed
    assert resender.resent, "nothing was sent twice"


@pytest.mark.covers("C-207")
def test_a_queue_window(tmp_path):
    with BrokerProcess(tmp_path / "data", dedup_keys_max=1000) as broker:
        with Client(broker.port) as client:
            client.declare("once", **{"x-dedup-window": True})
        resender = Resender("", "once", lambda number: {"message_id": f"m{number}"})
        under_kills(broker, resender, 5)
        assert drained(broker.port, "once") == list(range(resender.next))
        broker.check_untroubled()


@pytest.mark.covers("C-207")
def test_an_exchange_window(tmp_path):
    with BrokerProcess(tmp_path / "data", dedup_keys_max=1000) as broker:
        with Client(broker.port) as client:
            client.call(
                1,
                commands.Exchange.Declare(
                    exchange="once", exchange_type="fanout", durable=True, arguments=WINDOW
                ),
            )
            for queue in ("one", "two"):
                client.declare(queue)
                client.call(1, commands.Queue.Bind(queue=queue, exchange="once", routing_key=""))
        resender = Resender("once", "", lambda number: {"headers": {"x-dedup-id": number}})
        under_kills(broker, resender, 5)
        assert drained(broker.port, "one") == list(range(resender.next))
        assert drained(broker.port, "two") == list(range(resender.next))
        assert "belong to no queue" not in broker.log()
        broker.check_untroubled()


@pytest.mark.covers("C-208")
def test_a_numbering_publisher(tmp_path):
    def numbered(number: int) -> dict[str, object]:
        claim = {"x-producer-id": "p", "x-producer-epoch": 3, "x-producer-seq": number}
        return {"headers": claim}

    with BrokerProcess(tmp_path / "data", durability="fsync") as broker:
        with Client(broker.port) as client:
            client.declare("q")
        resender = Resender("", "q", numbered)
        under_kills(broker, resender, 5)
        assert drained(broker.port, "q") == list(range(resender.next))
        broker.check_untroubled()


@pytest.mark.covers("C-208")
def test_a_chain_from_a_window_over_transactions_is_exactly_once(tmp_path):
    rng = random.Random(3)
    with BrokerProcess(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("in", **WINDOW)
            client.declare("out", **WINDOW)
        resender = Resender("", "in", lambda number: {"message_id": f"m{number}"})
        worker = Transformer("in", ("out",), 5)
        for _ in range(4):
            resender.start(broker.port)
            worker.start(broker.port)
            time.sleep(rng.uniform(0.3, 1.0))
            broker.kill()
            resender.join()
            worker.join()
            broker.start()
        resender.start(broker.port)
        resender.stop()
        worker.start(broker.port)
        worker.stop()
        assert not resender.troubles
        assert not worker.troubles
        with Client(broker.port) as client:
            left = drained(broker.port, "in")
            count = client.count("out")
            client.consume("out", no_ack=True)
            moved = [int(delivery.body[4:]) for delivery in client.deliveries(count)]
        assert sorted(left + moved) == list(range(resender.next))
        broker.check_untroubled()
