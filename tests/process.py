"""A node as a process of its own, for tests of what only a whole node shows."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.harness.broker import SERVE, addresses_of, port_options
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def running_node(data_dir: Path, *arguments: str) -> Iterator[int]:
    """Start a node on a free port, yield the port, and stop it."""
    with node_addresses(data_dir, *arguments) as addresses:
        yield int(addresses["amqp"].rpartition(":")[2])


@contextmanager
def node_addresses(
    data_dir: Path, *arguments: str, http: bool = False, metrics: bool = False
) -> Iterator[dict[str, str]]:
    """Start a node on free ports, yield what its ready line says by name, and stop it.

    It serves AMQP, and HTTP or the port of the metrics where the test asks for them.
    """
    command = [*SERVE, "--data-dir", str(data_dir), *port_options(http=http, metrics=metrics)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = process.stdout.readline()
            assert ready.startswith("ready "), ready
            yield addresses_of(ready)
        finally:
            process.terminate()
            status = process.wait(LIMIT_SECONDS)
    assert status == 0
