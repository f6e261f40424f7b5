"""Nothing of a queue is lost, whatever is killed: the driver with its JVM, and the broker.

A publisher with confirms and another consumer work all the time. In the end each confirmed message
was consumed by somebody, and what only Spark had is in its files once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pika
import pytest
from pika.exceptions import AMQPError

from spark_tests.node import Node
from spark_tests.test_kills import BURST, Publisher, batches, query, wait_for_batches

DRIVER_KILLS = 2
QUEUE = "work"


class OncePublisher(Publisher):
    """Publishes each number once: one that is not confirmed may be in the queue or not."""

    def _publish(self, channel):
        for _ in range(BURST):
            number, self._next = self._next, self._next + 1
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", self._topic, b"%d" % number, properties)
            self.confirmed.add(number)


class SlowConsumer(threading.Thread):
    """Consumes beside Spark. `seen` it was delivered, and it has acknowledged `done`."""

    def __init__(self, node):
        super().__init__()
        self._node = node
        self._ended = threading.Event()
        self.seen, self.done = set(), set()

    def run(self):
        while not self._ended.is_set():
            try:
                with pika.BlockingConnection(self._node.parameters) as connection:
                    channel = connection.channel()
                    channel.basic_qos(prefetch_count=10)
                    for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.1):
                        if self._ended.is_set():
                            break
                        if method is not None:
                            self.seen.add(int(body))
                            channel.basic_ack(method.delivery_tag)
                            self.done.add(int(body))
                            connection.sleep(0.002)
            except (AMQPError, OSError):
                time.sleep(0.1)

    def end(self):
        self._ended.set()
        self.join()


@pytest.mark.timeout(600)
def test_each_message_is_consumed_by_somebody(spark, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    with Node(data).running() as node:
        with pika.BlockingConnection(node.parameters) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        publisher, consumer = OncePublisher(node, QUEUE), SlowConsumer(node)
        publisher.start()
        consumer.start()
        try:
            for kill in range(DRIVER_KILLS):
                with query(node.server, QUEUE, tmp_path, program="queue_query") as process:
                    wait_for_batches(process, tmp_path, 3)
                    if not kill:
                        before = len(consumer.done)
                        node.kill()
                        time.sleep(chance.uniform(0, 1))
                        node.start()
                        wait_for_batches(process, tmp_path, 2)
                        while len(consumer.done) == before:
                            time.sleep(0.05)
                    time.sleep(chance.uniform(0, 1.5))
        finally:
            publisher.end()
            consumer.end()
        with query(node.server, QUEUE, tmp_path, "--until-now", program="queue_query") as process:
            assert process.wait(300) == 0, (tmp_path / "query.log").read_text()[-3000:]
        left = node.ask("GET", f"queues/%2F/{QUEUE}")
        written = spark.read.parquet(str(tmp_path / "out")).select("body").collect()
    found = Counter(int(row.body) for row in written)
    assert not publisher.confirmed - set(found) - consumer.done
    assert {number for number, count in found.items() if count > 1} <= consumer.seen
    assert (left["messages"], left["consumers"]) == (0, 0)
    assert found, "Spark has had some, however quick the other one was"
    assert consumer.done
    print(
        f"{len(found)} messages in {batches(tmp_path)} batches, {len(consumer.done)} of the other "
        f"consumer, {len(set(found) & consumer.seen)} of both"
    )
