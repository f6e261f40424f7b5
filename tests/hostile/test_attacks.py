"""Under attacks with a megabyte, other clients go on and memory does not fill.

The stage `processes` of `make verify` tries each attack once, small, all on one node, with a bound
that a busy machine does not break; the stage `hostile`, and `make hostile`, try each with several
seeds on a node of its own and measure.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.harness.broker import MIB
from tests.hostile.attacks import ATTACKS
from tests.hostile.budget import Budget, SpentError
from tests.hostile.trial import Node, Scale, try_attack
from tests.hostile.witness import Waits

SMALL = Scale(bytes_max=200_000, seconds_max=0.3)
FULL = Scale(bytes_max=1_000_000, seconds_max=5.0)
# A megabyte declares 27,000 queues of 9 kB each, which policies make 12 kB for a moment.
GROWN_BYTES_MAX = 350 * MIB
# How long a publish may wait, in publishes: as many times as long as the witness computes for one
# meanwhile, which is 0.07 to 0.2 ms, as the machine is. Other tests run beside the small attacks.
WORST_PUBLISHES_MAX = 20_000
P999_PUBLISHES_MAX = 500
SEEDS = [int(seed) for seed in (os.environ.get("HOSTILE_SEED") or "1 2 3").split()]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, processes):
    """One node for all small attacks: what one leaves behind would show in the next."""
    with Node(tmp_path_factory.mktemp("small") / "data") as node:
        yield node
        node.check()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_small_attack_harms_nobody(shared, outcomes, name):
    outcome = try_attack(shared, ATTACKS[name], 0, SMALL)
    outcomes.append(outcome)
    shared.check()
    assert outcome.grown_bytes <= GROWN_BYTES_MAX
    assert outcome.left_bytes <= outcome.left_bytes_max
    assert outcome.worst_publishes <= WORST_PUBLISHES_MAX


@pytest.mark.hostile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.usefixtures("processes")
def test_an_attack_is_hardly_noticed(tmp_path, outcomes, name, seed):
    with Node(tmp_path / "data") as node:
        outcome = try_attack(node, ATTACKS[name], seed, FULL)
        outcomes.append(outcome)
        node.check()
    assert outcome.grown_bytes <= GROWN_BYTES_MAX
    assert outcome.left_bytes <= outcome.left_bytes_max
    assert outcome.p999_publishes <= P999_PUBLISHES_MAX


def test_an_attack_is_the_same_for_the_same_seed(shared):
    """As far as it does not look at the time: what is prepared is."""
    sent = {
        try_attack(shared, ATTACKS["TlsGarbage"], seed, Scale(20_000, 60.0)).sent_bytes
        for seed in (7, 7)
    }
    assert len(sent) == 1


def test_a_budget_refuses_what_passes_it():
    budget = Budget(10)
    budget.spend(8)
    with pytest.raises(SpentError):
        budget.spend(3)
    budget.spend(2)
    assert budget.share == 1.0


def test_a_long_wait_counts_for_all_who_would_have_asked_meanwhile():
    waits = Waits.of([0.001] * 999 + [1.0])
    assert waits.worst == pytest.approx(1000.0)
    assert waits.p999 > 900.0
    assert waits.count == 1000


def test_the_witness_notices_a_node_that_stands_still(shared):
    shared.witness.report()
    shared.broker.popen.send_signal(signal.SIGSTOP)
    try:
        shared.witness.await_waiting(0.5)
    finally:
        shared.broker.popen.send_signal(signal.SIGCONT)
    report = shared.witness.report()
    assert report.passed.worst >= 250.0
    assert report.own.worst >= 250.0
