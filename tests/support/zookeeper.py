"""A ZooKeeper of its own on loopback, and a relay before it that cuts connections."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ports import free_port, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

TICK_MS = 200  # sessions last two ticks at least: short ones, so that tests need not wait long
START_SECONDS_MAX = 60  # Java, on a machine with other work
DEBIAN_JARS = Path("/usr/share/java")


def classpath() -> str:
    """Return where ZooKeeper's classes are: in Debian's library, else among pyspark's jars."""
    if (DEBIAN_JARS / "zookeeper.jar").exists():
        return f"{DEBIAN_JARS}/*"
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None, "no ZooKeeper: `make test` installs libzookeeper-java"
    return f"{Path(pyspark.origin).parent}/jars/*"


class ZooKeeperServer:
    """One ZooKeeper process; its data stay when it is killed and started again."""

    def __init__(self, directory: Path, *options: str, **settings: object) -> None:
        """`options` are Java's, `settings` go into zoo.cfg."""
        self.directory = directory
        self.options = options
        self.port = free_port()
        self.settings = settings
        self.process: subprocess.Popen | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        self.directory.mkdir(exist_ok=True)
        settings = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": 10 * 60 * 1000,  # not 20 ticks: some sessions outlive their test
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "srvr",
            **self.settings,
        }
        configuration = self.directory / "zoo.cfg"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # A flush for each write would make tests wait for a disk that others use, too.
        command += ["-Dzookeeper.forceSync=no", *self.options]
        command += ["-cp", classpath()]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]
        with (self.directory / "log").open("ab") as log:
            # In a group of its own: an interrupt from the terminal is not for ZooKeeper.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.directory, process_group=0
            )

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
            ):
                connection.sendall(b"srvr")  # a member of an ensemble refuses it without a leader
                if b"Mode: " in connection.recv(4096):
                    return
            time.sleep(0.05)
        raise AssertionError((self.directory / "log").read_text(errors="replace")[-4000:])

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running_zookeeper(
    directory: Path, *options: str, **settings: object
) -> Iterator[ZooKeeperServer]:
    """Start a ZooKeeper, and kill it in the end."""
    server = ZooKeeperServer(directory, *options, **settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def running_ensemble(directory: Path) -> Iterator[list[ZooKeeperServer]]:
    """Start three servers that elect a leader, and kill them in the end."""
    numbers = (1, 2, 3)
    ports = free_ports(6)
    members = {
        f"server.{number}": f"127.0.0.1:{ports[number - 1]}:{ports[number + 2]}"
        for number in numbers
    }
    servers = [
        ZooKeeperServer(directory / str(number), initLimit=50, syncLimit=10, **members)
        for number in numbers
    ]
    try:
        for number, server in zip(numbers, servers, strict=True):
            (server.directory / "data").mkdir(parents=True)
            (server.directory / "data" / "myid").write_text(str(number))
            server.launch()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()


class Relay:
    """Passes bytes on between clients and a server, until it is told to hold or cut them.

    Held bytes stay in the sender's and in our buffers, as behind a switch that is stuck: nobody
    notices but by waiting.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._flows = {"up": asyncio.Event(), "down": asyncio.Event()}  # to the server, from it
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()
        self._accepts = True
        self.pass_on()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self, *directions: str) -> None:
        for direction in directions:
            self._flows[direction].clear()

    def pass_on(self) -> None:
        self._accepts = True
        for flow in self._flows.values():
            flow.set()

    def cut(self) -> None:
        """Break all connections, and accept none."""
        self._accepts = False
        self.drop()

    def drop(self) -> None:
        """Break all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def inject(self, data: bytes) -> None:
        """Send bytes as if the server had."""
        for writer in self._clients:
            writer.write(data)

    async def close(self) -> None:
        self.cut()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self._writers.add(writer)
        self._clients.add(writer)
        try:
            if self._accepts:
                server = await asyncio.open_connection("127.0.0.1", self._server_port)
                self._writers.add(server[1])
                await self._relay(reader, writer, *server)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._clients.discard(writer)
            self._tasks.discard(asyncio.current_task())

    async def _relay(self, reader, writer, server_reader, server_writer) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy("up", reader, server_writer, writer))
            group.create_task(self._copy("down", server_reader, writer, server_writer))
        self._writers.discard(server_writer)

    async def _copy(self, direction, reader, writer, other) -> None:
        try:
            while data := await reader.read(65536):
                await self._flows[direction].wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            other.transport.abort()
