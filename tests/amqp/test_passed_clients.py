"""Clients that another node has accepted: their ends are those at that node."""

import asyncio
import datetime as dt
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from pamqp import commands, frame

from leveret.amqp.listener import AmqpListener
from leveret.amqp.sockets import ClientSockets
from leveret.cli.certs import make_certificates
from leveret.core.clients import Endpoints
from tests.support.accepted import accepted_client
from tests.support.client import PROTOCOL_HEADER, wire
from tests.support.stage import Stage
from tests.support.waiting import ASYNC_POLL_SECONDS, LIMIT_SECONDS, eventually

NEAR = Endpoints("127.0.0.1", 40_000, "127.0.0.1", 5672)
FAR = Endpoints("192.0.2.7", 40_000, "192.0.2.8", 5672)
LOGIN = wire(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0)


class TakingListener:
    """The listener of a broker, and clients that another node passes on to it."""

    def __init__(self, **settings):
        self.stage = Stage(
            **{"port": 0, "login_delay_seconds": 0, "handshake_timeout_seconds": 3600, **settings}
        )
        self.tasks, self.opened = set(), []
        self.sockets = ClientSockets(self.stage.broker, self.stage.configuration, self.spawn)
        self.listener = AmqpListener(self.sockets)

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _work_on(self):
        while True:
            self.stage.run()
            await asyncio.sleep(ASYNC_POLL_SECONDS)

    @asynccontextmanager
    async def listening(self):
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.listener.start()
            working = self.spawn(self._work_on())
            try:
                yield self
            finally:
                self.listener.cut()
                for _, writer in self.opened:
                    writer.close()
                await eventually(lambda: not self.sockets.protocols, "the end of all clients")
                working.cancel()
                await eventually(lambda: not self.tasks, "the end of tasks")
                self.stage.run()
        assert self.stage.reported == []

    async def passed(self, there, protocol="amqp", tls=None):
        """Return the streams of a client that another node has accepted."""
        connection, connecting = await accepted_client(tls)
        self.listener.take(protocol, connection, there)
        self.opened.append(await connecting)
        return self.opened[-1]


async def answered(client, data):
    """Return the method that answers some bytes."""
    reader, writer = client
    writer.write(data)
    head = await reader.readexactly(7)
    rest = await reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
    return frame.unmarshal(head + rest)[2]


async def begun(client):
    """Begin to shake hands; return the answer to the login of guest, who comes from nearby only."""
    assert (await answered(client, PROTOCOL_HEADER)).name == "Connection.Start"
    return await answered(client, LOGIN)


async def ends(client):
    """Assert that a client's connection ends without a word."""
    with suppress(ConnectionError):
        assert await client[0].read() == b""


@pytest.mark.parametrize(("there", "answer"), [(NEAR, "Connection.Tune"), (FAR, None)])
async def test_the_peer_is_the_one_at_the_other_node(there, answer):
    async with TakingListener().listening() as node:
        client = await node.passed(there)
        assert (await answered(client, PROTOCOL_HEADER)).name == "Connection.Start"
        (protocol,) = node.sockets.protocols
        assert protocol.endpoints == there
        assert protocol.peer == f"{there.peer_host}:{there.peer_port}"
        assert protocol.peer_is_loopback == (there is NEAR)
        client[1].write(LOGIN)
        if answer is None:
            await ends(client)
        else:
            assert (await answered(client, b"")).name == answer


@pytest.mark.parametrize(
    ("header", "peer"),
    [(b"PROXY TCP4 198.51.100.1 127.0.0.1 4000 5672\r\n", "198.51.100.1"), (None, "192.0.2.7")],
)
async def test_a_proxy_in_front_of_the_other_node_is_believed(header, peer):
    async with TakingListener(proxy_protocol=True).listening() as node:
        client = await node.passed(FAR)
        client[1].write(header or b"PROXY UNKNOWN\r\n")
        assert (await answered(client, PROTOCOL_HEADER)).name == "Connection.Start"
        assert [each.endpoints.peer_host for each in node.sockets.protocols] == [peer]


async def test_tls_is_between_the_client_and_this_node(tmp_path):
    make_certificates(tmp_path, ["127.0.0.1"], "guest", dt.datetime.now(dt.UTC), overwrite=True)
    files = {
        "tls_certificate_file": tmp_path / "server.pem",
        "tls_key_file": tmp_path / "server-key.pem",
    }
    tls = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    async with TakingListener(**files, tls_port=0).listening() as node:
        client = await node.passed(NEAR, "amqp/ssl", tls)
        assert (await begun(client)).name == "Connection.Tune"
        (protocol,) = node.sockets.protocols
        assert protocol.endpoints == replace(NEAR, is_secure=True)


async def test_a_port_that_there_is_not_here_takes_nobody():
    async with TakingListener().listening() as node:
        await ends(await node.passed(NEAR, "amqp/ssl"))
        assert node.sockets.protocols == set()


async def test_more_than_there_is_room_for_are_closed(monkeypatch):
    async with TakingListener().listening() as node:
        monkeypatch.setattr(node.sockets, "has_room", lambda: False)
        await ends(await node.passed(NEAR))
        assert node.sockets.arriving == 0


async def test_all_end_at_once_and_nobody_is_taken_after_that():
    async with TakingListener(proxy_protocol=True).listening() as node:
        silent = await node.passed(NEAR)
        client = await node.passed(NEAR)
        client[1].write(b"PROXY UNKNOWN\r\n")
        assert (await begun(client)).name == "Connection.Tune"
        await eventually(lambda: node.sockets.arriving == 1, "the silent one")
        node.listener.cut()
        await ends(silent)
        await ends(client)
        await ends(await node.passed(NEAR))
        await eventually(lambda: not node.sockets.arriving, "no one")
        assert node.sockets.protocols == set()


async def test_a_listener_that_stops_takes_nobody():
    async with TakingListener().listening() as node:
        node.listener.stop_reading()
        await ends(await node.passed(NEAR))
