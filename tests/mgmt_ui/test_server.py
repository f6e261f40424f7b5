"""The management port of a whole node, and its beginning and end."""

import asyncio
import contextlib
import re
import signal
import socket
from asyncio import TaskGroup
from base64 import b64encode

import pytest
import uvicorn

from leveret.errors import LeveretError, StorageError
from leveret.mgmt_ui import http_connections, web
from leveret.mgmt_ui.server import ManagementServer, MetricsServer
from tests.harness.broker import BrokerProcess
from tests.process import node_addresses
from tests.support.http import HttpClient, http_text
from tests.support.site import Site
from tests.support.waiting import LIMIT_SECONDS, eventually, wait_until


def get(address, path, user="guest"):
    """Status and JSON."""
    with HttpClient(address, user) as client:
        answer = client.get(path)
        return answer.status_code, answer.json()


@contextlib.asynccontextmanager
async def serving(server):
    """The port of a server whose node has nothing to manage."""
    listener = await server.open("127.0.0.1", 0)
    await server.load(Site().node)
    async with TaskGroup() as group:
        group.create_task(server.serve())
        await server.answering()
        yield listener.port
        await server.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_node_answers_as_soon_as_it_is_ready_and_stops_cleanly(tmp_path):
    with node_addresses(tmp_path, http=True, metrics=True) as addresses:
        http, amqp_port = addresses["http"], int(addresses["amqp"].rpartition(":")[2])
        status, overview = get(http, "/api/overview")
        assert status == 200
        assert {(x["protocol"], x["port"]) for x in overview["listeners"]} == {
            ("amqp", amqp_port),
            ("http", int(http.rpartition(":")[2])),
            ("http/prometheus", int(addresses["prometheus"].rpartition(":")[2])),
        }
        assert get(http, "/api/health/checks/is-in-service", None) == (200, {"status": "ok"})
        assert get(http, "/api/queues/%2F") == (200, [])
        assert get(http, "/api/whoami", None)[0] == 401
        # A client that keeps its connection open must not keep the node from stopping.
        host, _, port = http.rpartition(":")
        lingering = socket.create_connection((host, int(port)))
    lingering.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_node_that_stops_while_it_loads_stops_cleanly(tmp_path):
    broker = BrokerProcess(tmp_path / "data", http=True)
    broker.launch()
    wait_until(lambda: "AMQP clients are served" in broker.log(), "AMQP before HTTP")
    broker.stop()
    broker.check_untroubled()


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_metrics_have_a_port_of_their_own(tmp_path):
    with node_addresses(tmp_path, metrics=True) as addresses:
        assert "http" not in addresses
        assert "rabbitmq_identity_info{" in http_text(f"http://{addresses['prometheus']}/metrics")


