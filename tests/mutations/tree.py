"""A copy of the tree, in which faults are planted and tests are run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutations.faults import Fault

BUILT = (".so", ".c", ".cpp")  # with their C sources, so that only what changes is compiled anew
PYTEST = (
    *("-m", "pytest", "-x", "-q", "--tb=no", "--color=no", "-p", "no:cacheprovider"),
    "--hypothesis-profile=unshrunk",
)
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
# Exit statuses of pytest; any other one is no result of a test.
PASSED = (0, 5)  # 5: there are none
FAILED = (1, 2)  # 2: it was interrupted, as pytest-xdist says where a test has failed with -x
OUTPUT_LINES = 20  # of a command that failed, the last ones


class TreeError(RuntimeError):
    """The copy cannot be built, or its tests cannot be run."""


class TreeCopy:
    """The tracked files of a repository, as they are in its working tree, and the built modules."""

    def __init__(self, repository: Path, directory: Path) -> None:
        self._repository = repository
        self._path = directory
        # The interpreter has the package of the repository installed: that of the copy goes first.
        self._environment = {**os.environ, "PYTHONPATH": str(directory)}

    def prepare(self) -> None:
        """Copy, build what is older than its source, and look at what is imported.

        Raises TreeError.
        """
        for name in self._names():
            target = self._path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._repository / name, target)
        self._build()
        self._check_imports()

    def _names(self) -> Iterator[Path]:
        tracked = self._output("git", "ls-files", "-z", cwd=self._repository)
        names = (Path(name) for name in tracked.split("\0") if name)
        yield from (name for name in names if (self._repository / name).exists())
        for path in (self._repository / "leveret").rglob("*"):
            if path.suffix in BUILT:
                yield path.relative_to(self._repository)

    def _build(self) -> None:
        self._output(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=self._path)

    def _check_imports(self) -> None:
        """Raise TreeError unless processes import the package from here, wherever they start."""
        question = "from leveret.ports import records; print(records.__file__)"
        for directory in (self._path, Path("/")):
            found = self._output(sys.executable, "-c", question, cwd=directory).strip()
            if not Path(found).is_relative_to(self._path):
                raise TreeError(f"started in {directory}, a process imports {found}")

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plant a fault, and take it out again. Raises TreeError if it cannot be built."""
        source = self._path / fault.file
        text = source.read_text("utf-8")
        source.write_text(fault.planted_in(text), "utf-8")
        try:
            if fault.is_compiled:
                self._build()
            yield
        finally:
            source.write_text(text, "utf-8")
            if fault.is_compiled:
                self._build()

    def first_failure(self, *selection: str) -> str | None:
        """Run tests up to the first that fails, and return its name; None if all pass.

        Raises TreeError.
        """
        ended = self._run(sys.executable, *PYTEST, *selection, cwd=self._path)
        if ended.returncode in PASSED:
            return None
        found = FAILURE.search(ended.stdout)
        if ended.returncode not in FAILED or found is None:
            raise _error(ended)
        return found[1]

    def _output(self, *command: str, cwd: Path) -> str:
        ended = self._run(*command, cwd=cwd)
        if ended.returncode:
            raise _error(ended)
        return ended.stdout

    def _run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )


def _error(ended: subprocess.CompletedProcess[str]) -> TreeError:
    lines = ended.stdout.splitlines()[-OUTPUT_LINES:]
    return TreeError("\n".join([f"status {ended.returncode} of {' '.join(ended.args)}", *lines]))
