"""Nodes as processes that register, die, stand still and come back, and the proxy before them."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from tests.cluster_processes.launcher import CHROOT, LocalCluster
from tests.cluster_processes.proxy import RoundRobinProxy
from tests.support.waiting import PATIENCE_SECONDS, wait_until

NODES = f"{CHROOT}/leveret/nodes"


class Registrations:
    """The nodes that ZooKeeper knows."""

    def __init__(self, address):
        self._client = KazooClient(address, timeout=10)
        self._client.start()

    def close(self):
        self._client.stop()
        self._client.close()

    def session(self, node):
        """The session of a node, None while it is not registered."""
        with suppress(NoNodeError, SessionExpiredError, ConnectionLoss):
            return json.loads(self._client.get(f"{NODES}/{node}")[0])["session"]
        return None

    def get(self, node):
        return json.loads(self._client.get(f"{NODES}/{node}")[0])

    @property
    def nodes(self):
        with suppress(SessionExpiredError, ConnectionLoss):  # this client's own, not the nodes'
            return sorted(map(int, self._client.get_children(NODES)))
        return []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def registered(cluster):
    registrations = Registrations(cluster.zookeeper.address)
    yield registrations
    registrations.close()


def test_all_nodes_register_with_what_they_were_told(cluster, registered):
    assert registered.nodes == [1, 2, 3]
    for number, node in cluster.nodes.items():
        told = registered.get(number)
        assert told["rack"] == f"rack-{number}"
        assert told["peer_address"] == f"127.0.0.1:{node.ports.links}"
        assert told["client_address"] == f"127.0.0.1:{node.ports.amqp}"
    assert len(set(cluster.live_addresses())) == 3


def test_all_nodes_are_linked_with_each_other(cluster):
    for number, node in cluster.nodes.items():
        for other in cluster.nodes.keys() - {number}:
            text = f"connected with node {other} at"
            wait_until(lambda node=node, text=text: text in node.log.read_text())


def test_a_node_that_was_killed_is_gone_and_comes_back(cluster, registered):
    node = cluster.nodes[2]
    session = registered.session(2)
    node.kill()
    assert not node.is_running
    assert node.amqp not in cluster.live_addresses()
    wait_until(lambda: registered.nodes == [1, 3])
    node.start()
    assert registered.session(2) == session + 1
    assert registered.get(2)["incarnation"] == 0
    node.restart()
    assert registered.session(2) == session + 2
    assert len(cluster.live_addresses()) == 3


def test_a_node_that_stands_still_is_gone_until_it_goes_on(cluster, registered):
    node = cluster.nodes[3]
    session = registered.session(3)
    node.pause()
    assert node.is_running
    assert not node.is_live
    wait_until(lambda: registered.nodes == [1, 2])
    node.resume()
    wait_until(lambda: registered.nodes == [1, 2, 3])
    assert registered.session(3) == session


def test_nodes_outlive_zookeeper(cluster, registered):
    sessions = [registered.session(number) for number in (1, 2, 3)]
    cluster.stop_zookeeper()
    time.sleep(cluster.session_timeout_ms / 1000)
    cluster.start_zookeeper()
    wait_until(lambda: registered.nodes == [1, 2, 3])
    wait_until(lambda: [registered.session(number) for number in (1, 2, 3)] == sessions)
    assert len(cluster.live_addresses()) == 3


def test_a_node_that_is_stopped_ends_its_session_itself(tmp_path):
    # Its session would expire after the patience of `wait_until` only, and load does not break it.
    with LocalCluster(tmp_path, 1, session_timeout_ms=5 * 60 * 1000) as cluster:
        registrations = Registrations(cluster.zookeeper.address)
        try:
            assert registrations.nodes == [1]
            assert cluster.nodes[1].stop() == 0
            wait_until(lambda: registrations.nodes == [])
        finally:
            registrations.close()


def test_a_node_that_does_not_start_says_why(tmp_path):
    cluster = LocalCluster(tmp_path, 1, arguments=["--durability", "never"])
    cluster.secret.write_text("a secret of all the nodes")
    cluster.zookeeper.directory.mkdir()
    try:
        with pytest.raises(AssertionError, match=r"node 1 does not start:(.|\n)*--durability"):
            cluster.nodes[1].start()
    finally:
        cluster.kill()


def test_the_command_runs_a_cluster_until_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "tests.cluster_processes", "--port", "0", "--nodes", "2"]
    with subprocess.Popen(
        [*command, str(tmp_path / "cluster")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            told = "".join(lines)
            processes = [int(each) for each in re.findall(r"^node \d, process (\d+)", told, re.M)]
            assert len(processes) == 2, told
            assert all(Path(f"/proc/{each}").exists() for each in processes)
            uri = re.search(r"AMQP by the proxy: (\S+)", told)[1]
            with pika.BlockingConnection(pika.URLParameters(f"{uri}%2F")) as connection:
                assert connection.channel().queue_declare("", exclusive=True).method.queue
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert rest == "stopping\n"
            assert process.returncode == 0
            assert not any(Path(f"/proc/{each}").exists() for each in processes)
        finally:
            process.kill()


class NamedServer:
    """A server that says its name, and then repeats what it hears."""

    def __init__(self, name):
        self.name = name

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[:2]

    def stop(self):
        self._server.close()

    async def _serve(self, reader, writer):
        writer.write(self.name)
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()


async def ask(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"!")
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_proxy_takes_the_servers_in_turn_and_passes_over_those_that_are_gone():
    servers = {await server.start(): server for server in map(NamedServer, (b"a", b"b", b"c"))}
    proxy = RoundRobinProxy(lambda: list(servers))
    address = await proxy.start("127.0.0.1", 0)
    assert [await ask(address) for _ in range(4)] == [b"a!", b"b!", b"c!", b"a!"]
    list(servers.values())[1].stop()
    assert {await ask(address) for _ in range(6)} == {b"a!", b"c!"}
    reader, writer = await asyncio.open_connection(*address)
    assert await reader.read(1) in {b"a", b"c"}
    await proxy.close()
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    for server in servers.values():
        server.stop()


async def test_without_a_server_the_proxy_hangs_up():
    proxy = RoundRobinProxy(list)
    address = await proxy.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*address)
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await proxy.close()
