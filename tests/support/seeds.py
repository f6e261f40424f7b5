"""Seeds of tests that draw what happens: some that are always the same, and one of the run.

A plugin of every run of pytest here, also of the suites beside tests/ (pyproject.toml): whatever
starts a node must not hand it the variables that are for tests.
"""

from __future__ import annotations

import os
import random

import pytest

# These read their variables when they are imported, which must be before these are gone.
import tests.support.examples
import tests.support.waiting  # noqa: F401

VARIABLE = "LEVERET_TEST_SEED"
FIXED = (1, 2, 3, 4, 5)
RUN_SEED = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed of the run, or take it from the environment."""
    keep_run_seed(config)


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to have the same run again."""
    return f"{VARIABLE}={config.stash[RUN_SEED]}"


def keep_run_seed(config: pytest.Config) -> None:
    """Keep the seed of the run, which the environment says; the first process draws it.

    Processes that run tests have no such variable: nodes inherit their environment, and refuse to
    start with what is no setting of theirs.
    """
    drawn = random.SystemRandom().randrange(1 << 32)
    config.stash[RUN_SEED] = int(os.environ.setdefault(VARIABLE, str(drawn)))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        for name in [name for name in os.environ if name.startswith("LEVERET_TEST_")]:
            del os.environ[name]
