"""The management port of a whole node, and its beginning and end."""

import asyncio
import contextlib
import json
import signal
import socket
import urllib.error
import urllib.request

import pytest

from leveret.errors import StorageError
from leveret.mgmt_ui import http_connections, web
from leveret.mgmt_ui.http_connections import AnswerCutError
from leveret.mgmt_ui.server import ManagementServer, MetricsServer
from tests.process import node_addresses
from tests.support.site import Site

GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


def get(address, path, headers=GUEST):
    """Status and JSON."""
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_node_answers_as_soon_as_it_is_ready_and_stops_cleanly(tmp_path):
    with node_addresses(tmp_path) as addresses:
        http, amqp_port = addresses["http"], int(addresses["amqp"].rpartition(":")[2])
        status, overview = get(http, "/api/overview")
        assert status == 200
        assert {(x["protocol"], x["port"]) for x in overview["listeners"]} == {
            ("amqp", amqp_port),
            ("http", int(http.rpartition(":")[2])),
            ("http/prometheus", int(addresses["prometheus"].rpartition(":")[2])),
        }
        assert get(http, "/api/health/checks/is-in-service", {}) == (200, {"status": "ok"})
        assert get(http, "/api/queues/%2F") == (200, [])
        assert get(http, "/api/whoami", {})[0] == 401
        # A client that keeps its connection open must not keep the node from stopping.
        host, _, port = http.rpartition(":")
        lingering = socket.create_connection((host, int(port)))
    lingering.close()


def test_node_that_stops_while_it_loads_stops_cleanly(tmp_path):
    with node_addresses(tmp_path) as addresses:
        assert "http" in addresses  # it listens, and loads its libraries now


def test_metrics_have_a_port_of_their_own(tmp_path):
    with node_addresses(tmp_path) as addresses:
        url = f"http://{addresses['prometheus']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            assert b"rabbitmq_identity_info{" in response.read()


async def test_scrapers_are_few(monkeypatch):
    monkeypatch.setattr(web, "SCRAPERS_MAX", 2)
    server = MetricsServer()
    listener = await server.open("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(Site().node))
        _, idle = await asyncio.open_connection("127.0.0.1", listener.port)
        assert b" 503 " in await ask(listener.port, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        idle.close()
        await server.close()


@pytest.mark.parametrize(
    ("server", "limit"),
    [(ManagementServer, "HTTP_CONNECTIONS_MAX"), (MetricsServer, "SCRAPERS_MAX")],
)
async def test_connections_are_not_without_number(monkeypatch, server, limit):
    monkeypatch.setattr(web, limit, 2)
    monkeypatch.setattr(http_connections, "REFUSED_MAX", 2)
    request = b"GET /api HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    server = server()
    listener = await server.open("127.0.0.1", 0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:  # who is let in may stay for ten
        group.create_task(server.serve(Site().node))
        opened = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(100)]
        held = [writer for reader, writer in opened if not await is_closed(reader, writer)]
        assert len(held) == 4
        assert await ask(listener.port, request) == b""
        held[0].close()
        await asyncio.sleep(0.05)
        assert b" 503 " in await ask(listener.port, request)
        for writer in held[1:]:
            writer.close()
        await asyncio.sleep(0.05)
        assert b" 404 " in await ask(listener.port, request)
        await server.close()


async def is_closed(reader, writer):
    """Whether the server hangs up at once; so does the client, then."""
    with contextlib.suppress(ConnectionError):
        try:
            async with asyncio.timeout(0.2):
                await reader.read()
        except TimeoutError:
            return False
    writer.close()
    return True


def test_node_tells_no_metrics_if_it_shall_not(tmp_path):
    with node_addresses(tmp_path, "--prometheus-port", "-1") as addresses:
        assert "prometheus" not in addresses


async def test_uvicorn_leaves_signals_to_the_node():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    request = b"GET /api HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    server = ManagementServer()
    listener = await server.open("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(Site().node))
        assert b" 404 " in await ask(listener.port, request)
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        await server.close()


async def test_an_answer_that_is_cut_is_not_taken_for_whole(monkeypatch, caplog):
    async def cut(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a part", "more_body": True})
        raise AnswerCutError

    monkeypatch.setattr(web, "create_app", lambda _node: cut)
    server = ManagementServer()
    listener = await server.open("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(Site().node))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        told = b""
        with contextlib.suppress(ConnectionError):
            told = await reader.read(-1)
        writer.close()
        await server.close()
    assert not told.endswith(b"0\r\n\r\n")
    assert not caplog.records, "the server calls nothing a mistake"


async def test_port_that_is_taken_is_named():
    first, second = ManagementServer(), ManagementServer()
    taken = await first.open("127.0.0.1", 0)
    with pytest.raises(StorageError, match=rf"127\.0\.0\.1:{taken.port} \(http_port\)"):
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


async def test_server_closed_before_it_serves_never_does():
    server = ManagementServer()
    listener = await server.open("127.0.0.1", 0)
    await server.close()
    await server.serve(None)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", listener.port))


@pytest.fixture
async def port():
    """Of a server whose node has nothing to manage."""
    server = ManagementServer()
    listener = await server.open("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(Site().node))
        yield listener.port
        await server.close()


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
