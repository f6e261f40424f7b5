"""Peers that do not read, or send faster than others take: memory stays bounded, others served."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress

import pytest
from pamqp import commands

from tests.harness.broker import MIB, BrokerProcess
from tests.harness.bystander import Bystander
from tests.harness.wire import TRANSIENT, Client, Delivery, frame_bytes, publish_bytes

WATCHED_SECONDS = 1.0
FLOOD_SECONDS = 2.0
GROWTH_BYTES_MAX = 32 * MIB
# Small caches and limits, so that what a peer makes the broker hold would show at once.
SETTINGS = {"tail_cache_bytes_max": 4 * MIB, "message_bytes_max": 2 * MIB}


@pytest.fixture(scope="module")
def shared(tmp_path_factory, processes):
    with BrokerProcess(tmp_path_factory.mktemp("slow") / "data", **SETTINGS) as broker:
        yield broker
        broker.check_untroubled()
        broker.stop()


@pytest.fixture
def broker(shared):
    with Bystander(shared.port):
        yield shared


@contextmanager
def bounded(broker: BrokerProcess):
    """Memory may not grow by more than GROWTH_BYTES_MAX over the block."""
    before = broker.rss_bytes
    grown: list[int] = []
    yield lambda: grown.append(broker.rss_bytes - before)
    grown.append(broker.rss_bytes - before)
    print(f"grew by {max(grown) / MIB:.0f} MiB")
    assert max(grown) < GROWTH_BYTES_MAX, f"grew by {max(grown) / MIB:.0f} MiB"


def watch(look, seconds: float = WATCHED_SECONDS) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        look()
        time.sleep(0.05)


def filled(broker: BrokerProcess, queue: str, count: int, size: int) -> None:
    with Client(broker.port).confirming() as client:
        client.declare(queue)
        for _ in range(count // 10):
            client.publish(queue, [bytes(size)] * 10)
        client.await_confirms(count)


def test_a_consumer_that_never_reads(broker):
    filled(broker, "unread", 1000, 200_000)
    with Client(broker.port) as client, bounded(broker) as look:
        client.send(1, commands.Basic.Consume(queue="unread", no_ack=True))
        watch(look)
    with Client(broker.port) as client:
        assert client.call(1, commands.Queue.Purge(queue="unread")).message_count > 800


def test_gets_whose_answers_are_never_read(broker):
    filled(broker, "got", 20, 1_000_000)
    get = frame_bytes(1, 1, b"\x00\x3c\x00\x46\x00\x00\x03got\x00")
    nack = frame_bytes(1, 1, b"\x00\x3c\x00\x78" + bytes(8) + b"\x03")
    with Client(broker.port) as client, bounded(broker) as look:
        push(client, (get + nack) * 4000, look)


def test_returns_that_are_never_read(broker):
    method = b"\x00\x3c\x00\x28\x00\x00\x00\x07nowhere\x01"
    one = frame_bytes(1, 1, method) + content(bytes(100_000))
    with Client(broker.port) as client, bounded(broker) as look:
        push(client, one * 3000, look)


def test_replies_that_are_never_read(broker):
    with Client(broker.port) as client, bounded(broker) as look:
        client.declare("asked")
        ask = frame_bytes(1, 1, b"\x00\x32\x00\x0a\x00\x00\x05asked\x03" + bytes(4))
        push(client, ask * 1_000_000, look)


def content(body: bytes) -> bytes:
    """Header and body frames without their method."""
    whole = publish_bytes("", body, properties=TRANSIENT)
    method_size = int.from_bytes(whole[3:7], "big")
    return whole[8 + method_size :]


def push(client: Client, data: bytes, look, patience_seconds: float = WATCHED_SECONDS) -> None:
    """Send as much as the broker takes, never reading, until it takes nothing for a while."""
    client.socket.settimeout(patience_seconds)
    view = memoryview(data)
    with suppress(TimeoutError):
        while view:
            view = view[client.socket.send(view[:262_144]) :]
            look()
    watch(look)


def test_a_publisher_that_outruns_its_consumer(broker):
    count, burst = 0, 1000
    with (
        Client(broker.port).confirming() as publisher,
        Client(broker.port) as consumer,
        bounded(broker) as look,
    ):
        publisher.declare("flood")
        consumer.qos(10)
        consumer.consume("flood")
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            bodies = [b"%09d" % (count + i) + bytes(1000) for i in range(burst)]
            publisher.publish("flood", bodies)
            count += burst
            look()
        publisher.await_confirms(count)
        numbers = take_slowly(consumer, 100)
    with Client(broker.port) as client, bounded(broker) as look:
        client.consume("flood", no_ack=True)
        numbers += [number(one) for one in client.deliveries(count - len(numbers))]
        look()
    assert numbers == list(range(count))


def take_slowly(consumer: Client, count: int) -> list[int]:
    """Take `count` messages, ten at a time as the prefetch allows."""
    numbers: list[int] = []
    while len(numbers) < count:
        taken = list(consumer.deliveries(10))
        numbers += map(number, taken)
        consumer.ack(taken[-1].tag, multiple=True)
    consumer.call(1, commands.Basic.Qos(prefetch_count=0))  # the acks have arrived
    return numbers


def number(delivery: Delivery) -> int:
    return int(delivery.body[:9])
