"""A node that tests start, kill, and start again on the same ports and data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import (
    HTTPBasicAuthHandler,
    HTTPPasswordMgrWithDefaultRealm,
    Request,
    build_opener,
)

import pika

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STOP_SECONDS_MAX = 30


class Node:
    """One node, with its data in `directory`; `settings` are environment variables for it."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._environment = {**os.environ, **(settings or {})}
        self.amqp_port, self.http_port = free_port(), free_port()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the node and wait until it is ready."""
        command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(self.directory)]
        command += ["--port", str(self.amqp_port), "--http-port", str(self.http_port)]
        command += ["--prometheus-port", "-1"]
        with (self.directory / "node.log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        ready = self._process.stdout.readline()
        assert ready.startswith("ready "), ready

    def stop(self) -> None:
        """Stop the node as an operator would."""
        self._process.terminate()
        assert self._process.wait(STOP_SECONDS_MAX) == 0
        self._process.stdout.close()

    def kill(self) -> None:
        """Kill the node."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    @contextmanager
    def running(self) -> Iterator[Node]:
        """Start the node, yield it, and stop it."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    @property
    def server(self) -> str:
        """Address of its management port, as the option `servers` has it."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def parameters(self) -> pika.ConnectionParameters:
        """Parameters of a connection of pika."""
        return pika.ConnectionParameters("127.0.0.1", self.amqp_port)

    def ask(self, method: str, path: str, body: object = None) -> object:
        """Return the answer to a request to its HTTP API."""
        passwords = HTTPPasswordMgrWithDefaultRealm()
        url = f"http://{self.server}/api/{path}"
        passwords.add_password(None, url, "guest", "guest")
        data = None if body is None else json.dumps(body).encode()
        request = Request(url, data, {"content-type": "application/json"}, method=method)
        with build_opener(HTTPBasicAuthHandler(passwords)).open(request) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def set_partitions(self, topic: str, number: int) -> None:
        """Change the number of a topic's partitions."""
        self.ask("PUT", f"leveret/topics/%2F/{topic}/partitions", {"count": number})
