"""Walks by chance must read the same with RabbitMQ and with the broker under test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from interop_tests.differential.test_differential import compare
from interop_tests.differential.walks import SEEDS, walk

if TYPE_CHECKING:
    from interop_tests.brokers import Broker

# INTEROP_SEEDS=100:200 walks where nobody has been yet.
CHOSEN = os.environ.get("INTEROP_SEEDS")


CHOSEN_SEEDS = range(*map(int, CHOSEN.split(":"))) if CHOSEN else SEEDS


@pytest.mark.covers("B-101", "B-102", "B-104", "B-105", "B-108", "B-122", "B-201", "B-207", "B-211")
@pytest.mark.parametrize("seed", CHOSEN_SEEDS)
def test_walk(seed: int, rabbitmq: Broker, broker: Broker) -> None:
    compare(walk(seed), rabbitmq, broker)


@pytest.mark.covers("B-106", "B-140", "B-144", "B-150", "B-151", "B-152", "B-155")
@pytest.mark.parametrize("seed", CHOSEN_SEEDS)
def test_walk_with_features(seed: int, rabbitmq: Broker, broker: Broker) -> None:
    compare(walk(seed, featured=True), rabbitmq, broker)
