"""The cluster's benchmark runs with tiny counts, and says what it has measured."""

import json

import pytest
import typer
from typer.testing import CliRunner

from bench.cluster import __main__ as program
from bench.cluster.clusters import LeveretCluster
from bench.cluster.interruption import EventTimes
from bench.cluster.measure import ClusterTiming, measure
from bench.cluster.rows import ROWS, ClusterKind
from bench.measure import Reading

TINY = ClusterTiming(seconds=0.5, warm_up=0, rounds=1)
MEASURED = [row for row in ROWS if row.row.options and "1kib" not in row.name]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = LeveretCluster(tmp_path_factory.mktemp("cluster"), "os")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_a_row_has_all_its_figures(cluster, row):
    reading = measure(row, cluster, TINY)
    assert (reading.failure, reading.incomplete) == ("", False)
    assert {target.metric for target in row.row.targets} <= reading.figures.keys()
    assert all(figure > 0 for figure in reading.figures.values())


def test_clients_go_on_when_the_leader_is_killed(cluster):
    row = next(row for row in ROWS if row.kind is ClusterKind.INTERRUPTION)
    reading = measure(row, cluster, TINY)
    assert reading.failure == ""
    assert {target.metric for target in row.row.targets} == reading.figures.keys()
    assert len(cluster.pids()) == 3, "who was killed is there again"


class ClusterDouble:
    """Nothing runs: what a row measures has tests above."""

    name, version = "Leveret", "0"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


def test_the_readings_are_written(tmp_path, monkeypatch):
    reading = Reading({"per_cpu_s": 5_000_000, "cpu_share": 1.6})
    monkeypatch.setattr(program, "_cluster", lambda *_: ClusterDouble())
    monkeypatch.setattr(program, "measure", lambda *_: reading)
    files = [tmp_path / "table.md", tmp_path / "readings.json"]
    app = typer.Typer()
    app.command()(program.main)
    words = ["forwarded-16b", "--output", str(files[0]), "--json", str(files[1])]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "| CPU a message, of that of a client of the leader |" in files[0].read_text()
    told = json.loads(files[1].read_text())
    assert [each["figures"] for each in told["rows"]["forwarded-16b"]["Leveret"]] == (
        [reading.figures] * 3
    )


def test_names_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_longest_time_between_two_events():
    times = EventTimes()
    assert times.longest == 0
    times._times = [1.0, 1.5, 4.0, 4.25]
    assert times.longest == 2.5
