"""Commands of ours in this process, as a shell would run them: their words, status and outputs."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from leveret.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


# Ports of a node that may start on a directory, which `leveret doctor` looks at.
FREE_PORTS = {"LEVERET_PORT": "0", "LEVERET_HTTP_PORT": "0", "LEVERET_PROMETHEUS_PORT": "-1"}


class CommandLine:
    """`leveret …` on one data directory, whose node may run; `words` come before all others."""

    def __init__(self, data_dir: Path, *words: str, **environment: str) -> None:
        self._words = words
        self._environment = {"LEVERET_DATA_DIR": str(data_dir), **environment}

    def run(
        self,
        *arguments: object,
        stdin: str | bytes = "",
        status: int | None = 0,
        **environment: str,
    ) -> Result:
        """Return the result of a command, which must end with this status, None for any."""
        words = [*self._words, *map(str, arguments)]
        environment = {**self._environment, **environment}
        runner = CliRunner(env=environment)
        result = runner.invoke(app, words, input=stdin, catch_exceptions=False)
        assert status in {None, result.exit_code}, result.output
        return result

    def __call__(self, *arguments: object, **options: Any) -> str:
        """Return what a command writes, with its errors behind."""
        result = self.run(*arguments, **options)
        return result.stdout + result.stderr

    def json(self, *arguments: object, **options: Any) -> Any:
        """Return what a command tells programs."""
        return json.loads(self(*arguments, "--json", **options))


def run_here(main: Callable[[list[str]], int]) -> SimpleNamespace:
    """Return what stands for `subprocess` where a module of ours is run: `main` gets its words."""

    def run(command: list[str], **_: object) -> CompletedProcess[str]:
        told = io.StringIO()
        with redirect_stdout(told):
            status = main(command[3:])  # behind `python -m MODULE`
        return CompletedProcess(command, status, told.getvalue(), "")

    return SimpleNamespace(run=run)
