"""The rows are options that `leveret perf` understands and that do not contradict one another."""

import pytest
import typer

from bench.measure import Timing, perf_arguments
from bench.rows import ROWS, Kind
from leveret.cli.app import app
from leveret.perf.plan import LoadPlan

TIMING = Timing(seconds=1, warm_up=0, messages_share=1, files_max=1000)
LOADS = [row for row in ROWS if row.kind in (Kind.FLOW, Kind.GET, Kind.BACKLOG)]


@pytest.mark.parametrize("row", LOADS, ids=lambda row: row.name)
def test_options_make_a_plan(row):
    command = typer.main.get_command(app).commands["perf"]
    options = command.make_context("perf", perf_arguments(row, TIMING)).params
    del options["pid"], options["json_output"]
    plan = LoadPlan(**options).checked()
    assert (plan.duration, plan.queue_type) == (1, row.queue_type)


def test_names_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)
