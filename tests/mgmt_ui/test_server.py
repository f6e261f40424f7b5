"""The management port of a whole node, and its beginning and end."""

import asyncio
import json
import socket
import urllib.error
import urllib.request

import pytest

from leveret.errors import StorageError
from leveret.mgmt_ui.server import ManagementServer
from tests.process import node_addresses

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
        }
        assert get(http, "/api/health/checks/is-in-service", {}) == (200, {"status": "ok"})
        assert get(http, "/api/queues/%2F") == (200, [])
        assert get(http, "/api/whoami", {})[0] == 401
        # A client that keeps its connection open must not keep the node from stopping.
        host, _, port = http.rpartition(":")
        lingering = socket.create_connection((host, int(port)))
    lingering.close()


def test_node_that_stops_while_it_loads_stops_cleanly(tmp_path):
    with node_addresses(tmp_path):
        pass


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
    for *_, address in await asyncio.get_running_loop().getaddrinfo(
        "localhost", listener.port, type=socket.SOCK_STREAM
    ):
        socket.create_connection(address[:2]).close()
    await server.close()


async def test_server_closed_before_it_serves_never_does():
    server = ManagementServer()
    listener = await server.open("127.0.0.1", 0)
    await server.close()
    await server.serve(None)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", listener.port))
