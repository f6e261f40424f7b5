"""Delayed messages under kill -9: nothing confirmed is lost, nothing is early, few come twice."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

KILLS = 4
DELAY_MS_MAX = 1500


class Publisher(threading.Thread):
    """Publishes with confirms until it is told to stop or the broker dies."""

    def __init__(self, port: int, first: int, seed: int) -> None:
        super().__init__()
        self.port = port
        self.number = first
        self.confirmed: dict[int, int] = {}  # due time of each, in ms since 1970
        self.stopping = threading.Event()
        self.random = random.Random(seed)

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
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_at_random_moments(tmp_path, durability):
    randomly = random.Random(7)
    confirmed: dict[int, int] = {}
    got: list[tuple[int, int]] = []
    with BrokerProcess(tmp_path / "data", durability=durability) as broker:
        with pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port)
        ) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "amq.topic", "delayed.#")
        number = 0
        for kill in range(KILLS):
            publisher = Publisher(broker.port, number, kill)
            publisher.start()
            time.sleep(randomly.uniform(0.3, 1.5))
            broker.kill()
            publisher.join()
            number = publisher.number
            confirmed.update(publisher.confirmed)
            broker.start()
        drain(broker.port, got, lambda: confirmed.keys() <= {number for number, _ in got})
        broker.check_untroubled()
    assert len(confirmed) > 100
    numbers = [number for number, _ in got]
    assert confirmed.keys() - set(numbers) == set(), "confirmed and lost"
    assert min(late for _, late in got) >= 0, "early"
    assert len(numbers) - len(set(numbers)) < len(numbers) / 2, "twice, and not only around kills"


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
        publisher = Publisher(broker.port, 0, 1)
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


def test_repetition_and_ids_survive(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)

        def publish(body: bytes, **headers: object) -> None:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            properties = pika.BasicProperties(delivery_mode=2, headers=named)
            channel.basic_publish("", "q", body, properties)

        publish(b"tick", x_repeat_every=200, x_schedule_id="ticks")
        publish(b"old", x_delay=12_000, x_schedule_id="far")
        publish(b"new", x_delay=12_000, x_schedule_id="far")
        time.sleep(1)
        broker.kill()
        with suppress(pika.exceptions.AMQPError):
            connection.close()
        broker.start()
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_purge("q")
        begun, bodies = time.monotonic(), []
        while b"new" not in bodies and time.monotonic() - begun < 30:
            got = channel.basic_get("q", auto_ack=True)
            bodies += [got[2]] if got[0] is not None else []
        ticks_max = (time.monotonic() - begun) / 0.2 + 2
        command = pika.BasicProperties(headers={"x-schedule-id": "ticks"})
        channel.basic_publish("leveret.schedule", "cancel", b"", command)
        assert bodies.count(b"new") == 1
        assert bodies.count(b"old") == 0
        assert 5 <= bodies.count(b"tick") <= ticks_max  # one schedule went on, not two
        channel.queue_purge("q")
        time.sleep(0.5)
        assert channel.queue_declare("q", passive=True).method.message_count == 0
        connection.close()
        broker.check_untroubled()


@pytest.mark.covers("C-217")
def test_held_celery_tasks_survive(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        parameters = pika.ConnectionParameters("127.0.0.1", broker.port)
        with suppress(pika.exceptions.AMQPError), pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True, arguments={"x-celery-eta": True})
            for number in range(200):
                eta = datetime.now(UTC) + timedelta(milliseconds=10 * number)
                properties = pika.BasicProperties(delivery_mode=2, headers={"eta": eta.isoformat()})
                due_ms = int(eta.timestamp() * 1000)
                channel.basic_publish("", "q", b"%d %d" % (number, due_ms), properties)
            broker.kill()
        broker.start()
        got: list[tuple[int, int]] = []
        drain(broker.port, got, lambda: len({number for number, _ in got}) == 200)
        broker.check_untroubled()
    assert {number for number, _ in got} == set(range(200))
    assert min(late for _, late in got) >= 0
