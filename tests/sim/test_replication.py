"""Replicated partitions under faults: seeds of the simulated cluster.

`python -m tests.sim SEED` runs one again, `python -m tests.sim` further ones until interrupted.
"""

from __future__ import annotations

import pytest

from tests.sim import faults, world

SEEDS = 500
AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    confirmed = 0
    for seed in range(first, first + AT_ONCE):
        try:
            checks = world.run(seed).checks
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        confirmed += sum(map(len, checks.confirmed.values()))
    assert confirmed > 100 * AT_ONCE  # otherwise nothing was tried


@pytest.mark.parametrize("plant", faults.PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant, monkeypatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            world.run(seed)
        except (AssertionError, ValueError):
            return
    raise AssertionError(f"{SEEDS} seeds have not found it")
