"""Clients that ask the broker for its name: what they then count on is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika  # type: ignore[import-untyped]
import pytest
from kombu import Connection  # type: ignore[import-untyped]

from interop_tests.brokers import UNDER_OWN_NAME, LeveretBroker, candidate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from interop_tests.brokers import Address, Broker


@pytest.fixture
def own_name(tmp_path: Path) -> Iterator[Broker]:
    if candidate() is not LeveretBroker:
        pytest.skip("RabbitMQ has one name")
    broker = LeveretBroker(tmp_path, UNDER_OWN_NAME)
    broker.start()
    yield broker
    broker.close()


def _properties(address: Address) -> dict[str, Any]:
    with pika.BlockingConnection(pika.URLParameters(address.url())) as connection:
        properties: dict[str, Any] = connection._impl.server_properties
    return properties


@pytest.mark.covers("B-003", "B-508")
def test_a_recent_rabbitmq_declares_streams(broker: Broker) -> None:
    """NServiceBus wants version 3.10 at least, and tries whether a stream can be declared."""
    properties = _properties(broker.address)
    assert properties["product"] in ("RabbitMQ", b"RabbitMQ")
    version = properties["version"].split(".")
    assert (int(version[0]), int(version[1])) >= (3, 10)
    with pika.BlockingConnection(pika.URLParameters(broker.address.url())) as connection:
        arguments = {"x-queue-type": "stream"}
        connection.channel().queue_declare("nsb.delay", durable=True, arguments=arguments)


@pytest.mark.covers("B-500")
def test_kombu_changes_a_prefetch_while_it_runs(broker: Broker) -> None:
    """A prefetch that is global, on a RabbitMQ that has one."""
    with Connection(broker.address.url()) as connection:
        assert not connection.qos_semantics_matches_spec


@pytest.mark.covers("B-003")
def test_the_name_can_be_chosen_and_our_version_stands_beside_it(own_name: Broker) -> None:
    properties = _properties(own_name.address)
    assert properties["product"] in ("Leveret", b"Leveret")
    assert properties["leveret_version"]
    with Connection(own_name.address.url()) as connection:
        assert connection.qos_semantics_matches_spec
