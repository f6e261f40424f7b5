"""Two brokers with an HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop_tests import users
from interop_tests.brokers import LeveretBroker, RabbitBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rabbitmq_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitBroker]:
    if not RabbitBroker.installed():
        pytest.skip("RabbitMQ is not installed (make interop)")
    broker = RabbitBroker(tmp_path_factory.mktemp("rabbitmq"), managed=True)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def leveret_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretBroker]:
    broker = LeveretBroker(tmp_path_factory.mktemp("leveret"))
    broker.start()
    users.add_to_leveret(broker.data_dir)
    yield broker
    broker.close()
