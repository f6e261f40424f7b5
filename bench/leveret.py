"""Leveret as `leveret serve` starts it, on a data directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from bench.processes import (
    BROKER_CORE,
    START_TIMEOUT_S,
    BenchError,
    end,
    free_port,
    spawn,
    wait_for_amqp,
)
from leveret import __version__

__all__ = ["Leveret"]


class Leveret:
    """A node on a data directory below `directory`, with the durability asked for.

    `settings` go beyond the defaults: `LEVERET_NAME=value` each. `python` has the build that is
    started: this one, or another checkout's. `core` is what it runs on; None: any.
    """

    name = "Leveret"

    def __init__(
        self,
        directory: Path,
        durability: str,
        settings: tuple[str, ...] = (),
        python: Path = Path(sys.executable),
        core: int | None = BROKER_CORE,
    ) -> None:
        self.core = core
        self.version = f"{__version__} on Python {sys.version.split()[0]}"
        self.pid = 0
        self.start_seconds = 0.0
        self.uri = ""
        self._directory = directory
        self._durability = durability
        self._settings = settings
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """Return what the node has printed since its last start."""
        return self._directory / "printed"

    @property
    def data_dir(self) -> Path:
        """Return the data directory."""
        return self._directory / "data"

    @property
    def command(self) -> list[str]:
        """How it is started."""
        return [
            *(("env", *self._settings) if self._settings else ()),
            *(str(self._python), "-P", "-m", "leveret", "serve"),  # not what lies in this directory
            *("--data-dir", str(self.data_dir), "--durability", self._durability),
            *("--port", "0", "--http-port", str(free_port())),
            *("--prometheus-port", "-1"),
        ]

    def start(self) -> None:
        """Start on the data directory as it is; returns when a connection can be opened."""
        self.log.write_bytes(b"")
        start = time.monotonic()
        self._process = spawn(self.command, self.core, self.log)
        self.uri = f"amqp://guest:guest@{self._wait_for_ready()}/"
        wait_for_amqp(self.uri, self._process, self.log)
        self.start_seconds = time.monotonic() - start
        self.pid = self._process.pid

    def stop(self) -> None:
        """Stop the node."""
        if self._process is not None:
            end(self._process)
        self._process = None

    def kill(self) -> None:
        """End the node as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _wait_for_ready(self) -> str:
        """The address in the line that begins with `ready`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            text = self.log.read_text(errors="replace")
            found = re.search(r"^ready .*?\bamqp=(\S+)", text, re.MULTILINE)
            if found and text[found.end() :]:
                return found.group(1)
            if self._process is None or self._process.poll() is not None:
                raise BenchError(f"the node ended: {text[-2000:]}")
            time.sleep(0.005)
        raise BenchError(f"no line `ready` within {START_TIMEOUT_S} seconds")
