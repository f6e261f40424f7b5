"""Imports of a command before it does anything: people and probes wait for them."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("processes")  # only a fresh interpreter has imported nothing

HEAVY = {"asyncio", "cryptography", "fastapi", "pydantic", "rich", "sqlite3", "uvloop"}
PROBE = HEAVY | {
    "typer",
    "click",
    "logging",
    "subprocess",
    "inspect",
    "leveret.cli.app",
}
RUN = """
import sys
sys.argv = ["leveret", *sys.argv[1:]]
from leveret.cli import main
try:
    main()
except SystemExit as end:
    print("status", end.code)
print("modules", *sorted(sys.modules))
"""


def imported_by(*arguments, data_dir, completing=""):
    """Exit status, modules and errors of a command, or of the shell's completion of a line."""
    directory = {"LEVERET_DATA_DIR": str(data_dir)}
    shell = {"_LEVERET_COMPLETE": "complete_bash", "COMP_WORDS": completing}
    shell["COMP_CWORD"] = str(completing.count(" "))  # the word that the cursor is in
    result = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **directory, **(shell if completing else {})},
    )
    *_, status, modules = result.stdout.splitlines()
    return status, set(modules.split()[1:]), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["health"], ["health", "--json"], ["health", "--timeout=1"], ["health", "--in-sync"]],
)
def test_a_probe_imports_next_to_nothing(tmp_path, arguments):
    status, modules, _ = imported_by(*arguments, data_dir=tmp_path)
    assert status == "status 1"  # nobody is there
    assert not modules & PROBE
    assert not any(name.startswith(("leveret.core", "leveret.storage")) for name in modules)


def test_a_probe_says_why_it_fails(tmp_path):
    assert "no node answers" in imported_by("health", data_dir=tmp_path)[2]


@pytest.mark.parametrize("stated", ["0", "soon", "inf"])
def test_a_mistake_gets_the_usual_answer(tmp_path, stated):
    status, _, told = imported_by("health", "--timeout", stated, data_dir=tmp_path)
    assert status == "status 2"
    assert "Usage: leveret health" in told


def test_a_command_that_asks_a_node_imports_no_broker(tmp_path):
    """Here no node runs, and there is no directory: that is found out before anything heavy."""
    status, modules, told = imported_by("queue", "list", data_dir=tmp_path / "none")
    assert status == "status 1"
    assert "is not a data directory" in told
    assert not modules & HEAVY
    assert not any(name.startswith("leveret.core") for name in modules)
    assert "leveret.cli.perf" not in modules


@pytest.mark.parametrize("line", ["leveret queue show ", "leveret mess", "leveret queue sh"])
def test_completing_a_line_imports_no_broker(tmp_path, line):
    status, modules, told = imported_by(data_dir=tmp_path, completing=line)
    assert (status, told) == ("status 0", "")
    assert not modules & HEAVY
    assert not any(name.startswith("leveret.core") for name in modules)
    assert "leveret.cli.perf" not in modules
