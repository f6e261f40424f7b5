"""The floor: bench/floor.c, which does what no broker can avoid and nothing else."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

from bench.processes import BenchError, BrokerProcess
from bench.rows import FLOOR, POLLING_FLOOR

__all__ = ["Floor", "compile_floor"]

SOURCE = Path(__file__).with_name("floor.c")
COMPILER_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


class Floor(BrokerProcess):
    """The floor, which flushes its file every turn with durability `fsync`.

    With `polls` it never sleeps. `program` is what `compile_floor` has returned.
    """

    version = "bench/floor.c"

    def __init__(
        self, directory: Path, durability: str, core: int | None, program: Path, *, polls: bool
    ) -> None:
        super().__init__(directory, core)
        self.name = POLLING_FLOOR if polls else FLOOR
        self._program = program
        self._options = [*(["-s"] if durability == "fsync" else []), *(["-p"] if polls else [])]

    def _command(self) -> list[str]:
        return [str(self._program), *self._options, str(self._port), str(self._directory / "data")]


def compile_floor(directory: Path) -> Path:
    """Return the program in `directory`, compiled as extension modules are unless it is there."""
    program = directory / "floor"
    if not program.exists():
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
        command = [*compiler, *COMPILER_FLAGS, "-o", str(program), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{shlex.join(command)} failed: {done.stderr}")
    return program
