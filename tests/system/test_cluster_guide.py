"""The cluster of README and guide: started, used by a program, and its leader killed."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from examples.cluster.program import COUNT as NUMBERS
from examples.cluster.zookeeper import HOST
from tests.harness.broker import REPOSITORY
from tests.support.ports import free_ports
from tests.support.waiting import LIMIT_SECONDS, wait_until
from tests.test_guide import CLUSTER_PAGE, GUIDE, Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("processes")]

PROGRAM = REPOSITORY / "examples" / "cluster" / "program.py"
PORTS = [base + node for base in (0, 10_000, 10_020, 20_000) for node in range(3)]


class Running:
    """A command whose output is read from a file."""

    def __init__(self, command: list[object], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str, behind: str = "") -> re.Match[str]:
        """Return the last match of what it says, once there is one behind another text."""
        found: list[re.Match[str]] = []

        def look() -> list[re.Match[str]]:
            ended = self.process.poll() is not None
            said = self.text[self.text.rfind(behind) if behind else 0 :]
            found.extend(re.finditer(pattern, said, re.MULTILINE))
            assert found or not ended, self.text
            return found

        wait_until(look, f"{pattern} in {self.text}")
        return found[-1]


def free_port() -> int:
    """Return the first of the ports that the nodes will have, all of which are free."""
    while True:
        first = free_ports(1)[0]
        try:
            for port in PORTS:
                socket.create_server((HOST, first + port)).close()
        except (OSError, OverflowError):
            continue
        return first


@contextmanager
def running(command: list[object], output: Path) -> Iterator[Running]:
    """Run a command, and end it as Ctrl-C does."""
    made = Running(command, output)
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGINT)
        made.process.wait(LIMIT_SECONDS)


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_from_nothing_to_a_killed_leader(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "cluster"
    command = ["-m", "examples.cluster.run", "--data", data, "--port", port]
    with running(
        [*command, "--zookeeper-port", free_ports(1)[0]], tmp_path / "cluster.txt"
    ) as all_:
        number = all_.wait_for(r"node (\d) leads; in sync: 0, 1, 2$")[1]
        with running([PROGRAM, "--port", port], tmp_path / "program.txt") as program:
            program.wait_for("^5 is confirmed$")
            pid = int(all_.wait_for(rf"^node {number}: .* process (\d+)$")[1])
            subprocess.run(["kill", "-9", str(pid)], check=True, timeout=LIMIT_SECONDS)
            ended = rf"node {number} has ended \(SIGKILL\)"
            leads = all_.wait_for(r"node (\d) leads", all_.wait_for(ended)[0])[1]
            assert leads != number
            assert program.process.wait(LIMIT_SECONDS) == 0
            assert f"{NUMBERS} of {NUMBERS} confirmed numbers are there" in program.text
        again = all_.wait_for(rf"node {number} is started again, as process \d+")[0]
        all_.wait_for("in sync: 0, 1, 2$", again)
        addresses = dict.fromkeys(("amqp", "http", "prometheus"), f"{HOST}:{port}")
        Reader(addresses, data / "node0", tmp_path).follow(GUIDE / f"{CLUSTER_PAGE}.md")
    assert all_.text.endswith("All are stopped.\n")
    assert all_.process.returncode == 0
    for path in data.glob("node*.log"):
        assert "Traceback" not in path.read_text()


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server((HOST, port + 1)):
        command = ["-m", "examples.cluster.run", "--data", tmp_path / "cluster", "--port", port]
        command += ["--zookeeper-port", free_ports(1)[0]]
        done = Running(command, tmp_path / "cluster.txt")
        assert done.process.wait(LIMIT_SECONDS) == 1
    assert "node 1 has ended" in done.text
    assert f"cannot listen for amqp on {HOST}:{port + 1}: Address already in use" in done.text