@pytest.mark.parametrize(
    ("server", "limit"),
    [(ManagementServer, "HTTP_CONNECTIONS_MAX"), (MetricsServer, "SCRAPERS_MAX")],
)
async def test_silent_connections_keep_nobody_out(monkeypatch, server, limit):
    monkeypatch.setattr(web, limit, 2)
    request = b"GET /api HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    async with asyncio.timeout(LIMIT_SECONDS), serving(server()) as port, TaskGroup() as tasks:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        ends = [tasks.create_task(end_of(reader)) for reader, _ in opened]
        await eventually(lambda: sum(end.done() for end in ends) == 98, "98 closed connections")
        for _ in range(3):
            assert b" 404 " in await ask(port, request)
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize("how", ["password", "session"])
async def test_who_has_logged_in_keeps_the_connection(monkeypatch, how):
    monkeypatch.setattr(web, "HTTP_CONNECTIONS_MAX", 2)
    guest = f"authorization: Basic {b64encode(b'guest:guest').decode()}"
    async with asyncio.timeout(LIMIT_SECONDS), serving(ManagementServer()) as port:
        if how == "session":
            form = "username=guest&password=guest"
            head = f"POST /api/login HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(form)}"
            told = await ask(port, f"{head}\r\nconnection: close\r\n\r\n{form}".encode())
            found = re.search(rb"set-cookie: ([^;]+);", told)
            guest = f"cookie: {found[1].decode()}"
        request = f"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n{guest}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(request)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
            others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            assert b" 404 " in await ask(
                port, b"GET /api HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
            for _, other in others:
                other.close()
        writer.close()


async def end_of(reader):
    """Wait until the server, or the client itself, has closed the connection."""
    with contextlib.suppress(ConnectionError):
        await reader.read()


async def test_uvicorn_leaves_signals_to_the_node():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    request = b"GET /api HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    async with serving(ManagementServer()) as port:
        assert b" 404 " in await ask(port, request)
        assert {number: signal.getsignal(number) for number in handlers} == handlers


async def test_port_that_is_taken_is_named():
    first, second = ManagementServer(), ManagementServer()
    taken = await first.open("127.0.0.1", 0)
    problem = (
        f"cannot listen for http on 127.0.0.1:{taken.port}: Address already in use; free the "
        "address or choose another one (http_host, http_port)"
    )
    with pytest.raises(LeveretError, match=f"^{re.escape(problem)}$"):
        await second.open("127.0.0.1", taken.port)
    await first.close()
    await second.open("127.0.0.1", taken.port)
    await second.close()


async def test_every_address_of_a_host_has_the_same_port():
    server = ManagementServer()
    listener = await server.open("localhost", 0)
    addresses = await asyncio.get_running_loop().getaddrinfo(
        "localhost", listener.port, type=socket.SOCK_STREAM
    )
    assert addresses
    for *_, address in addresses:
        socket.create_connection(address[:2]).close()
    await server.close()


async def test_node_is_not_ready_with_a_server_that_fails(monkeypatch):
    async def fail(*_):
        raise OSError("no")

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    server = ManagementServer()
    await server.open("127.0.0.1", 0)
    await server.load(Site().node)
    with pytest.raises(OSError, match="no"):
        await server.serve()
    with pytest.raises(StorageError, match="the port of http_port does not answer"):
        await server.answering()
    await server.close()


async def test_server_closed_before_it_serves_never_does():
    server = ManagementServer()
    listener = await server.open("127.0.0.1", 0)
    await server.load(Site().node)
    await server.close()
    await server.serve()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", listener.port))


@pytest.mark.parametrize("server", [ManagementServer, MetricsServer])
async def test_rebound_name_gets_nothing_from_a_node_with_default_password(server):
    request = b"GET /api/whoami HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n"
    async with serving(server()) as port:
        guest = b"authorization: Basic " + b64encode(b"guest:guest")
        assert b" 403 " in await ask(port, request + guest + b"\r\n\r\n")


@pytest.fixture
async def port():
    async with serving(ManagementServer()) as port:
        yield port


async def ask(port, *pieces):
    """All that comes back until the server hangs up; the pieces are sent a moment apart."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.02)
            await writer.drain()
        answer = await reader.read()
    writer.close()
    return answer


async def test_who_does_not_ask_in_time_is_closed(port, monkeypatch):
    monkeypatch.setattr(http_connections, "REQUEST_SECONDS_MAX", 0.1)
    assert await ask(port) == b""
    # A byte now and then wins no time.
    assert await ask(port, *[b"G"] * 20) == b""
    answer = await ask(port, b"GET /api HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 ")


async def test_requests_in_a_row_are_answered_in_a_row(port, monkeypatch):
    monkeypatch.setattr(http_connections, "REQUEST_SECONDS_MAX", 0.1)
    answer = await ask(port, b"GET /api HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 404 ") == 3


async def test_what_is_not_http_is_refused(port, caplog):
    for nonsense in (
        b"AMQP\x00\x00\x09\x01\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x00" * 100_000,
    ):
        assert (await ask(port, nonsense)).startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in caplog.text
