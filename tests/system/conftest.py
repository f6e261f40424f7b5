"""The seeds of tests of whole nodes."""

from __future__ import annotations

import pytest

from tests.support.seeds import FIXED, RUN_SEED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what kills nodes with some fixed seeds, and with that of the run; all else with one."""
    if "seed" in metafunc.fixturenames:
        seeds = [*FIXED, pytest.param(metafunc.config.stash[RUN_SEED], id="random")]
        if not metafunc.definition.get_closest_marker("kills"):
            seeds = seeds[:1]
        metafunc.parametrize("seed", seeds, indirect=True)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return what a test draws from; a failure shows it."""
    print(f"seed {request.param}")
    return request.param
