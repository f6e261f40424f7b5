"""Fixtures that start brokers as processes.

`INTEROP_BROKER=rabbitmq` runs the client suites against RabbitMQ itself: that is how the
tests are tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop_tests import users
from interop_tests.brokers import Broker, LeveretBroker, RabbitBroker, candidate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker under test, one process for the whole run; tests use names of their own."""
    for started in _running(candidate()(tmp_path_factory.mktemp("broker"))):
        if isinstance(started, LeveretBroker):
            users.add_to_leveret(started.data_dir)
        yield started


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker under test that this test alone may stop, kill and start again."""
    yield from _running(candidate()(tmp_path))


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """RabbitMQ, the yardstick of the differential suite."""
    if not RabbitBroker.installed():
        pytest.skip("RabbitMQ is not installed (make interop)")
    yield from _running(RabbitBroker(tmp_path_factory.mktemp("rabbitmq")))
