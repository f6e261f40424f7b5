"""Real ZooKeeper servers on loopback, alone or three together, in directories of a test's.

They are Debian's package `libzookeeper-java`, which `make verify` installs. A tick is 500 ms, so
that sessions may have one second or more.
"""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING

from examples.cluster.zookeeper import HOST, ZooKeeper
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ZooKeeperServer(ZooKeeper):
    """One server, which is not started yet, and which can be stopped for a while."""

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def running_server(directory: Path, more: str = "") -> Iterator[ZooKeeperServer]:
    """Start one server, and stop it."""
    server = ZooKeeperServer(directory / "zookeeper", free_ports(1)[0], more)
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop()


class Ensemble:
    """Three servers. Each connects to the leader through relays of its own: `links`.

    `links[n]` are those of server n to each of the two others.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        ports = free_ports(9)
        client, peer, election = ports[:3], ports[3:6], ports[6:]
        self.links = [
            [stack.enter_context(relay(peer[other])) for other in range(3) if other != number]
            for number in range(3)
        ]
        self.servers = []
        for number in range(3):
            seen = list(peer)
            links = iter(self.links[number])
            for other in range(3):
                if other != number:
                    seen[other] = next(links).port
            more = "".join(
                f"server.{one + 1}={HOST}:{seen[one]}:{election[one]}\n" for one in range(3)
            )
            server = ZooKeeperServer(directory / f"zookeeper{number}", client[number], more)
            (directory / f"zookeeper{number}" / "myid").write_text(str(number + 1))
            stack.callback(server.stop)
            self.servers.append(server)

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()

    def follower(self) -> int:
        """Return the number of a server that does not lead."""
        return next(number for number in range(3) if self.servers[number].mode == "follower")


@contextmanager
def running_ensemble(directory: Path) -> Iterator[Ensemble]:
    """Start three servers, and stop them."""
    with ExitStack() as stack:
        ensemble = Ensemble(directory, stack)
        ensemble.start()
        yield ensemble


class Relay:
    """A port from which everything is passed on to another, in threads, until it is cut.

    `is_open`: connections are made; `passes_requests`, `passes_answers`: bytes go through. What is
    not passed on is lost for good.
    """

    def __init__(self, target: int) -> None:
        self.is_open = self.passes_requests = self.passes_answers = True
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: set[socket.socket] = set()
        self._lock = Lock()
        Thread(target=self._accept, daemon=True).start()

    @property
    def is_used(self) -> bool:
        return bool(self._connections)

    def cut(self) -> None:
        """End all connections, and refuse others."""
        self.is_open = False
        self._end_connections()

    def swallow(self) -> None:
        """Let the connections be, and lose what is sent either way."""
        self.passes_requests = self.passes_answers = False

    def heal(self) -> None:
        """Pass on what comes. Connections that have lost something are ended."""
        if not (self.passes_requests and self.passes_answers):
            self._end_connections()
        self.is_open = self.passes_requests = self.passes_answers = True

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _end_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_open:
                client.close()
                continue
            try:
                server = socket.create_connection((HOST, self._target), 5)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._connections |= {client, server}
            ends = [client, server]
            for source, target, flag in (
                (client, server, "passes_requests"),
                (server, client, "passes_answers"),
            ):
                Thread(target=self._pass, args=(source, target, flag, ends), daemon=True).start()
            if not self.is_open:
                self._end_connections()

    def _pass(
        self, source: socket.socket, target: socket.socket, flag: str, ends: list[socket.socket]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if getattr(self, flag):
                    target.sendall(data)
        with self._lock:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            ends.remove(source)  # the thread that ends last closes both
            if not ends:
                for end in (source, target):
                    self._connections.discard(end)
                    end.close()


@contextmanager
def relay(target: int) -> Iterator[Relay]:
    """Pass on connections to a port, until the end."""
    made = Relay(target)
    try:
        yield made
    finally:
        made.close()
