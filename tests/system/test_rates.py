"""Rates on a whole node: a client that publishes too fast is slowed, told, and not disconnected."""

from __future__ import annotations

import time

import pika
import pytest

from tests.harness.broker import BrokerProcess

pytestmark = pytest.mark.usefixtures("processes")

HEARTBEAT_SECONDS = 1
COUNT = 30


@pytest.mark.covers("C-216")
def test_a_publisher_is_blocked_and_unblocked_and_outlives_its_heartbeats(tmp_path):
    settings = {"connection_publish_rate": 10, "connection_publish_burst": 5}
    with BrokerProcess(tmp_path / "data", **settings) as broker:
        parameters = pika.ConnectionParameters(
            "127.0.0.1", broker.port, heartbeat=HEARTBEAT_SECONDS
        )
        connection = pika.BlockingConnection(parameters)
        told: list[str] = []
        connection.add_on_connection_blocked_callback(
            lambda _, method: told.append(method.method.reason)
        )
        connection.add_on_connection_unblocked_callback(lambda *_: told.append(""))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        began = time.monotonic()
        for number in range(COUNT):
            channel.basic_publish("", "q", b"%d" % number)
        # Whatever the client asks next comes behind what it has published.
        counted = channel.queue_declare("q", passive=True).method.message_count
        assert counted == COUNT
        assert time.monotonic() - began >= (COUNT - 5) / 10 - 0.5
        connection.process_data_events(0.5)
        assert "over the publish-rate of a connection (10/s)" in told
        assert told[-1] == ""
        got = [channel.basic_get("q", auto_ack=True)[2] for _ in range(COUNT)]
        assert got == [b"%d" % number for number in range(COUNT)]
        connection.close()
        broker.check_untroubled()


@pytest.mark.covers("C-216")
def test_consumers_are_slowed_and_publishers_are_not(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        arguments = {"x-consume-rate": 20, "x-consume-burst": 10}
        channel.queue_declare("q", durable=True, arguments=arguments)
        for number in range(COUNT):
            channel.basic_publish("", "q", b"%d" % number)
        began, got = time.monotonic(), []
        for _, _, body in channel.consume("q", auto_ack=True, inactivity_timeout=20):
            got.append(body)
            if len(got) == COUNT:
                break
        assert time.monotonic() - began >= (COUNT - 10) / 20 - 0.2
        assert got == [b"%d" % number for number in range(COUNT)]
        connection.close()
        broker.check_untroubled()
