"""Failed messages come back or are dead letters in the end, however often the process dies."""

from __future__ import annotations

import random
import time

import pika
import pytest
from pika.exceptions import AMQPConnectionError, AMQPError

from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS
from tests.system.test_kill import make_seed
from tests.system.test_queue_features import await_count, connected, declare, publish

pytestmark = pytest.mark.usefixtures("processes")

MESSAGES = 120
HOPELESS = {f"m{number}" for number in range(0, MESSAGES, 3)}
DELAYS = [30, 60, 90]


def consume_for(broker, seconds, acked):
    """Fail what is hopeless, and all others once; until the time is over, or the process is."""
    deadline = time.monotonic() + seconds
    try:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, properties, body in channel.consume("q", inactivity_timeout=0.1):
            if method is not None:
                count = (properties.headers or {}).get("x-retry-count", 0)
                assert count <= len(DELAYS)
                if body.decode() not in HOPELESS and count >= 1:
                    channel.basic_ack(method.delivery_tag)
                    acked.add(body.decode())
                else:
                    channel.basic_nack(method.delivery_tag, requeue=False)
            if time.monotonic() > deadline:
                break
        connection.close()
    except (AMQPConnectionError, AMQPError, OSError):
        pass


def dead_letters(channel):
    found = {}
    while (got := channel.basic_get("q.dlq", auto_ack=True))[0] is not None:
        found[got[2].decode()] = got[1].headers
    return found


@pytest.mark.covers("C-205")
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_lose_no_message_that_waits_to_be_tried_again(tmp_path, durability):
    rng = random.Random(make_seed())
    broker = BrokerProcess(tmp_path / "data", durability=durability)
    acked: set[str] = set()
    try:
        broker.start()
        connection, channel = connected(broker)
        declare(channel, "q", retry_delays=DELAYS)
        for number in range(MESSAGES):
            publish(channel, "q", f"m{number}")
        connection.close()
        for _ in range(4):
            consume_for(broker, rng.uniform(0.02, 0.4), acked)
            broker.kill()
            broker.start()
        consume_for(broker, 2.0, acked)
        connection, channel = connected(broker)
        await_count(channel, "q", 0)
        dead = dead_letters(channel)
        connection.close()
        assert acked == {f"m{number}" for number in range(MESSAGES)} - HOPELESS
        assert set(dead) == HOPELESS
        assert {headers["x-retry-count"] for headers in dead.values()} == {len(DELAYS)}
        broker.check_untroubled()
    finally:
        broker.kill()


@pytest.mark.covers("C-205")
def test_a_long_wait_outlives_a_restart(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        declare(channel, "q", retry_delays=[1500])
        publish(channel, "q", "late")
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        connection.close()
        time.sleep(0.3)
        broker.kill()
        broker.start()
        connection, channel = connected(broker)
        await_count(channel, "q", 1)
        assert channel.basic_get("q")[1].headers["x-retry-count"] == 1
        connection.close()


@pytest.mark.covers("C-205")
def test_order_by_key_outlives_a_restart(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        declare(channel, "q", retry_delays=[2500], retry_keep_order="key")
        for body in ("1", "2"):
            publish(channel, "q", body)
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        connection.close()
        time.sleep(0.3)
        broker.kill()
        broker.start()
        connection, channel = connected(broker)
        publish(channel, "q", "3")
        found = []
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(found) < 3 and time.monotonic() < deadline:
            method, _, body = channel.basic_get("q")
            if method is None:
                time.sleep(0.05)
            else:
                found.append(body.decode())
                channel.basic_ack(method.delivery_tag)
        assert found == ["1", "2", "3"]
        connection.close()
