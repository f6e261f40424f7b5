"""Cost of a round trip on this machine before any broker has done anything.

A server that only sends back what it gets, on the broker's core and on the broker's event loop; a
client that never sleeps, on the client's core. No broker on this loop can answer faster. Waking
a processor that went to sleep is most of it, so a server that polls is measured too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import socket
import statistics
import time

import uvloop

from bench.processes import broker_core, client_core, pinned

__all__ = ["floor"]

REQUEST_BYTES = 40  # about a basic.get and its ack
BACK_TO_BACK_COUNT = 20_000
PACED_COUNT = 2_000
PACED_PER_SECOND = 2_000


def floor() -> str:
    """The medians of each way to ask and to wait, in words."""
    return "; ".join(
        f"server {'polling' if polling else 'sleeping when idle'}: {_measured(polling)}"
        for polling in (False, True)
    )


def _measured(polling: bool) -> str:
    ours, theirs = multiprocessing.Pipe()
    with pinned(broker_core()):
        context = multiprocessing.get_context("spawn")
        server = context.Process(target=_serve, args=(theirs, polling))
        server.start()
    try:
        with pinned(client_core()), socket.create_connection(("127.0.0.1", ours.recv())) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setblocking(False)
            back_to_back = _median_us(link, BACK_TO_BACK_COUNT, 0)
            paced = _median_us(link, PACED_COUNT, 1 / PACED_PER_SECOND)
    finally:
        server.kill()
        server.join()
    return (
        f"{back_to_back:.1f} µs back to back ({1e6 / back_to_back:,.0f} a second), "
        f"{paced:.1f} µs at {PACED_PER_SECOND:,} a second"
    )


def _median_us(link: socket.socket, count: int, interval_seconds: float) -> float:
    """The median time from a request to its answer, in microseconds."""
    request = bytes(REQUEST_BYTES)
    samples = []
    due = time.perf_counter()
    for _ in range(count):
        due += interval_seconds
        while time.perf_counter() < due:
            pass
        started = time.perf_counter()
        link.send(request)
        missing = REQUEST_BYTES
        while missing:
            try:
                missing -= len(link.recv(missing))
            except BlockingIOError:
                continue
        samples.append(time.perf_counter() - started)
    return statistics.median(samples) * 1e6


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]  # a stream's transport


def _serve(pipe: multiprocessing.connection.Connection, polling: bool) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Echo, "127.0.0.1", 0)

        def look_again() -> None:
            loop.call_soon(look_again)

        if polling:
            look_again()
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())
