"""Links between two nodes on this machine: large answers, small requests, messages of a stream.

    python -m bench.links [--seconds 3] [--profile]

How to read it: two processes, each with one event loop, one dials the other over loopback. `socket`
is the same 1 MB over a blocking socket with nothing around it, which no link can reach. CPU is that
of both processes together, user and system. `round trip beside them` is that of a small request
while large answers come on the same link. `--profile` prints what the dialing side is busy with.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import datetime as dt
import multiprocessing
import os
import pstats
import resource
import socket
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from leveret.links.accepted import Handlers
from leveret.links.handshake import HandshakeTerms
from leveret.links.identity import ClusterSecret, NodeIdentity
from leveret.links.links import Links
from leveret.links.outgoing import SelfChecked
from leveret.links.settings import LinkLimits, LinkSettings
from leveret.links.tls import LinkCertificates, LinkTlsFiles

LARGE, ECHO, COUNT, UNCHECKED = 1, 2, 3, 4
MB = 1_000_000
LARGE_OUTSTANDING = 4
SMALL_OUTSTANDING = 256


def make_links(node: int, handlers: Handlers, directory: Path | None) -> Links:
    """Make the links of one of the two nodes."""
    own = NodeIdentity("bench", node, 1, "bench")
    terms = HandshakeTerms(own, ClusterSecret(b"bench" * 8), LinkLimits())
    tls = None
    if directory is not None:
        name = directory / "node"
        files = LinkTlsFiles(
            name.with_suffix(".pem"), name.with_suffix(".key"), name.with_suffix(".pem"), False
        )
        tls = LinkCertificates(files, time.monotonic)
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work):
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    return Links(terms, LinkSettings(), handlers, spawn, tls=tls)


def make_certificate(directory: Path) -> None:
    """Make one certificate for both nodes, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (directory / "node.pem").write_bytes(certificate.public_bytes(encoding))
    secret = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "node.key").write_bytes(secret)


# -- the side that answers


def accept(pipe: Connection, directory: Path | None) -> None:
    """Answer until told to stop (the process's main function)."""
    uvloop.run(_accept(pipe, directory))


