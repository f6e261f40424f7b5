"""`make verify` tells what fails always from what fails beside others, and goes on after both."""

import sys
from pathlib import Path

import pytest

from tests import verify
from tests.stages import STAGES, Stage
from tests.verify import Outcome, run_stage, summary

ROOT = Path(__file__).parent.parent
SUITE = """
from pathlib import Path
import os, pytest

def test_good():
    pass

def test_left_out():
    pytest.skip("always")

@pytest.mark.parametrize("name", ["a b"])
def test_the_second_time(name):
    been = Path("been")
    if not been.exists():
        been.touch()
        raise AssertionError("once")

def test_bad():
    raise AssertionError("always")
"""
DYING = """
import os

def test_dies():
    os._exit(3)

def test_after():
    pass
"""
UNREADABLE = "import nothing_of_this_name"


@pytest.fixture
def run(tmp_path, monkeypatch, processes):
    """Return what runs a file of tests as a stage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(text, *options, beside=()):
        """`beside`: names of files with a test that passes."""
        Path("test_it.py").write_text(text)
        for name in beside:
            Path(name).write_text("def test_beside(): pass")
        where = (("PYTHONPATH", str(ROOT)),)
        plugins = ("-p", "tests.support.file_scheduling", "-p", "tests.support.results")
        paths = tuple(sorted(["test_it.py", *beside]))
        return run_stage(Stage("it", "", paths, 1, (*plugins, *options), where))

    return run


def test_a_second_run_tells_unstable_tests_from_those_that_fail(run):
    outcome = run(SUITE)
    assert (outcome.passed, outcome.skipped, outcome.problem) == (1, 1, "")
    assert list(outcome.failed) == ["test_it.py::test_bad"]
    assert list(outcome.unstable) == ["test_it.py::test_the_second_time[a b]"]
    assert all(text.startswith("load ") for text in outcome.unstable.values())
    assert not outcome.good


def test_a_test_that_ends_its_process_fails(run):
    outcome = run(DYING)
    assert list(outcome.failed) == ["test_it.py::test_dies"]
    assert not outcome.good


def test_what_a_process_that_dies_has_left_is_run_by_the_next_one(run):
    outcome = run(DYING, beside=["test_a.py", "test_b.py", "test_x.py", "test_y.py"])
    assert list(outcome.failed) == ["test_it.py::test_dies"]
    assert (outcome.passed, outcome.problem) == (5, "")


def test_tests_that_nobody_runs_any_more_are_a_problem(run):
    outcome = run(DYING, "--max-worker-restart=0", beside=["test_x.py"])
    assert list(outcome.failed) == ["test_it.py::test_dies"]
    assert outcome.problem == "2 tests were not run"


def test_a_file_that_cannot_be_read_fails(run):
    outcome = run(UNREADABLE)
    assert list(outcome.failed) == ["test_it.py"]
    assert not outcome.good


def test_no_tests_are_a_problem(run):
    assert run("").problem == "no test was run"


def test_the_summary_names_what_went_wrong(monkeypatch):
    monkeypatch.setenv("LEVERET_TEST_SEED", "7")
    good = Outcome(stage="kills", passed=12, seconds=61.4, unstable={"t::one": "load 9.1"})
    bad = Outcome(stage="spark", problem="make .venv/.spark failed", failed={"t::two": "load 1.0"})
    lines = summary([good, bad]).splitlines()
    assert lines[1].split() == ["stage", "passed", "failed", "unstable", "skipped", "seconds"]
    assert lines[2].split() == ["kills", "12", "0", "1", "0", "61"]
    assert lines[4:] == [
        "seed of the random kills: 7",
        "unstable  t::one (load 9.1)",
        "spark: make .venv/.spark failed",
        "failed    t::two (load 1.0)",
    ]


def test_a_stage_that_cannot_be_installed_is_told_and_the_others_run(monkeypatch, capsys, tmp_path):
    """Nothing is installed and nothing runs here."""
    outcomes = {"guide": Outcome(stage="guide", problem="make x failed")}
    ran = []

    def record(stage):
        ran.append(stage.name)
        return outcomes.get(stage.name, Outcome(stage=stage.name, passed=1))

    monkeypatch.setattr(verify, "verify", record)
    monkeypatch.setenv("LEVERET_TEST_SEED", "7")
    file = tmp_path / "new" / "verify.json"
    monkeypatch.setattr(sys, "argv", ["verify", "--json", str(file)])
    assert verify.main() == 1
    assert ran == [stage.name for stage in STAGES]
    assert "guide: make x failed" in capsys.readouterr().out
    assert '"seed": 7' in file.read_text()
    monkeypatch.setattr(sys, "argv", ["verify", "kills", "interop"])
    assert verify.main() == 0
    assert ran[len(STAGES) :] == ["kills", "interop"]
    monkeypatch.setattr(sys, "argv", ["verify", "kils"])
    with pytest.raises(SystemExit):
        verify.main()
    assert "no stage kils: there are properties, processes" in capsys.readouterr().err
