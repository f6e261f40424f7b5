"""Nodes with real links, and a proxy between them that stops reading or cuts one direction."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from leveret.links.accepted import Handlers
from leveret.links.errors import PeerRefusedError
from leveret.links.handshake import HandshakeTerms
from leveret.links.identity import ClusterSecret, NodeIdentity
from leveret.links.links import Links
from leveret.links.outgoing import SelfChecked
from leveret.links.settings import LinkSettings
from tests.support.waiting import eventually

QUICK = LinkSettings(
    heartbeat_ms=50, silent_ms_max=300, retry_ms_min=10, retry_ms_max=100, handshake_ms_max=2000
)
SECRET = ClusterSecret(b"the secret of the cluster")
ECHO, WAIT, FAIL, REFUSE, BULK, CHECKED = range(1, 7)
NOTE = 1
REPEAT, STUCK, BRIEF = 1, 2, 3


async def send(stream, message):
    """Send a message on a stream once it takes one."""
    again = asyncio.Event()
    stream.on_writable(again.set)
    while not stream.writable:
        await again.wait()
        again.clear()
    stream.send(message)


class Node:
    """A node that answers, notes and repeats."""

    def __init__(self, number, settings=QUICK, *, secret=SECRET, session=1, tls=None, **handlers):
        own = NodeIdentity("c", number, session, "test", frozenset({"x"}))
        self.number = number
        self.notes = []
        self.cancelled = []
        self.waiting = 0
        self.streams = []
        self.tasks = set()
        made = Handlers(
            {
                ECHO: self.echo,
                WAIT: self.wait,
                FAIL: self.fail,
                REFUSE: self.refuse,
                BULK: self.bulk,
                CHECKED: self.self_checked,
            },
            {NOTE: lambda peer, payload: self.notes.append((peer.node, bytes(payload)))},
            {REPEAT: self.repeat, STUCK: self.stuck, BRIEF: self.brief},
        )
        self.links = Links(
            HandshakeTerms(own, secret, settings.limits),
            settings,
            replace(made, **handlers),
            self.spawn,
            tls=tls,
        )
        self.address = None

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def __aenter__(self):
        self.address = await self.links.listen("localhost", 0)
        return self

    async def __aexit__(self, *_):
        await self.links.close()
        await eventually(lambda: not self.tasks)

    def dial(self, other, address=None):
        self.links.set_address(other.number, *(address or other.address))
        return self.links.peer(other.number)

    async def echo(self, _, payload):
        return payload

    async def bulk(self, _, payload):
        return [b"b" * 1000] * int(bytes(payload))

    async def self_checked(self, _, payload):
        return SelfChecked(await self.bulk(_, payload))

    async def wait(self, _, payload):
        self.waiting += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.append(bytes(payload))
            raise
        finally:
            self.waiting -= 1
        return b""

    async def fail(self, _, __):
        raise RuntimeError("a secret of the implementation")

    async def refuse(self, _, __):
        raise PeerRefusedError(404, "not here")

    async def repeat(self, stream):
        stream.send(stream.opening)
        while (message := await stream.receive()) is not None:
            await send(stream, message)

    async def brief(self, stream):
        stream.send(bytes(await stream.receive()))

    async def stuck(self, stream):
        self.streams.append(stream)
        await asyncio.sleep(60)


async def serve_alone():
    """Serve as node 2 in a process of its own, until it is killed."""
    async with Node(2, LinkSettings()) as node:
        print(node.address[1], flush=True)
        await asyncio.Event().wait()


class Proxy:
    """Carries bytes to a node, until told otherwise.

    `holds[True]` stops reading from who dials, `holds[False]` from who accepts; `drops` reads, and
    carries nothing.
    """

    def __init__(self, target):
        self.target = target
        self.holds = {True: False, False: False}
        self.drops = {True: False, False: False}
        self.writers = []
        self.connections = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=4096)
        self.address = self.server.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.cut()
        await asyncio.sleep(0.05)

    def cut(self):
        """Cut all connections."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _accept(self, reader, writer):
        self.connections += 1
        try:
            other_reader, other_writer = await asyncio.open_connection(*self.target, limit=4096)
        except OSError:
            writer.transport.abort()
            return
        self.writers += [writer, other_writer]
        await asyncio.gather(
            self._carry(True, reader, other_writer), self._carry(False, other_reader, writer)
        )

    async def _carry(self, from_dialer, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                while self.holds[from_dialer]:
                    if writer.transport.is_closing():
                        return
                    await asyncio.sleep(0.01)
                if not self.drops[from_dialer]:
                    writer.write(data)
                    await writer.drain()
        writer.close()


if __name__ == "__main__":
    asyncio.run(serve_alone())
