"""Credit of forwarded consumers: bytes and messages are never lost on the way, nor made."""

import random

import pytest

from leveret.clustering.forwarding.buffered import CREDIT_BYTES, BufferedDeliveries
from leveret.clustering.forwarding.session import ForwardedConsumer
from leveret.clustering.forwarding.wire import (
    BeginConsuming,
    DeliverRecords,
    pack,
    parse_from_leader,
)
from leveret.ports.records import BatchBuilder

PREFETCH = 1000


class Session:
    """Stream to another node that is always writable."""

    writable = True

    def __init__(self):
        self.sent = []

    def deliver(self, consumer, batches, _runs, *, redelivered):
        message = DeliverRecords(consumer.number, redelivered, [], batches)
        self.sent.append(b"".join(bytes(part) for part in pack(message)))


class Client:
    """Consumer whose connection takes as much as it has `room` for."""

    def __init__(self):
        self.in_flight = self.room = 0
        self.got = []

    def capacity(self):
        return min(PREFETCH - self.in_flight, self.room) if self.room else -1

    def send(self, batches, first, stop, *, redelivered):
        count = min(stop - first, self.room)
        self.room -= count
        self.in_flight += count
        self.got += [body for *_, body in batches[0].records()][first - batches[0].base_offset :][
            :count
        ]
        return first + count


def make_batches(draw, count):
    batches, base = [], 0
    while base < count:
        builder = BatchBuilder()
        for number in range(base, min(count, base + draw.randrange(1, 600))):
            builder.add(1, 0, b"", b"q", b"header", b"%d" % number * draw.choice((1, 20, 900)))
        batches.append(builder.seal(base))
        base = batches[-1].stop_offset
    return batches


@pytest.mark.parametrize("seed", range(20))
def test_all_is_delivered_once_and_credit_is_kept(seed):
    draw = random.Random(seed)
    client, session = Client(), Session()
    buffered = BufferedDeliveries(1, client, exclusive=False)
    begun = BeginConsuming(1, False, 0, buffered.restart(), {})
    consumer = ForwardedConsumer(session, begun)
    batches = make_batches(draw, 5000)
    at, end = 0, batches[-1].stop_offset
    for _ in range(20_000):
        client.room = draw.choice((0, 1, 300, 2000))
        client.in_flight = max(0, client.in_flight - draw.choice((0, 1, 900)))
        capacity = consumer.capacity()
        if capacity > 0 and at < end:
            window = [batch for batch in batches if batch.stop_offset > at][: draw.randrange(1, 4)]
            stop = min(at + capacity, window[-1].stop_offset)
            at = consumer.send(window, at, stop, redelivered=False)
        for sent in session.sent:
            for batch in parse_from_leader(memoryview(sent)).batches:
                buffered.came(batch, redelivered=False)
        session.sent.clear()
        buffered.deliver()
        credit = buffered.credit()
        if credit is not None:
            consumer.grant(*credit)
        on_the_way = sum(run.batch.size for run in buffered._runs)
        assert consumer._bytes + buffered._freed + on_the_way == CREDIT_BYTES
        assert client.in_flight <= PREFETCH
        if len(client.got) == end:
            break
    expected = [body for batch in batches for *_, body in batch.records()]
    assert client.got == expected
