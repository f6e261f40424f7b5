"""Cost of a consumer that wants one message in a hundred, against one that takes all of them.

    python -m bench.filters [messages] [--pika-messages N] [--encrypted]

A queue is filled with messages of which every hundredth has the tag `match`. Then two consumers,
one after the other, empty it: the first wants `match` only (`x-filter-tags`), the second takes all
that is left and throws it away. The time runs from basic.consume to the last delivery, client
included, without acknowledgements. pika is the usual case; it gets fewer messages. The raw client
only counts bytes, which no client can do faster: that is the hardest case.

Read the ratios, not the times. The target is 10: whoever wants 1 in 100 is served at least ten
times as fast as by taking all. With pika it is far higher, since a client's own work is what is
saved. With the raw client nothing is saved but the broker's copying and sending: both consumers
have it read the whole backlog from the page cache, and that is what is left of the filtered one's
time. "broker" is the processor time of the broker alone. The last lines tell what the scan costs in
memory. With `--encrypted` the same messages are encrypted at rest.
"""

from __future__ import annotations

import argparse
import base64
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pamqp import body, commands, frame, header

from bench.leveret import Leveret
from leveret.features.filters.rules import record_filter
from leveret.perf.plan import Address
from leveret.perf.session import LoadSession
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from collections.abc import Callable

WANTED, OTHER, ONE_IN = "match", "other", 100
MESSAGES, PIKA_MESSAGES = 1_000_000, 50_000
SIZES = (100, 1024)
QUEUE = "bench-filters"
TARGET = 10
FRAME_OVERHEAD = 8


def publish(tag: str, size: int) -> bytes:
    properties = commands.Basic.Properties(headers={"x-tags": [tag]}, delivery_mode=2)
    return (
        frame.marshal(commands.Basic.Publish(routing_key=QUEUE), 1)
        + frame.marshal(header.ContentHeader(0, size, properties), 1)
        + frame.marshal(body.ContentBody(b"x" * size), 1)
    )


def delivery_bytes(size: int) -> int:
    """Return the bytes of one delivery with the consumer tag `c`: all are alike."""
    method = commands.Basic.Deliver(
        consumer_tag="c", delivery_tag=1, redelivered=False, exchange="", routing_key=QUEUE
    )
    published = len(publish(WANTED, size))
    return (
        len(frame.marshal(method, 1))
        + published
        - len(frame.marshal(commands.Basic.Publish(routing_key=QUEUE), 1))
    )


def encrypt(data_dir: Path) -> None:
    """From now on what is published is encrypted at rest."""
    command = ["-m", "leveret", "encryption", "enable", "--vhost", "/", "--data-dir", str(data_dir)]
    subprocess.run([sys.executable, *command], check=True)


def fill(address: Address, messages: int, size: int) -> None:
    session = LoadSession.connect(address)
    session.call(commands.Channel.Open(), 1)
    session.call(commands.Queue.Declare(queue=QUEUE, durable=True), 1)
    block = publish(WANTED, size) + publish(OTHER, size) * (ONE_IN - 1)
    for _ in range(messages // ONE_IN):
        session.socket.sendall(block)
    session.call(commands.Queue.Declare(queue=QUEUE, durable=True, passive=True), 1)
    session.socket.close()


def drain_raw(address: Address, count: int, size: int, arguments: dict[str, str]) -> float:
    """Seconds until `count` deliveries have come."""
    session = LoadSession.connect(address)
    session.call(commands.Channel.Open(), 1)
    session.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
    consume = commands.Basic.Consume(
        queue=QUEUE, consumer_tag="c", no_ack=True, nowait=True, arguments={**arguments}
    )
    left = count * delivery_bytes(size)
    room = memoryview(bytearray(1024 * 1024))
    begun = time.perf_counter()
    session.socket.sendall(frame.marshal(consume, 1))
    while left > 0:
        left -= session.socket.recv_into(room)
    seconds = time.perf_counter() - begun
    assert left == 0, "deliveries have another size"
    session.socket.close()
    return seconds


def drain_pika(address: Address, count: int, size: int, arguments: dict[str, str]) -> float:  # noqa: ARG001
    import pika  # noqa: PLC0415  # whoever has no pika can measure the raw client

    parameters = pika.ConnectionParameters(address.host, address.port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        begun = time.perf_counter()
        for number, _ in enumerate(channel.consume(QUEUE, auto_ack=True, arguments=arguments), 1):
            if number == count:
                break
        return time.perf_counter() - begun


def broker_seconds(pid: int) -> float:
    """Processor time of the broker's own thread, which works off all that is asked here."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def compare(
    node: Leveret, name: str, drain: Callable[..., float], messages: int, size: int
) -> None:
    address = Address.parse(node.uri)
    fill(address, messages, size)
    wanted = messages // ONE_IN
    begun = broker_seconds(node.pid)
    filtered = drain(address, wanted, size, {"x-filter-tags": WANTED})
    between = broker_seconds(node.pid)
    everything = drain(address, messages - wanted, size, {}) * messages / (messages - wanted)
    filtered_cpu, everything_cpu = between - begun, broker_seconds(node.pid) - between
    ratio = everything / filtered
    verdict = "met" if ratio >= TARGET else "NOT met"
    print(
        f"{name:>4} {size:>5} bytes, {messages:>9,} messages: all {everything:7.3f} s, "
        f"1 in {ONE_IN} {filtered:7.3f} s, ratio {ratio:6.1f} (target {TARGET}: {verdict}); "
        f"broker {everything_cpu:6.3f} s / {filtered_cpu:6.3f} s "
        f"= {everything_cpu / filtered_cpu:.1f}",
        flush=True,
    )


def scan(size: int, records: int = 100_000) -> None:
    """Nanoseconds for each record that is passed over or found, in memory."""
    builder = BatchBuilder()
    for number in range(records):
        tag = WANTED if number % ONE_IN == 0 else OTHER
        head = b"\0\x3c" + bytes(10) + b"\x20\0" + encode_table({"x-tags": [tag]})
        builder.add(RecordFlag.HAS_HEADERS, 1, b"", b"k", head, b"x" * size)
    batch, ready = builder.seal(0), RangeSet([(0, records)])
    for arguments in (
        {"x-filter-tags": WANTED},
        {"x-filter-tags": f"{WANTED} && !{OTHER}"},
        {"x-filter-sql": "region = 'eu'"},
    ):
        wanted = record_filter(arguments)
        assert wanted is not None
        looks = partial(wanted.find, [batch], ready, 0, records, records)
        best = min(_timed(looks) for _ in range(5))
        print(f"scan {size:>5} bytes, {arguments}: {best / records * 1e9:5.1f} ns a record")


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description="One in a hundred against all of them.")
    parser.add_argument("messages", type=int, nargs="?", default=MESSAGES)
    parser.add_argument("--pika-messages", type=int, default=PIKA_MESSAGES)
    parser.add_argument("--encrypted", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        node = Leveret(Path(directory), "os", (f"LEVERET_ENCRYPTION_KEY={key}",))
        node.start()
        try:
            if asked.encrypted:
                encrypt(Path(directory) / "data")
            for size in SIZES:
                compare(node, "raw", drain_raw, asked.messages, size)
                if asked.pika_messages:
                    compare(node, "pika", drain_pika, asked.pika_messages, size)
        finally:
            node.stop()
    for size in SIZES:
        scan(size)


if __name__ == "__main__":
    main()
