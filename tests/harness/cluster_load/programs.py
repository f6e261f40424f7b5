"""The programs with the clients, from their start to their end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.broker import REPOSITORY
from tests.harness.cluster_load.journal import GOT, Journal
from tests.harness.cluster_load.topology import QUEUES, connected, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pika.adapters.blocking_connection import BlockingChannel

JARS = [
    Path("/usr/share/java") / f"{name}.jar" for name in ("amqp-client", "slf4j-api", "slf4j-nop")
]
JAVA_SOURCE = Path(__file__).with_name("RecoveringClient.java")
JAVA = ("java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
END_SECONDS = 40.0
DUMP_SECONDS = 1.0
QUIET_SECONDS = 3.0


class ClientProgram:
    """A process with clients, which end when its input does."""

    def __init__(self, directory: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LEVERET")}
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**kept, "PYTHONPATH": str(REPOSITORY)},
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """Raise AssertionError if it has ended by itself."""
        status = self._process.poll()
        assert status is None, f"{self.name} ended with {status}: {self.log_path}"

    def ask_to_end(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> str:
        """End it; return what is wrong with its end, or nothing."""
        self.ask_to_end()
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT if self.name == "java" else signal.SIGUSR1)
            time.sleep(DUMP_SECONDS)  # it shows where its threads are
            self._process.kill()
            self._process.wait(END_SECONDS)
            return f"{self.name} hung: {self.log_path}"
        return f"{self.name} ended with {status}: {self.log_path}" if status else ""


def python_program(directory: Path, name: str, module: str, *arguments: object) -> ClientProgram:
    words = [str(argument) for argument in arguments]
    module = f"tests.harness.cluster_load.{module}"
    return ClientProgram(directory, name, [sys.executable, "-m", module, *words])


def java_program(directory: Path, ports: Sequence[int]) -> ClientProgram:
    missing = [str(jar) for jar in JARS if not jar.exists()]
    assert shutil.which("javac"), "make .venv/.cluster installs Java"
    assert not missing, f"make .venv/.cluster installs {missing}"
    class_path = os.pathsep.join(map(str, JARS))
    words = [*JAVA, "-cp", class_path, str(JAVA_SOURCE), str(directory), *map(str, ports)]
    return ClientProgram(directory, "java", words)


def drain(directory: Path, port: int) -> dict[str, int]:
    """Take what is left in all queues into a journal; return how much that was in each.

    Of the stream this is all there is.
    """
    counts = dict.fromkeys(QUEUES, 0)
    with Journal(directory, "drain") as journal:
        for queue in QUEUES:
            with connected(port) as connection:
                counts[queue] = _drain_queue(journal, connection.channel(), queue)
    return counts


def _drain_queue(journal: Journal, channel: BlockingChannel, queue: str) -> int:
    is_stream = QUEUES[queue]["x-queue-type"] == "stream"
    arguments = {"x-stream-offset": "first"} if is_stream else {}
    count = 0
    channel.basic_qos(prefetch_count=200)
    for method, properties, body in channel.consume(
        queue, inactivity_timeout=QUIET_SECONDS, arguments=arguments
    ):
        if method is None:
            break
        message = parse(body)
        place = (properties.headers or {}).get("x-stream-offset", -1)
        journal.write(GOT, *message[:2], queue, message.more, int(method.redelivered), place)
        channel.basic_ack(method.delivery_tag)
        count += 1
    channel.cancel()
    return count
