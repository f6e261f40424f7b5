"""Delayed messages under kill -9: nothing confirmed is lost, nothing is early, few come twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress

import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, durability_of, kill_after
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

DELAY_MS_MAX = 1500


class Publisher(threading.Thread):
    """Publishes with confirms until it is told to stop or the broker dies."""

    def __init__(self, port: int, first: int, rng: random.Random) -> None:
        super().__init__()
        self.port = port
        self.number = first
        self.confirmed: dict[int, int] = {}  # due time of each, in ms since 1970
        self.stopping = threading.Event()
        self.random = rng
        self.events = Events()  # confirms

    def run(self) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", self.port)
        with suppress(pika.exceptions.AMQPError), pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.stopping.is_set():
                self._publish(channel)

    def _publish(self, channel) -> None:
        number, self.number = self.number, self.number + 1
        due_ms = int(time.time() * 1000) + self.random.randrange(DELAY_MS_MAX)
        headers: dict[str, object] = {"x-deliver-at": due_ms}
        if number % 5 == 0:
            headers["x-schedule-id"] = f"id {number}"
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        channel.basic_publish("amq.topic", "delayed.key", b"%d %d" % (number, due_ms), properties)
        self.confirmed[number] = due_ms
        self.events()


def drain(port: int, got: list[tuple[int, int]], until) -> None:
    """Consume, and note number and lateness of each message."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    deadline = time.monotonic() + LIMIT_SECONDS
    for _, _, body in channel.consume("q", auto_ack=True, inactivity_timeout=0.2):
        if body is not None:
            number, due_ms = map(int, body.split())
            got.append((number, int(time.time() * 1000) - due_ms))
        elif until() or time.monotonic() > deadline:
            break
    connection.close()


@pytest.mark.covers("C-201")
@pytest.mark.kills
def test_kills_lose_and_hurry_nothing_delayed(tmp_path, seed):
    rng = random.Random(seed)
    confirmed: dict[int, int] = {}
    got: list[tuple[int, int]] = []
    with BrokerProcess(tmp_path / "data", durability=durability_of(seed)) as broker:
        with pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port)
        ) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "amq.topic", "delayed.#")
        number = 0
        for _ in range(2):
            publisher = Publisher(broker.port, number, rng)
            publisher.start()
            kill_after(broker, publisher.events, rng.randint(1, 400))
            killed_ms = int(time.time() * 1000)
            publisher.join()
            number = publisher.number
            confirmed.update(publisher.confirmed)
            broker.start()
        drain(broker.port, got, lambda: confirmed.keys() <= {number for number, _ in got})
        broker.check_untroubled()
    numbers = [number for number, _ in got]
    assert confirmed.keys() - set(numbers) == set(), "confirmed and lost"
    assert min(late for _, late in got) >= 0, "early"
    twice = {number for number, count in Counter(numbers).items() if count > 1}
    later = {number for number, due_ms in confirmed.items() if due_ms > killed_ms}
    assert not twice & later, "twice, and due after all kills"


@pytest.mark.covers("C-201")
def test_without_a_kill_none_comes_twice_or_late(tmp_path):
    got: list[tuple[int, int]] = []
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port)
        ) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "amq.topic", "delayed.#")
        publisher = Publisher(broker.port, 0, random.Random(1))
        publisher.start()
        threading.Timer(2, publisher.stopping.set).start()
        drain(
            broker.port,
            got,
            lambda: (
                publisher.stopping.is_set()
                and publisher.confirmed.keys() <= {number for number, _ in got}
            ),
        )
        publisher.join()
        broker.check_untroubled()
    assert sorted(number for number, _ in got) == sorted(publisher.confirmed)
    assert min(late for _, late in got) >= 0
