"""A stream in a real process: kills lose nothing that was confirmed, retention keeps it small."""

from __future__ import annotations

import random
import struct
import threading
import time
from pathlib import Path

import pytest
from pamqp import commands

from leveret.config import Configuration
from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, durability_of, kill_after
from tests.harness.wire import Client, Confirm, check_open
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

SEGMENT_BYTES_MAX = Configuration.model_fields["segment_bytes_max"].metadata[0].ge
STREAM = {"x-queue-type": "stream"}
PREFETCH = 500
GROUP = 5  # messages that may share a batch: a segment is that much larger than it should be
NUMBER = struct.Struct(">Q")


def read(port: int, count: int, offset: object = "first") -> list[int]:
    """The numbers of `count` messages from `offset` on, acknowledged in groups."""
    found = []
    with Client(port) as client:
        client.qos(PREFETCH)
        arguments = {"x-stream-offset": offset}
        client.call(1, commands.Basic.Consume(queue="s", arguments=arguments))
        for delivery in client.deliveries(count):
            assert not delivery.redelivered
            found.append(NUMBER.unpack_from(delivery.body)[0])
            if delivery.tag % (PREFETCH // 2) == 0:
                client.ack(delivery.tag, multiple=True)
    return found


class Publisher(threading.Thread):
    """Publishes ascending numbers until the broker is gone; `confirmed` is the number it knows."""

    def __init__(self, port: int, first: int, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.events = Events()  # confirms
        self.port = port
        self.first = first
        self.confirmed = first  # numbers below are safe
        self.sent = first

    def run(self) -> None:
        try:
            with Client(self.port).confirming() as client:
                while True:
                    stop = self.sent + self.rng.randint(1, 300)
                    client.publish("s", map(NUMBER.pack, range(self.sent, stop)))
                    self.sent = stop
                    self._await(client)
        except OSError:
            pass

    def _await(self, client: Client) -> None:
        for event in client.events(0.01):
            if isinstance(event, Confirm):
                assert not event.nack
                confirmed = max(self.confirmed, self.first + event.tag)
                newly, self.confirmed = confirmed - self.confirmed, confirmed
                self.events(newly)
            else:
                check_open(event)


@pytest.mark.kills
def test_kills_lose_nothing_confirmed(tmp_path, seed):
    rng = random.Random(seed)
    data = tmp_path / "data"
    settings = {"durability": durability_of(seed), "segment_bytes_max": SEGMENT_BYTES_MAX}
    broker = BrokerProcess(data, **settings)
    try:
        broker.start()
        with Client(broker.port) as client:
            client.declare("s", **STREAM)
        first, lives = 0, []
        for _ in range(2):
            publisher = Publisher(broker.port, first, rng)
            publisher.start()
            kill_after(broker, publisher.events, rng.randint(1, 5000))
            publisher.join()
            lives.append(publisher)
            first = publisher.sent
            broker.start()
        with Client(broker.port) as client:
            count = client.count("s")
        everything = read(broker.port, count)
        assert read(broker.port, count) == everything == sorted(everything)
        for life in lives:
            mine = [number for number in everything if life.first <= number < life.sent]
            assert mine == list(range(life.first, life.first + len(mine)))
            assert len(mine) >= life.confirmed - life.first
        assert all(life.confirmed > life.first for life in lives)
        tail = min(10, count)
        assert read(broker.port, tail, count - tail) == everything[-tail:]
        broker.stop()
        broker.check_untroubled()
    finally:
        broker.kill()


def log_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in data.glob("topics/*/s~~*/0/*.log"))


def count_when_flushed(client, queue):
    """Return what is kept once retention, which runs behind the flushes, has come to rest."""
    deadline = time.monotonic() + LIMIT_SECONDS
    counts = [client.count(queue)]
    while len(counts) < 10 or len(set(counts[-10:])) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        counts.append(client.count(queue))
    return counts[-1]


def test_retention_runs_while_consumers_read(tmp_path):
    bytes_max = 4 * SEGMENT_BYTES_MAX
    with BrokerProcess(tmp_path / "data", segment_bytes_max=SEGMENT_BYTES_MAX) as broker:
        with Client(broker.port).confirming() as client, Client(broker.port) as slow:
            client.declare("s", **STREAM, **{"x-max-length-bytes": bytes_max})
            slow.qos(10)
            slow.call(1, commands.Basic.Consume(queue="s", arguments={"x-stream-offset": "first"}))
            body = b"." * 10_000
            count = 4 * bytes_max // len(body)
            for number in range(0, count, GROUP):
                client.publish("s", (NUMBER.pack(number + i) + body for i in range(GROUP)))
                client.await_confirms(number + GROUP)
            kept = count_when_flushed(client, "s")
            assert kept * len(body) < bytes_max + 2 * SEGMENT_BYTES_MAX
            got = [NUMBER.unpack_from(one.body)[0] for one in slow.deliveries(10)]
            slow.ack(10, multiple=True)
            got += [NUMBER.unpack_from(one.body)[0] for one in slow.deliveries(10)]
        total = -(-count // GROUP) * GROUP
        assert got[:10] == list(range(10))
        assert got == sorted(set(got))
        deadline = time.monotonic() + LIMIT_SECONDS
        while log_bytes(broker.data) > bytes_max + 2 * SEGMENT_BYTES_MAX:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert read(broker.port, kept) == list(range(total - kept, total))
        broker.stop()
        broker.start()
        assert read(broker.port, kept) == list(range(total - kept, total))
        broker.check_untroubled()
