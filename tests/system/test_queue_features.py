"""Lifetimes, limits, priorities and delivery limits hold when the process is killed, or stopped."""

from __future__ import annotations

import time

import pika
import pytest

from tests.harness.broker import BrokerProcess

pytestmark = pytest.mark.usefixtures("processes")

PRIORITIES = [1, 5, None, 3, 5]


def connected(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.confirm_delivery()
    return connection, channel


def declare(channel, name, **arguments):
    arguments = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.queue_declare(name, durable=True, arguments=arguments).method.message_count


def publish(channel, queue, body, **properties):
    properties = pika.BasicProperties(delivery_mode=2, **properties)
    channel.basic_publish("", queue, body, properties)


def drained(channel, queue):
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2].decode())
    return bodies


def await_count(channel, queue, count, seconds=10.0):
    deadline = time.monotonic() + seconds
    while channel.queue_declare(queue, passive=True).method.message_count != count:
        assert time.monotonic() < deadline, f"{queue} never had {count} messages"
        time.sleep(0.05)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("killed", [True, False])
def test_queues_do_after_a_restart_what_they_did_before(tmp_path, durability, killed):
    with BrokerProcess(tmp_path / "data", durability=durability) as broker:
        connection, channel = connected(broker)
        limits = {"max_length": 3}
        lives = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        declare(channel, "dead")
        declare(channel, "limited", **limits)
        declare(channel, "ranked", max_priority=5)
        declare(channel, "quorum", queue_type="quorum")
        declare(channel, "lives", **lives)
        declare(channel, "ages", message_ttl=3_600_000, **lives)
        declare(channel, "unused", expires=1500)
        for number in range(5):
            publish(channel, "limited", b"%d" % number)
        for number, priority in enumerate(PRIORITIES):
            publish(channel, "ranked", b"%d" % number, priority=priority)
            publish(channel, "quorum", b"%d" % number, priority=priority)
        publish(channel, "lives", b"long", expiration="3600000")
        publish(channel, "lives", b"short", expiration="2000")
        publish(channel, "lives", b"for ever")
        publish(channel, "ages", b"short", expiration="2000")
        connection.close()
        if killed:
            broker.kill()
        else:
            broker.stop()
        broker.start()

        connection, channel = connected(broker)
        publish(channel, "limited", b"5")
        publish(channel, "ranked", b"5", priority=4)
        assert drained(channel, "limited") == ["3", "4", "5"]
        assert drained(channel, "ranked") == ["1", "4", "5", "3", "0", "2"]
        assert drained(channel, "quorum") == ["1", "4", "2", "3", "0"]
        await_count(channel, "dead", 2)
        assert drained(channel, "dead") == ["short", "short"]
        assert drained(channel, "lives") == ["long", "for ever"]
        assert drained(channel, "ages") == []
        time.sleep(1.6)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("unused", passive=True)
        connection.close()
        broker.check_untroubled()


@pytest.mark.covers("B-129", "B-142", "B-143")
@pytest.mark.parametrize("killed", [True, False])
def test_a_restart_forgets_the_delay_of_a_message_and_not_how_often_it_came_back(tmp_path, killed):
    with BrokerProcess(tmp_path / "data", durability="os") as broker:
        connection, channel = connected(broker)
        delay = {"delayed_retry_type": "failed", "delayed_retry_min": 3_600_000}
        declare(channel, "q", queue_type="quorum", **delay)
        publish(channel, "q", b"0")
        publish(channel, "q", b"1")
        method, _, _ = channel.basic_get("q")
        channel.basic_reject(method.delivery_tag, requeue=True)
        assert drained(channel, "q") == ["1"]
        publish(channel, "q", b"2")
        time.sleep(0.2)  # returns are written down 50 ms later
        connection.close()
        if killed:
            broker.kill()
        else:
            broker.stop()
        broker.start()

        connection, channel = connected(broker)
        method, properties, body = channel.basic_get("q", auto_ack=True)
        assert (method.redelivered, body) == (True, b"0")
        assert properties.headers == {"x-delivery-count": 1, "x-acquired-count": 1}
        _, properties, body = channel.basic_get("q", auto_ack=True)
        assert (properties.headers, body) == (None, b"2")
        connection.close()
        broker.check_untroubled()
