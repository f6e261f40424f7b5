"""Exactly once, whatever is killed: the driver with its JVM, its workers, and the broker.

A publisher with confirms goes on all the time, and partitions are added meanwhile. In the end each
message of the log is in the sink once, files or another topic, and each confirmed one is in the
log.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from spark_tests.node import Node

DRIVER_KILLS, BROKER_KILLS = 10, 5
DIRECTORY = Path(__file__).parents[1]
BURST = 200


class Publisher(threading.Thread):
    """Publishes numbers with confirms; what is not confirmed is published again."""

    def __init__(self, node, topic):
        super().__init__()
        self._node, self._topic = node, topic
        self._ended = threading.Event()
        self.confirmed = set()
        self._next = 0

    def run(self):
        while not self._ended.is_set():
            try:
                with pika.BlockingConnection(self._node.parameters) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while not self._ended.is_set():
                        self._publish(channel)
                        connection.sleep(0.05)
            except (AMQPError, OSError):
                time.sleep(0.1)

    def _publish(self, channel):
        for number in range(self._next, self._next + BURST):
            if number not in self.confirmed:
                properties = pika.BasicProperties(
                    delivery_mode=2, headers={"x-partition-key": str(number % 50)}
                )
                channel.basic_publish("", self._topic, b"%d" % number, properties)
                self.confirmed.add(number)
        self._next += BURST

    def end(self):
        self._ended.set()
        self.join()


@contextmanager
def query(server, topic, directory, *options, program="copy_query"):
    """Run the query as a process group of its own; kill what is left of it."""
    command = [sys.executable, "-m", f"spark_tests.{program}", server, topic, str(directory)]
    with (directory / "query.log").open("a") as log:
        process = subprocess.Popen(
            [*command, *options],
            cwd=DIRECTORY,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def batches(directory):
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))


def wait_for_batches(process, directory, count):
    """Wait until a query has made so many batches more than there were."""
    wanted, end = batches(directory) + count, time.monotonic() + 300
    while batches(directory) < wanted:
        assert process.poll() is None, (directory / "query.log").read_text()[-3000:]
        assert time.monotonic() < end, (directory / "query.log").read_text()[-3000:]
        time.sleep(0.05)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sink", ["files", "topic"])
def test_each_message_is_written_once(spark, tmp_path, sink):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    topic, target = "killed", "copied"
    with Node(data).running() as node:
        with pika.BlockingConnection(node.parameters) as connection:
            arguments = {"x-queue-type": "stream", "x-partitions": 2}
            for name in (topic, target):
                connection.channel().queue_declare(name, durable=True, arguments=arguments)
        publisher = Publisher(node, topic)
        publisher.start()
        options = ["--into", target] if sink == "topic" else []
        try:
            for kill in range(DRIVER_KILLS):
                with query(node.server, topic, tmp_path, *options) as process:
                    wait_for_batches(process, tmp_path, 2)
                    if kill < BROKER_KILLS:
                        node.kill()
                        time.sleep(chance.uniform(0, 1))
                        node.start()
                        wait_for_batches(process, tmp_path, 1)
                    time.sleep(chance.uniform(0, 1.5))
                if kill in {3, 6}:
                    node.set_partitions(topic, 2 + kill // 3)
        finally:
            publisher.end()
        with query(node.server, topic, tmp_path, *options, "--until-now") as process:
            assert process.wait(300) == 0, (tmp_path / "query.log").read_text()[-3000:]
        stored = bodies(spark, node.server, topic)
        if sink == "files":
            table = spark.read.parquet(str(tmp_path / "out"))
            written = Counter(map(tuple, table.select("body", "partition", "offset").collect()))
        else:
            copies = (row.body.split(".") for row in bodies(spark, node.server, target))
            written = Counter((body, int(part), int(offset)) for body, part, offset in copies)
    assert {row.partition for row in stored} == {0, 1, 2, 3}
    assert {int(row.body) for row in stored} >= publisher.confirmed
    assert written == Counter(map(tuple, stored))
    assert set(written.values()) == {1}
    assert len(stored) > 10 * BURST
    print(f"{len(stored)} messages in {batches(tmp_path)} batches")


def bodies(spark, server, topic):
    """Return body, partition and offset of all messages of a topic."""
    options = {"servers": server, "subscribe": topic}
    table = spark.read.format("leveret").options(**options).load()
    return table.selectExpr("cast(value as string) as body", "partition", "offset").collect()
