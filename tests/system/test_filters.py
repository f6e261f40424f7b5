"""Filters on a whole node, with pika: every type of queue, bindings, refusals."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.harness.broker import BrokerProcess

TYPES = ["classic", "quorum", "stream"]
COUNT = 300


def connected(port):
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def publish(channel, exchange, key, number, tags):
    headers = {"x-tags": tags, "n": number}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    channel.basic_publish(exchange, key, b"%d" % number, properties)


def fill(channel, queue):
    channel.confirm_delivery()
    for number in range(COUNT):
        publish(channel, "", queue, number, ["even" if number % 2 == 0 else "odd", f"t{number}"])


def taken(channel, queue, arguments, count, *, ack=True):
    """The numbers of so many deliveries, and that no more come."""
    found = []
    channel.basic_qos(prefetch_count=COUNT)
    for method, _, body in channel.consume(queue, arguments=arguments, inactivity_timeout=0.5):
        if method is None:
            break
        found.append(int(body))
        if ack:
            channel.basic_ack(method.delivery_tag)
    channel.cancel()
    assert len(found) == count
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory, processes):
    with BrokerProcess(tmp_path_factory.mktemp("filters") / "data") as started:
        yield started
        started.check_untroubled()


def declared(channel, kind):
    queue = f"filters-{kind}"
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    return queue


@pytest.mark.covers("C-209")
@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_gets_what_it_wants(broker, kind):
    start = {"x-stream-offset": "first"} if kind == "stream" else {}
    with connected(broker.port) as connection:
        channel = connection.channel()
        queue = declared(channel, kind)
        fill(channel, queue)
        arguments = {"x-filter-tags": "even && !t10", "x-filter-sql": "n BETWEEN 5 AND 15", **start}
        assert taken(channel, queue, arguments, 4) == [6, 8, 12, 14]
        left = COUNT - 4
        if kind != "stream":
            assert channel.queue_declare(queue, passive=True).method.message_count == left


@pytest.mark.covers("C-209")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_skipped_messages_are_gone_and_kept_ones_are_not(broker, kind):
    with connected(broker.port) as connection:
        channel = connection.channel()
        queue = declared(channel, kind)
        fill(channel, queue)
        odd = taken(channel, queue, {"x-filter-tags": "odd"}, COUNT // 2)
        assert odd == list(range(1, COUNT, 2))
        skip = {"x-filter-tags": "t0 || t200", "x-filter-unmatched": "skip"}
        assert taken(channel, queue, skip, 2) == [0, 200]
        assert channel.queue_declare(queue, passive=True).method.message_count == 0


@pytest.mark.covers("C-209")
@pytest.mark.parametrize("kind", TYPES)
def test_a_wrong_expression_closes_the_channel(broker, kind):
    with connected(broker.port) as connection:
        channel = connection.channel()
        queue = declared(channel, kind)
        channel.basic_qos(prefetch_count=1)
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.basic_consume(queue, print, arguments={"x-filter-tags": "a && "})
        assert closed.value.reply_code == 406
        assert "expected a tag, found the end at character 6" in closed.value.reply_text
        channel = connection.channel()
        publish(channel, "", queue, 1, [b"bytes"])
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.queue_declare(queue, passive=True)
        assert "invalid header 'x-tags'" in closed.value.reply_text


def test_bindings_route_by_filters(broker):
    with connected(broker.port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("filtered", "topic")
        for name, arguments in (
            ("tagged", {"x-filter-tags": "even"}),
            ("judged", {"x-filter-sql": "n >= 290"}),
            ("all", {}),
        ):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "filtered", "k.#", arguments)
        for number in range(COUNT):
            publish(channel, "filtered", "k.x", number, "even" if number % 2 == 0 else "odd")
        counts = [
            channel.queue_declare(name, passive=True).method.message_count
            for name in ("tagged", "judged", "all")
        ]
        assert counts == [COUNT // 2, 10, COUNT]


def test_dead_letters_keep_their_tags(broker):
    with connected(broker.port) as connection:
        channel = connection.channel()
        channel.queue_declare("discarded", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "discarded"}
        channel.queue_declare("dying", durable=True, arguments={**dead, "x-message-ttl": 0})
        channel.confirm_delivery()
        for number in range(4):
            publish(channel, "", "dying", number, ["even" if number % 2 == 0 else "odd"])
        assert taken(channel, "discarded", {"x-filter-tags": "odd"}, 2) == [1, 3]
