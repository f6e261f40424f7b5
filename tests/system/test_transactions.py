"""Consume, transform, publish: exactly once, however often the process is killed meanwhile."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pamqp import commands

from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, durability_of, kill_after
from tests.harness.transformer import Transformer
from tests.harness.wire import Client
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

FILL = 1500
TARGETS = ("out", "audit", "forward")


def declare(port: int) -> None:
    with Client(port) as client:
        client.declare("in")
        client.declare("out", **{"x-queue-type": "quorum"})
        client.declare("audit", **{"x-queue-type": "stream"})
        client.declare("forward", **{"x-max-priority": 3})


def fill(port: int, first: int) -> int:
    """Publish the next numbers, if few are left. Returns the number behind the last.

    All of them are confirmed.
    """
    with Client(port) as client:
        if client.count("in") > FILL // 2:
            return first
        client.confirming()
        client.publish("in", (b"%d" % number for number in range(first, first + FILL)))
        confirmed = 0
        for confirm in client.events(30.0):
            confirmed = confirm.tag
            if confirmed == FILL:
                break
        assert confirmed == FILL
    return first + FILL


def read(port: int, queue: str) -> Counter[int]:
    """The numbers that stand in a queue, and how often."""
    with Client(port) as client:
        count = client.count(queue)
        client.qos(10_000)
        arguments = {"x-stream-offset": "first"} if queue == "audit" else {}
        client.call(1, commands.Basic.Consume(queue=queue, arguments=arguments))
        found: Counter[int] = Counter()
        for delivery in client.deliveries(count):
            assert delivery.body.startswith(b"was ")
            found[int(delivery.body[4:])] += 1
            if found.total() % 5000 == 0:
                client.ack(delivery.tag, multiple=True)
        return found


def finish(port: int, workers: list[Transformer]) -> None:
    """Let everything be transformed that is left."""
    deadline = time.monotonic() + LIMIT_SECONDS
    with Client(port) as client:
        while client.count("in"):
            assert time.monotonic() < deadline, "messages are left that nobody gets"
            for worker in workers:
                worker.start(port)
            for worker in workers:
                worker.stop()


def exactly_once(data: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    events = Events()
    workers = [Transformer("in", TARGETS, seed + i, events) for i in range(3)]
    broker = BrokerProcess(data, durability=durability_of(seed))
    try:
        broker.start()
        declare(broker.port)
        stop = 0
        for _ in range(kills):
            stop = fill(broker.port, stop)
            for worker in workers:
                worker.start(broker.port)
            kill_after(broker, events, rng.randint(1, FILL // 2))
            for worker in workers:
                worker.join()
            broker.start()
        finish(broker.port, workers)
        for worker in workers:
            assert worker.troubles == []
        assert any(worker.committed for worker in workers), "no transaction was committed"
        everything = Counter(range(stop))
        for queue in TARGETS:
            found = read(broker.port, queue)
            assert found == everything, (queue, found - everything, everything - found)
        with Client(broker.port) as client:
            assert client.count("in") == 0
        broker.stop()
        broker.check_untroubled()
    finally:
        broker.kill()


@pytest.mark.covers("C-208")
@pytest.mark.kills
def test_a_few_kills(tmp_path, seed):
    exactly_once(tmp_path / "data", seed, 2)


@pytest.mark.covers("C-208")
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [0, 1])  # another durability each
def test_thirty_kills(tmp_path, seed, more):
    exactly_once(tmp_path / "data", seed + more, 30)
