"""Failed messages come back or are dead letters in the end, however often the process dies."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from pika.exceptions import AMQPError

from tests.harness.broker import BrokerProcess
from tests.harness.kills import durability_of
from tests.harness.pika_client import await_count, connect, connected, declare, publish

pytestmark = pytest.mark.usefixtures("processes")

MESSAGES = 60
HOPELESS = {f"m{number}" for number in range(0, MESSAGES, 3)}
HELPED = {f"m{number}" for number in range(MESSAGES)} - HOPELESS
DELAYS = [30, 60, 90]


def consume(broker, acked, count=None):
    """Fail what is hopeless, and all others once.

    Until everything has come to its end, or until the node is killed at the `count`-th delivery.
    """
    connection, channel = connect(broker)
    channel.basic_qos(prefetch_count=10)
    for method, properties, body in channel.consume("q", inactivity_timeout=0.1):
        if method is not None:
            failures = (properties.headers or {}).get("x-retry-count", 0)
            assert failures <= len(DELAYS)
            if body.decode() not in HOPELESS and failures >= 1:
                channel.basic_ack(method.delivery_tag)
                acked.add(body.decode())
            else:
                channel.basic_nack(method.delivery_tag, requeue=False)
            if count is not None:
                count -= 1
                if not count:
                    broker.kill()
                    break
        elif acked == HELPED and dead_letter_count(channel) >= len(HOPELESS):
            break
    with suppress(AMQPError):
        connection.close()


def dead_letter_count(channel):
    return channel.queue_declare("q.dlq", passive=True).method.message_count


def dead_letters(channel):
    found = {}
    while (got := channel.basic_get("q.dlq", auto_ack=True))[0] is not None:
        found[got[2].decode()] = got[1].headers
    return found


@pytest.mark.covers("C-205")
@pytest.mark.kills
def test_kills_lose_no_message_that_waits_to_be_tried_again(tmp_path, seed):
    rng = random.Random(seed)
    acked: set[str] = set()
    with BrokerProcess(tmp_path / "data", durability=durability_of(seed)) as broker:
        connection, channel = connected(broker)
        declare(channel, "q", retry_delays=DELAYS)
        for number in range(MESSAGES):
            publish(channel, "q", f"m{number}")
        connection.close()
        for _ in range(2):
            consume(broker, acked, rng.randint(1, MESSAGES))
            broker.start()
        consume(broker, acked)
        connection, channel = connected(broker)
        await_count(channel, "q", 0)
        dead = dead_letters(channel)
        connection.close()
        assert acked == HELPED
        assert set(dead) == HOPELESS
        assert {headers["x-retry-count"] for headers in dead.values()} == {len(DELAYS)}
        broker.check_untroubled()
