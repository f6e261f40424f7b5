"""Usage of queues in a node that is killed: it agrees with their logs to the message."""

from __future__ import annotations

import random
from contextlib import suppress

import pika
import pytest
from pika.exceptions import AMQPError

from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess

pytestmark = pytest.mark.usefixtures("processes")

KILLS = 3
BODY = b"x" * 50
RECORD_BYTES = 26 + len("stream") + 15 + len(BODY)  # framing, key, content header, body
PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES = {
    "stream": {"x-queue-type": "stream"},
    "parted": {"x-queue-type": "stream", "x-partitions": 3},
    "quorum": {"x-queue-type": "quorum"},
    "classi": {},
}


def connect(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    return connection, connection.channel()


def publish(channel, rng):
    """Publish to all queues; return how many messages each got."""
    sent = {name: rng.randint(0, 200) for name in QUEUES}
    for name, count in sent.items():
        properties = PERSISTENT
        for _ in range(count):
            channel.basic_publish("", name, BODY, properties)
    return sent


def usage(broker):
    asked = {"since": 0, "until": 1 << 40, "subject": "queue", "vhost": "/", "name": None}
    found = {}
    for row in request(broker.data / "control.sock", "usage.list", asked)["result"]:
        known = found.get(row["name"], (0, 0))
        found[row["name"]] = known[0] + row["messages_in"], known[1] + row["bytes_in"]
    return found


def test_messages_in_are_exact_through_kills(tmp_path):
    rng = random.Random(1)
    broker = BrokerProcess(tmp_path / "data")
    sent = dict.fromkeys(QUEUES, 0)
    purged = 0  # whose number is known by their offsets, and the bytes only if the file is there
    try:
        broker.start()
        for turn in range(KILLS):
            connection, channel = connect(broker)
            channel.confirm_delivery()
            before = dict(sent)
            for name, arguments in QUEUES.items():
                channel.queue_declare(name, durable=True, arguments=arguments)
            for name, count in publish(channel, rng).items():
                sent[name] += count
            if turn % 2:
                usage(broker)  # writes it down
                for name, count in publish(channel, rng).items():
                    sent[name] += count
            if turn == 2:
                purged = channel.queue_purge("classi").method.message_count
            broker.kill()
            with suppress(AMQPError):
                connection.close()
            broker.start()
            told = usage(broker)
            assert {name: told[name][0] for name in QUEUES} == sent
            expected = {name: count * RECORD_BYTES for name, count in sent.items()}
            if purged and told["classi"][1] != expected["classi"]:
                expected["classi"] -= (sent["classi"] - before["classi"]) * RECORD_BYTES
            assert {name: told[name][1] for name in QUEUES} == expected
    finally:
        broker.stop()
