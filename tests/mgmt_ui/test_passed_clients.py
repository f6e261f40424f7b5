"""HTTP clients that another node has accepted: their ends are those at that node."""

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from base64 import b64encode

import pytest

from leveret.cli.certs import make_certificates
from leveret.core.clients import Endpoints
from leveret.mgmt_ui.http_connections import (
    CONNECTION,
    HttpConnection,
    HttpConnections,
    PassedTransport,
)
from leveret.mgmt_ui.server import ManagementServer, SecureManagementServer
from tests.support.accepted import accepted_client
from tests.support.site import Site
from tests.support.waiting import LIMIT_SECONDS, eventually

NEAR = Endpoints("127.0.0.1", 40_000, "127.0.0.1", 15_672)
FAR = Endpoints("192.0.2.7", 40_000, "192.0.2.8", 15_672)
GUEST = f"authorization: Basic {b64encode(b'guest:guest').decode()}"
WHO_AM_I = f"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n{GUEST}\r\n".encode()
LAST = b"connection: close\r\n\r\n"


class OwnTransport(asyncio.Transport):
    """Transport between two nodes."""

    def __init__(self):
        super().__init__(
            {"peername": ("10.0.0.2", 1), "sockname": ("10.0.0.1", 2), "socket": self, "x": "y"}
        )
        self.written = b""
        self.is_aborted = False

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.is_aborted

    def abort(self):
        self.is_aborted = True


class InnerProtocol(asyncio.Protocol):
    """Protocol of a server, which looks at its transport."""

    def connection_made(self, transport):
        self.peer = transport.get_extra_info("peername")


def test_a_transport_of_a_passed_client_tells_the_ends_there():
    own = OwnTransport()
    passed = PassedTransport(own, FAR)
    assert passed.get_extra_info("peername") == ("192.0.2.7", 40_000)
    assert passed.get_extra_info("sockname") == ("192.0.2.8", 15_672)
    assert passed.get_extra_info("socket", "default") is None
    assert passed.get_extra_info("x") == "y"
    assert passed.get_extra_info("z", "default") == "default"
    passed.write(b"data")
    assert own.written == b"data"
    passed.abort()
    assert passed.is_closing()


async def test_a_connection_is_its_clients_there():
    inner = InnerProtocol()
    asked = []

    async def app(scope, _, send):
        asked.append(scope["client"])
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    connections = HttpConnections(app, 1)
    connection = HttpConnection(connections, inner, FAR)
    own = OwnTransport()
    connection.connection_made(own)
    assert connection.source == "192.0.2.7"
    assert inner.peer == ("192.0.2.7", 40_000)
    sent = []

    async def send(message):
        sent.append(message["type"])

    scope = {"client": ("192.0.2.7", 40_000), "state": {CONNECTION: connection}}
    await connections(scope, None, send)
    assert sent == ["http.response.start", "http.response.body"]
    connection.cut()
    assert own.is_aborted
    connection.connection_lost(None)
    await connections(scope, None, send)  # its client is gone
    assert asked == [scope["client"]]
    assert connections._open == {}


@contextlib.asynccontextmanager
async def serving(server):
    """Have a server answer on a port that no client knows."""
    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
        await server.open("127.0.0.1", 0)
        await server.load(Site().node)
        tasks.create_task(server.serve())
        await server.answering()
        yield server
        await server.close()


async def pass_to(server, there, tls=None):
    """Return the streams of a client that another node has accepted."""
    accepted, connecting = await accepted_client(tls)
    await server.take(accepted, there)
    return await connecting


async def ask(client, request):
    """Return all that comes back until the server hangs up."""
    reader, writer = client
    writer.write(request)
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    return answer


async def test_guest_is_known_by_where_the_client_came_from():
    async with serving(ManagementServer()) as server:
        near = await ask(await pass_to(server, NEAR), WHO_AM_I + LAST)
        assert near.startswith(b"HTTP/1.1 200 ")
        far = await ask(await pass_to(server, FAR), WHO_AM_I + LAST)
        assert far.startswith(b"HTTP/1.1 401 ")
        assert b"User can only log in via localhost" in far


async def test_requests_in_a_row_of_several_clients():
    async with serving(ManagementServer()) as server:
        # Some of different nodes may well have the same ends there.
        theirs = [Endpoints("127.0.0.1", port // 2, "127.0.0.1", 15_672) for port in range(5)]
        clients = [await pass_to(server, there) for there in theirs]
        connections = server._web._connections
        assert len(connections._open) == 5
        for client in clients:
            answer = await ask(client, 2 * (WHO_AM_I + b"\r\n") + WHO_AM_I + LAST)
            assert answer.count(b"HTTP/1.1 200 ") == 3
        await eventually(lambda: not connections._open, "the end of all")


async def test_tls_is_between_the_client_and_this_node(tmp_path):
    make_certificates(tmp_path, ["127.0.0.1"], "guest", dt.datetime.now(dt.UTC), overwrite=True)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "server.pem", tmp_path / "server-key.pem")
    client_tls = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    async with serving(SecureManagementServer(own)) as server:
        client = await pass_to(server, NEAR, client_tls)
        assert (await ask(client, WHO_AM_I + LAST)).startswith(b"HTTP/1.1 200 ")


async def test_what_is_no_tls_is_closed(tmp_path, caplog):
    make_certificates(tmp_path, ["127.0.0.1"], "guest", dt.datetime.now(dt.UTC), overwrite=True)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "server.pem", tmp_path / "server-key.pem")
    caplog.set_level("INFO")
    ours, theirs = socket.socketpair()
    async with serving(SecureManagementServer(own)) as server:
        with theirs:
            theirs.send(WHO_AM_I + LAST)
            ours.setblocking(False)
            await server.take(ours, FAR)
    assert any("the connection of 192.0.2.7 has ended: " in line for line in caplog.messages)


async def test_a_server_that_is_not_ready_takes_nobody():
    server = ManagementServer()
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(LIMIT_SECONDS)
        await server.take(ours, NEAR)
        assert theirs.recv(1) == b""


@pytest.mark.parametrize("there", [NEAR, FAR])
async def test_who_does_not_ask_in_time_is_closed(monkeypatch, there):
    monkeypatch.setattr("leveret.mgmt_ui.http_connections.REQUEST_SECONDS_MAX", 0.05)
    async with serving(ManagementServer()) as server:
        assert await ask(await pass_to(server, there), b"G") == b""
