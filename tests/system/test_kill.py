"""Nothing confirmed is lost, nothing settled comes back, however often the process is killed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.kills import durability_of, kill_after, kill_starts
from tests.harness.traffic import Load, declare_topology, drain

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("processes")


def survive(data: Path, seed: int, lives: int) -> None:
    """Kill the node at what clients hear, and at what they know to be settled, by turns."""
    rng = random.Random(seed)
    load = Load(seed)
    account = load.account
    broker = BrokerProcess(data, durability=durability_of(seed))
    try:
        broker.start()
        declare_topology(broker.port)
        for life in range(lives):
            account.round += 1
            load.start(broker.port)
            if life % 2 == 0:
                kill_after(broker, account.events, rng.randint(1, 5000))
            else:
                kill_after(broker, account.settlements, rng.randint(1, 300))
            load.join()
            assert not account.troubles, account.troubles[:20]
            kill_starts(broker, rng, 0.25)
            broker.start()
        account.round += 1
        account.check(drain(broker.port, account))
        print(account)
        assert account.confirmed, "the load was none"
        assert account.settled, "no ack was surely settled"
        broker.stop()
        broker.start()
        assert not drain(broker.port, account)
        broker.check_untroubled()
    finally:
        broker.kill()


@pytest.mark.covers("B-101")
@pytest.mark.kills
def test_kills_lose_nothing_confirmed(tmp_path, seed):
    survive(tmp_path / "data", seed, 2)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [0, 1])  # another durability each
def test_thirty_kills_lose_nothing_confirmed(tmp_path, seed, more):
    survive(tmp_path / "data", seed + more, 30)
