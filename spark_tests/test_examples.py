"""The examples run: the application of orders as a program, and as a notebook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "orders" / "orders.ipynb"
# In a process of its own: it stops the session of its process.
RUN_CELLS = """
import json, sys
from examples.orders.notebook import NOTEBOOK, run_cells
notebook = json.loads(NOTEBOOK.read_text())
run_cells(notebook, SECONDS=3)
print(json.dumps([cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]))
"""


def run(tmp_path, *command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_orders_are_counted_and_shown(spark, tmp_path):
    told = run(tmp_path, "-m", "examples.orders.run", "--seconds", "4", "--to", str(tmp_path))
    counts = {name: int(number) for number, name in counted(told)}
    assert counts["placed"] > 20
    assert counts["reminders"] > 0
    rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    assert sum(row.orders for row in rows) == counts["placed"]
    assert {row.kind for row in rows} == {"express", "standard"}
    page = (tmp_path / "orders.html").read_text()
    assert f"<dd>{counts['placed']:,}</dd>" in page
    assert told.splitlines()[-1] == f"the page: {tmp_path / 'orders.html'}"


def counted(told):
    line = next(line for line in told.splitlines() if " placed" in line)
    return [part.split(" ", 1) for part in line.split(", ")]


@pytest.mark.timeout(600)
def test_the_notebook_runs_and_shows_what_it_has_kept(tmp_path):
    found = json.loads(run(tmp_path, "-c", RUN_CELLS).splitlines()[-1])
    kept = [
        cell["outputs"]
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    assert any(kept)
    assert found == kept