async def _accept(pipe: Connection, directory: Path | None) -> None:
    content = os.urandom(MB // 4)

    async def large(_, __):
        return [content, content, content, content]

    async def unchecked(_, __):
        return SelfChecked([content, content, content, content])

    async def echo(_, payload):
        return payload

    async def count(stream):
        while await stream.receive() is not None:
            stream.receive_ready()

    links = make_links(
        1, Handlers({LARGE: large, UNCHECKED: unchecked, ECHO: echo}, {}, {COUNT: count}), directory
    )
    pipe.send(await links.listen("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, pipe.recv):
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(used.ru_utime + used.ru_stime)
    await links.close()


# -- the side that asks


class Asker:
    """The dialing side, which measures."""

    def __init__(self, links: Links, pipe: Connection, seconds: float, name: str) -> None:
        self.peer = links.peer(1)
        self.pipe = pipe
        self.seconds = seconds
        self.name = name

    def cpu_seconds(self) -> float:
        """Processor time of both processes so far."""
        self.pipe.send(True)
        own = resource.getrusage(resource.RUSAGE_SELF)
        return self.pipe.recv() + own.ru_utime + own.ru_stime

    async def large(self, kind: int, what: str) -> None:
        """1 MB answers, some at a time, and a small request beside them."""
        await self._large(kind, 0.3)
        used, begun = self.cpu_seconds(), time.perf_counter()
        received, trips = await self._large(kind, self.seconds)
        spent, used = time.perf_counter() - begun, self.cpu_seconds() - used
        print(
            f"{self.name:6} {received / spent / 1e9:6.2f} GB/s of 1 MB answers{what},"
            f" {used / received * MB * 1e6:5.0f} µs of CPU per MB,"
            f" round trip beside them {statistics.median(trips) * 1e3:.2f} ms"
            f" (p99 {sorted(trips)[len(trips) * 99 // 100] * 1e3:.2f})"
        )

    async def _large(self, kind: int, seconds: float) -> tuple[int, list[float]]:
        stop = time.perf_counter() + seconds
        received = 0
        trips = []

        async def ask():
            nonlocal received
            while time.perf_counter() < stop:
                answer = await self.peer.request(kind, b"", timeout_s=10)
                received += len(answer)

        async def ping():
            while time.perf_counter() < stop:
                begun = time.perf_counter()
                await self.peer.request(ECHO, b"x", timeout_s=10)
                trips.append(time.perf_counter() - begun)
                await asyncio.sleep(0.002)

        await asyncio.gather(ping(), *(ask() for _ in range(LARGE_OUTSTANDING)))
        return received, trips

    async def small(self, outstanding: int) -> None:
        """100 byte requests and answers, many at a time."""
        count = 0
        payload = b"x" * 100
        used, begun = self.cpu_seconds(), time.perf_counter()
        stop = begun + self.seconds

        async def ask():
            nonlocal count
            while time.perf_counter() < stop:
                await self.peer.request(ECHO, payload, timeout_s=10)
                count += 1

        await asyncio.gather(*(ask() for _ in range(outstanding)))
        spent, used = time.perf_counter() - begun, self.cpu_seconds() - used
        print(
            f"{self.name:6} {count / spent:8.0f} round trips/s of 100 B, {outstanding} at a time,"
            f" {used / count * 1e6:5.1f} µs of CPU each"
        )

    async def messages(self, size: int) -> None:
        """Messages of one stream."""
        stream = self.peer.open_stream(COUNT, b"")
        wake = asyncio.Event()
        stream.on_writable(wake.set)
        count, payload = 0, b"x" * size
        used, begun = self.cpu_seconds(), time.perf_counter()
        while time.perf_counter() - begun < self.seconds:
            wake.clear()
            for _ in range(64):
                if not stream.writable:
                    await wake.wait()
                    break
                stream.send(payload)
                count += 1
            else:
                await asyncio.sleep(0)
        stream.end()
        await stream.receive()
        spent, used = time.perf_counter() - begun, self.cpu_seconds() - used
        print(
            f"{self.name:6} {count / spent:8.0f} messages/s of {size} B on a stream,"
            f" {count * size / spent / 1e6:.0f} MB/s, {used / count * 1e6:5.1f} µs of CPU each"
        )


async def ask(pipe: Connection, address, directory, args, name: str) -> None:
    """Measure one kind of connection."""
    links = make_links(2, Handlers(), directory)
    links.set_address(1, *address)
    asker = Asker(links, pipe, args.seconds, name)
    profile = cProfile.Profile() if args.profile else None
    await asker.peer.request(ECHO, b"", timeout_s=5)
    for work in (
        asker.large(LARGE, ""),
        asker.large(UNCHECKED, " with checksums of their own"),
        asker.small(1),
        asker.small(SMALL_OUTSTANDING),
        asker.messages(1000),
    ):
        if profile is not None:
            profile.enable()
        await work
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    await links.close()


def measure(args: argparse.Namespace, directory: Path | None, name: str) -> None:
    """Start the answering process, and measure."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=accept, args=(other, directory))
    process.start()
    try:
        uvloop.run(ask(pipe, pipe.recv(), directory, args, name))
    finally:
        pipe.send(False)
        process.join()


# -- the socket alone


def send(port: int, stop: float) -> None:
    """Send 1 MB at a time (the process's main function)."""
    content = os.urandom(MB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while time.time() < stop:
            connection.sendall(content)


def measure_socket(seconds: float) -> None:
    """Measure what loopback carries."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = time.time() + seconds
    process = multiprocessing.get_context("spawn").Process(
        target=send, args=(listening.getsockname()[1], stop)
    )
    process.start()
    connection, _ = listening.accept()
    buffer = memoryview(bytearray(MB))
    received, begun = 0, time.perf_counter()
    while count := connection.recv_into(buffer):
        received += count
    print(f"socket {received / (time.perf_counter() - begun) / 1e9:6.2f} GB/s of 1 MB")
    process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    measure_socket(args.seconds)
    measure(args, None, "plain")
    with tempfile.TemporaryDirectory() as directory:
        make_certificate(Path(directory))
        measure(args, Path(directory), "TLS")


if __name__ == "__main__":
    main()
