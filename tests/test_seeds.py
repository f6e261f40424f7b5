"""The seed of a run is drawn once, told to the processes that run tests, and to no node."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.support.seeds import RUN_SEED, VARIABLE, keep_run_seed


def config(*, processes: int | None, **attributes: object) -> SimpleNamespace:
    """Return what pytest has in the first process, or with `workerinput` in one that it starts."""
    options = {"numprocesses": processes}
    return SimpleNamespace(stash=pytest.Stash(), getoption=options.get, **attributes)


@pytest.fixture
def environment(monkeypatch):
    """Variables as a user has set them, who wants the same run again."""
    monkeypatch.setenv(VARIABLE, "7")
    monkeypatch.setenv("LEVERET_TEST_PATIENCE", "2")
    return os.environ


def test_all_processes_have_the_seed_that_was_set_or_drawn(environment, monkeypatch):
    first = config(processes=2)
    keep_run_seed(first)
    worker = config(processes=None, workerinput={})
    keep_run_seed(worker)
    assert (first.stash[RUN_SEED], worker.stash[RUN_SEED]) == (7, 7)
    monkeypatch.delenv(VARIABLE, raising=False)
    keep_run_seed(first)
    assert environment[VARIABLE] == str(first.stash[RUN_SEED]) != "7"


def test_the_suites_beside_this_one_hand_no_variable_to_a_node_either(pytestconfig):
    """They have no part in tests/conftest.py, but all runs have the plugins of pyproject.toml."""
    assert "tests.support.seeds" in pytestconfig.getini("addopts")


@pytest.mark.parametrize("of", [config(processes=0), config(processes=None, workerinput={})])
def test_who_runs_tests_hands_no_variable_of_ours_to_a_node(environment, of):
    keep_run_seed(of)
    assert not [name for name in environment if name.startswith("LEVERET_TEST_")]
