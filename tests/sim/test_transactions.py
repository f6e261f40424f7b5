"""Transactions over several leaders under faults: seeds of the simulated cluster."""

from __future__ import annotations

import pytest

from tests.sim import transaction_faults, transactions

SEEDS = 40
AT_ONCE = 10
SEEDS_MAX = 200  # to find a planted fault


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    committed = failed = 0
    for seed in range(first, first + AT_ONCE):
        try:
            answers = transactions.run(seed).checks.answers
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        committed += sum(answers.values())
        failed += len(answers) - sum(answers.values())
    assert committed > 100 * AT_ONCE  # otherwise nothing was tried
    assert failed > 10 * AT_ONCE


@pytest.mark.parametrize("plant", transaction_faults.PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant, monkeypatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            transactions.run(seed)
        except AssertionError:
            return
    raise AssertionError(f"{SEEDS_MAX} seeds have not found it")
