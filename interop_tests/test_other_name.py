"""Clients that ask the broker for its name: what they then count on is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika  # type: ignore[import-untyped]
import pytest

from interop_tests.brokers import AS_RABBITMQ, LeveretBroker, candidate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.covers("B-508")
def test_a_recent_rabbitmq_declares_streams(tmp_path: Path) -> None:
    """NServiceBus wants version 3.10 at least, and tries whether a stream can be declared."""
    kind = candidate()
    broker = kind(tmp_path, AS_RABBITMQ) if kind is LeveretBroker else kind(tmp_path)
    broker.start()
    try:
        with pika.BlockingConnection(pika.URLParameters(broker.address.url())) as connection:
            properties = connection._impl.server_properties
            assert properties["product"] in ("RabbitMQ", b"RabbitMQ")
            version = properties["version"].split(".")
            assert (int(version[0]), int(version[1])) >= (3, 10)
            arguments = {"x-queue-type": "stream"}
            connection.channel().queue_declare("nsb.delay", durable=True, arguments=arguments)
    finally:
        broker.stop()
