"""A node as a process of its own, for tests of what only a whole node shows."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STOP_SECONDS_MAX = 60  # a node that stops at all does so within its grace of 2 s


@contextmanager
def running_node(data_dir: Path, *arguments: str) -> Iterator[int]:
    """Start a node on a free port, yield the port, and stop it."""
    with node_addresses(data_dir, *arguments) as addresses:
        yield int(addresses["amqp"].rpartition(":")[2])


@contextmanager
def node_addresses(data_dir: Path, *arguments: str) -> Iterator[dict[str, str]]:
    """Start a node on free ports, yield what its ready line says by name, and stop it."""
    command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(data_dir)]
    command += ["--port", "0", "--http-port", "0", "--prometheus-port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = process.stdout.readline()
            assert ready.startswith("ready "), ready
            yield dict(word.split("=", 1) for word in ready.split()[1:])
        finally:
            process.terminate()
            status = process.wait(STOP_SECONDS_MAX)
    assert status == 0
