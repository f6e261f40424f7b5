"""Nothing confirmed is lost, nothing settled comes back, however often the process is killed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.traffic import Load, declare_topology, drain

pytestmark = pytest.mark.usefixtures("processes")


def make_seed() -> int:
    """From TEST_SEED, to replay a plan; else any. Printed, so that a failure shows it."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TEST_SEED={seed}")
    return seed


def kill_and_restart(broker: BrokerProcess, load: Load, rng: random.Random) -> None:
    """One life under load, ended at a random moment; sometimes the next start is killed too."""
    broker.start()
    load.account.round += 1
    load.start(broker.port)
    time.sleep(rng.uniform(0.1, 1.5))
    broker.kill()
    load.join()
    while rng.random() < 0.25:
        broker.launch()
        time.sleep(rng.uniform(0.2, 1.2))
        broker.kill()


def survive(data: Path, durability: str, kills: int) -> None:
    seed = make_seed()
    rng = random.Random(seed)
    load = Load(seed)
    broker = BrokerProcess(data, durability=durability)
    try:
        broker.start()
        declare_topology(broker.port)
        broker.kill()
        for _ in range(kills):
            kill_and_restart(broker, load, rng)
            assert not load.account.troubles, load.account.troubles[:20]
        broker.start()
        load.account.round += 1
        load.account.check(drain(broker.port, load.account))
        print(load.account)
        assert load.account.confirmed, "the load was none"
        assert load.account.settled, "no ack was surely settled"
        broker.stop()
        broker.start()
        assert not drain(broker.port, load.account)
        broker.check_untroubled()
    finally:
        broker.kill()


@pytest.mark.covers("B-101")
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_lose_nothing_confirmed(tmp_path, durability):
    survive(tmp_path / "data", durability, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_thirty_kills_lose_nothing_confirmed(tmp_path, durability):
    survive(tmp_path / "data", durability, kills=30)
