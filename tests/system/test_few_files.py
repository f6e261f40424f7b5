"""A whole node that may have few files open: queues beyond their number, clients, and operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

from tests.harness.broker import BrokerProcess
from tests.harness.wire import Client
from tests.support.waiting import LIMIT_SECONDS

FILES_MAX = 256
QUEUES = 3 * FILES_MAX
SETTINGS = {"tail_cache_bytes_max": 1 << 20, "resource_check_interval_ms": 50}


def name(number: int) -> str:
    return f"q{number}"


@pytest.fixture
def node(tmp_path, processes):
    with BrokerProcess(tmp_path / "data", files_max=FILES_MAX, **SETTINGS) as node:
        yield node


def open_files(node: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{node.popen.pid}/fd").iterdir()))


def take_all(client: Client) -> list[bytes]:
    """One message out of each queue, in the order of their numbers."""
    for number in range(QUEUES):
        client.consume(name(number))
    bodies = {delivery.body for delivery in client.deliveries(QUEUES)}
    return sorted(bodies, key=int)


def connect_until_refused(port: int, kept: ExitStack) -> list[Client]:
    clients: list[Client] = []
    while len(clients) < FILES_MAX:
        try:
            clients.append(kept.enter_context(Client(port)))
        except (ConnectionError, TimeoutError):
            break
    return clients


def listed_connections(node: BrokerProcess) -> list[dict[str, object]]:
    """Return the connections that an operator's command lists."""
    listed = subprocess.run(
        [sys.executable, "-m", "leveret", "connection", "list", "--json"],
        env={**os.environ, "LEVERET_DATA_DIR": str(node.data)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert listed.returncode == 0, listed.stderr
    return json.loads(listed.stdout)


@pytest.mark.smoke
def test_more_queues_than_files_keep_what_they_confirmed(node):
    with Client(node.port).confirming() as client:
        for number in range(QUEUES):
            client.declare(name(number))
        for number in range(QUEUES):
            client.publish(name(number), [b"%d" % number])
        client.await_confirms(QUEUES)
    assert open_files(node) < FILES_MAX
    node.kill()
    node.start()
    with Client(node.port) as client:
        assert take_all(client) == [b"%d" % number for number in range(QUEUES)]
    assert open_files(node) < FILES_MAX
    node.check_untroubled()


def test_clients_leave_files_to_queues_and_operators(node):
    """Peers that connect without end are refused; those who are in, and operators, go on."""
    with ExitStack() as kept:
        clients = connect_until_refused(node.port, kept)
        assert FILES_MAX // 4 < len(clients) < FILES_MAX
        publisher = clients[0].confirming()
        for number in range(QUEUES):
            publisher.declare(name(number))
            publisher.publish(name(number), [b"%d" % number])
        publisher.await_confirms(QUEUES)
        assert len(listed_connections(node)) == len(clients)
        assert open_files(node) < FILES_MAX
    with Client(node.port) as client:  # those who have gone have made room
        assert client.call(1, commands.Queue.Declare(queue=name(0), passive=True)).message_count
    node.check_untroubled()
