"""The LavinMQ that is on the PATH, in a directory of its own.

Everything is LavinMQ's default except where it would meet another node (ports, the control socket)
and whether it flushes. From 2.9 on it flushes the whole file system before each confirm: that is
the peer of durability `fsync`, and with `--no-sync` of `os`. Older versions confirm what the
operating system has, so they are peers of `os` alone.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from bench.processes import BenchError, BrokerProcess, free_port
from bench.rows import LAVINMQ

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LavinMq"]

PROGRAM = "lavinmq"
NO_SYNC = "--no-sync"


class LavinMq(BrokerProcess):
    """LavinMQ with the durability asked for."""

    name = LAVINMQ

    def __init__(self, directory: Path, durability: str, core: int | None) -> None:
        super().__init__(directory, core)
        self.version = _output("--version")
        self._durability = durability

    @staticmethod
    def is_installed() -> bool:
        """Return whether there is one on the PATH."""
        return shutil.which(PROGRAM) is not None

    def _command(self) -> list[str]:
        usage = _output("--help")  # options that this version does not have are left out
        flushes = self._durability == "fsync"
        if flushes and NO_SYNC not in usage:
            raise BenchError(f"LavinMQ {self.version} never flushes before it confirms")
        settings = self._directory / "lavinmq.ini"
        settings.touch()  # without one, that of an installed service would be read
        isolation = {
            "--mqtt-port": "-1",
            "--metrics-http-port": "-1",
            "--clustering-port": str(free_port()),
            "--control-unix-path": str(self._directory / "control"),
        }
        return [
            *(PROGRAM, "--data-dir", str(self._directory / "data")),
            *("--config", str(settings), "--bind", "127.0.0.1"),
            *("--amqp-port", str(self._port), "--http-port", str(free_port())),
            *(f"{option}={value}" for option, value in isolation.items() if option in usage),
            *([NO_SYNC] if NO_SYNC in usage and not flushes else []),
        ]


def _output(option: str) -> str:
    """Return what the program prints for an option."""
    done = subprocess.run([PROGRAM, option], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{PROGRAM} {option} failed: {done.stderr}")
    return done.stdout.strip()
