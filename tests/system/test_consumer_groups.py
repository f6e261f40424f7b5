"""Consumer groups in a real process: what was acknowledged stays so, through stops and kills."""

from __future__ import annotations

import random
import time

import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.system.test_kill import make_seed

pytestmark = pytest.mark.usefixtures("processes")

MESSAGES = 400
KILLS = 6
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    return connection, connection.channel()


def read(broker, group, count, rng):
    """Read some messages as a member of a group; return those acknowledged, and all that came."""
    connection, channel = connect(broker)
    channel.basic_qos(prefetch_count=20)
    arguments = {"x-consumer-group": group, "x-stream-offset": "first"}
    acked, came = [], []
    for method, properties, body in channel.consume(
        "q", arguments=arguments, inactivity_timeout=1.0
    ):
        if method is None:
            break
        assert properties.headers["x-partition"] == 0
        came.append(int(body))
        if rng.random() < 0.9:  # what is left is delivered again
            channel.basic_ack(method.delivery_tag)
            acked.append(int(body))
        if len(came) == count:
            break
    connection.process_data_events(0.2)  # the acknowledgements are sent
    time.sleep(0.2)  # and written
    connection.close()
    return acked, came


@pytest.mark.parametrize("kind", ["stream", "quorum", "classic"])
def test_groups_survive_kills(tmp_path, kind):
    rng = random.Random(make_seed())
    broker = BrokerProcess(tmp_path / "data")
    arguments = {"x-queue-type": kind}
    if kind != "stream":
        arguments["x-retention"] = "1h"
    acked = {"a": set(), "b": set()}
    try:
        broker.start()
        connection, channel = connect(broker)
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.confirm_delivery()
        for number in range(MESSAGES):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        connection.close()
        for _ in range(KILLS):
            for group, done in acked.items():
                fresh, came = read(broker, group, rng.randint(20, 80), rng)
                assert not done & set(came)  # what was acknowledged never comes again
                done |= set(fresh)
            if rng.random() < 0.5:
                broker.stop()
            else:
                broker.kill()
            broker.start()
        for group, done in acked.items():
            while len(done) < MESSAGES:
                fresh, came = read(broker, group, MESSAGES, rng)
                assert came
                assert not done & set(came)
                done |= set(fresh)
            assert done == set(range(MESSAGES))
    finally:
        broker.stop()
