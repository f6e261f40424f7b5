"""A ZooKeeper server on loopback, from Debian's package `libzookeeper-java`.

It does not flush what it keeps, as it is to be tried with: a server for use is set up differently.
"""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["HOST", "TICK_MS", "ZooKeeper"]

HOST = "127.0.0.1"
JAVA_LIBRARIES = Path("/usr/share/java")
JARS = (
    *("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "snappy-java", "metrics-core"),
    *("commons-cli", "netty-all", "netty-common", "netty-handler", "netty-transport"),
    *("netty-buffer", "netty-codec", "netty-resolver"),
)
JAVA = (
    *("java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-Dzookeeper.forceSync=no",
    *("-cp", ":".join(str(JAVA_LIBRARIES / f"{jar}.jar") for jar in JARS)),
    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
)
TICK_MS = 500  # a session of a node has two ticks at least and is looked at once in a tick
CONFIGURATION = f"""
tickTime={TICK_MS}
initLimit=20
syncLimit=4
clientPortAddress={HOST}
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
START_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 5.0
LOOK_SECONDS = 0.1


class ZooKeeper:
    """One server, which is not started yet. `more` are further lines of its configuration."""

    def __init__(self, directory: Path, port: int, more: str = "") -> None:
        self.port = port
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        text = f"{CONFIGURATION}dataDir={directory}\nclientPort={port}\n{more}"
        (directory / "zoo.cfg").write_text(text)

    @property
    def address(self) -> str:
        """Return `HOST:PORT`, for clients."""
        return f"{HOST}:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the process of the server, which has been started."""
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process

    def start(self) -> None:
        """Start the server. Raises RuntimeError if it is not installed."""
        if not (JAVA_LIBRARIES / "zookeeper.jar").exists():
            raise RuntimeError("ZooKeeper is missing: make .venv/.zookeeper installs it")
        with (self._directory / "server.log").open("ab") as log:
            command = [*JAVA, str(self._directory / "zoo.cfg")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Return once it serves clients. Raises RuntimeError if it does not in a minute."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.mode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper does not serve: see {self._directory}/server.log")
            time.sleep(LOOK_SECONDS)

    @property
    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty if it serves nobody."""
        address = HOST, self.port
        with suppress(OSError), socket.create_connection(address, ANSWER_SECONDS_MAX) as asked:
            asked.settimeout(ANSWER_SECONDS_MAX)
            asked.sendall(b"srvr")
            return asked.makefile().read().partition("Mode: ")[2].partition("\n")[0]
        return ""

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
