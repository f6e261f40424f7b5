"""A node in a thread of this process: all of it, its sockets and its files, but no second Python.

tests/process.py starts one as a process, for what only that shows: signals, crashes, its output.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pika
import pytest
import uvloop

from leveret.config import Configuration
from leveret.node import node, serving
from leveret.node.process import Process
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from leveret.mgmt_ui.operations.runtime import Listener

SETTINGS = {"port": 0, "http_port": -1, "prometheus_port": -1, "durability": "os"}


class RunningNode:
    """Where a node is: its directory, and HOST:PORT by a listener's protocol."""

    def __init__(self, data_dir: Path, listeners: Sequence[Listener]) -> None:
        self.data_dir = data_dir
        self.addresses = {each.protocol: f"{each.host}:{each.port}" for each in listeners}
        self.port = int(self.addresses["amqp"].rpartition(":")[2])

    def connected(
        self, user: str = "guest", password: str = "guest", vhost: str = "/", **options: object
    ) -> pika.BlockingConnection:
        login = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, vhost, login, **options)
        )


@contextmanager
def node_in_thread(data_dir: Path, **settings: object) -> Iterator[RunningNode]:
    """Start a node, yield it, and stop it: it serves AMQP, and what the settings say."""
    configuration = Configuration(**{**SETTINGS, "data_dir": data_dir, **settings})
    ready: Future[Sequence[Listener]] = Future()
    processes: list[Process] = []
    with ThreadPoolExecutor(1, "node") as thread:
        with pytest.MonkeyPatch.context() as patched:  # signals and garbage are the tests' own
            patched.setattr(Process, "watch_signals", lambda *self: processes.extend(self))
            patched.setattr(serving, "start_collector", lambda _: None)
            patched.setattr(serving, "collect_garbage", lambda *_: asyncio.sleep(0))
            patched.setattr(
                serving, "tell_ready", lambda listeners, *_: ready.set_result(listeners)
            )
            work = node._run(configuration, Mock(), time.monotonic())
            running = thread.submit(uvloop.run, work)
            wait((ready, running), LIMIT_SECONDS, FIRST_COMPLETED)
        assert not running.done(), running.result()
        try:
            yield RunningNode(data_dir, ready.result(0))
        finally:
            processes[0].loop.call_soon_threadsafe(processes[0].stopping.set)
            assert running.result(LIMIT_SECONDS) == 0
