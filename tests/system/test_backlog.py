"""A long backlog costs disk, not memory; it survives a restart and is drained in order."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests.harness.broker import MIB, BrokerProcess
from tests.harness.wire import FRAME_HEADER, Client, publish_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("processes")

QUEUE = "backlog"
BODY_BYTES = 100
NUMBER = struct.Struct(">Q")
BURST = 10_000
GROWTH_BYTES_MAX = 200 * MIB  # the design's promise for ten million ready messages


def keep_a_backlog(data: Path, count: int) -> None:
    with BrokerProcess(data) as broker:
        with Client(broker.port) as client:
            client.declare(QUEUE)
        empty = broker.rss_bytes
        peaks = [publish(broker, count)]
        broker.stop()
        broker.start()
        with Client(broker.port) as client:
            assert client.count(QUEUE) == count
        peaks.append(broker.rss_bytes)
        peaks.append(drain(broker, count))
        with Client(broker.port) as client:
            assert client.count(QUEUE) == 0
        grown = [(peak - empty) / MIB for peak in peaks]
        print("MiB more than empty: {:.0f} filled, {:.0f} restarted, {:.0f} drained".format(*grown))
        assert max(peaks) - empty <= GROWTH_BYTES_MAX
        broker.check_untroubled()


def publish(broker: BrokerProcess, count: int) -> int:
    """Publish numbered messages; the broker's largest memory."""
    whole = publish_bytes(QUEUE, bytes(BODY_BYTES))
    before, after = whole[: -BODY_BYTES - 1], whole[-BODY_BYTES - 1 + NUMBER.size :]
    peak = 0
    with Client(broker.port).confirming() as client:
        for first in range(0, count, BURST):
            numbers = range(first, first + BURST)
            client.send_bytes(b"".join([before + NUMBER.pack(n) + after for n in numbers]))
            peak = max(peak, broker.rss_bytes)
            if first % (50 * BURST) == 0:
                client.await_confirms(first + BURST)
        client.await_confirms(count)
    return max(peak, broker.rss_bytes)


def drain(broker: BrokerProcess, count: int) -> int:
    """Consume everything and check that the numbers rise by one; the broker's largest memory."""
    peak, expected = 0, 0
    with Client(broker.port) as client:
        for numbers in delivered_numbers(client, count):
            assert numbers == list(range(expected, expected + len(numbers)))
            expected += len(numbers)
            peak = max(peak, broker.rss_bytes)
    assert expected == count
    return peak


def delivered_numbers(client: Client, count: int) -> Iterator[list[int]]:
    """Numbers of the deliveries, many at a time: all deliveries have the same size here."""
    consume = commands.Basic.Consume(queue=QUEUE, consumer_tag="c", no_ack=True)
    client.send(1, consume)
    client.socket.settimeout(30)
    method = 4 + 2 + 8 + 1 + 1 + 1 + len(QUEUE)
    size = (8 + method) + (8 + 12 + 3) + (8 + BODY_BYTES)
    deliveries = struct.Struct(f">{size - BODY_BYTES - 1}xQ{BODY_BYTES - NUMBER.size + 1}x")
    data = bytearray()
    while len(data) < 8 + FRAME_HEADER.unpack_from(data.ljust(7, b"\0"))[2]:
        data += client.socket.recv(1 << 20)
    del data[: 8 + FRAME_HEADER.unpack_from(data)[2]]  # consume-ok
    taken = 0
    while taken < count:
        whole = len(data) // size * size
        if whole:
            taken += whole // size
            yield [number for (number,) in deliveries.iter_unpack(data[:whole])]
            del data[:whole]
        else:
            more = client.socket.recv(1 << 20)
            assert more, "the broker closed the connection"
            data += more


def test_a_million_ready_messages(tmp_path):
    keep_a_backlog(tmp_path / "data", 1_000_000)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_million_ready_messages(tmp_path):
    keep_a_backlog(tmp_path / "data", 10_000_000)
