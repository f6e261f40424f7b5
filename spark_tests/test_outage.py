"""A broker that is away for half a minute: whatever runs meanwhile waits, and goes on."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from spark_tests.test_stream import Query
from tests.support.waiting import LIMIT_SECONDS, wait_until

OUTAGE_S = 30  # longer than the longest pause between two attempts, shorter than `retryTimeout`
READ, MORE = 200, 50
EARLY, LATE = (0, 100), (100, 200)  # written before the outage, and in it
BETWEEN = (-1, 0)  # the row between what is read before the outage, and in it


@pytest.fixture
def moments(tmp_path):
    """Return a directory whose files tell processes of Spark, and are told by them, what is."""
    directory = tmp_path / "moments"
    directory.mkdir()
    return directory


def until_away(moments, name):
    """Return a step of a query that waits for the broker to be away; `name` is its file."""
    begun, away, limit_s = moments / name, moments / "away", LIMIT_SECONDS

    def wait(rows):
        begun.touch()
        end = time.monotonic() + limit_s
        while not away.exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield from rows

    return wait


def bodies(table):
    return Counter(int(row.body) for row in table.selectExpr("string(value) as body").collect())


def staged_parts(node):
    return sum(row["parts"] for row in node.ask("GET", "leveret/batches/%2F"))


def publish(channel, topic, numbers):
    for number in numbers:
        headers = {"x-partition-key": str(number)}
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        channel.basic_publish("", topic, b"%d" % number, properties)


def test_what_runs_while_the_broker_is_away_goes_on(spark, node, channel, topic, moments, tmp_path):
    target = f"{topic}-target"
    channel.queue_declare(target, durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, topic, range(READ))

    def numbers(first, end, step=iter):
        """Return numbers as texts, in one partition, which takes a step before."""
        table = spark.range(first, end, numPartitions=1).selectExpr("string(id) as value")
        return spark.createDataFrame(table.rdd.mapPartitions(step), table.schema)

    def load(name, **options):
        given = {"servers": node.server, "subscribe": name, **options}
        return spark.read.format("leveret").options(**given).load()

    def read():
        table = load(topic, maxRecordsPerPartition="10").select("value")
        between = numbers(*BETWEEN, until_away(moments, "read"))
        # One task reads everything, waits, and reads everything again.
        return bodies(table.union(between.selectExpr("binary(value)")).union(table).coalesce(1))

    def write():
        late = numbers(*LATE, until_away(moments, "write"))
        writer = numbers(*EARLY).union(late).write.format("leveret").mode("append")
        writer.options(servers=node.server, topic=target).save()

    stream = Query(spark, node, topic, tmp_path)
    running = stream.start()
    wait_until(lambda: running.recentProgress, "the stream's first batch")
    before = staged_parts(node)  # by other tests
    with ThreadPoolExecutor() as threads:
        reading, writing = threads.submit(read), threads.submit(write)
        wait_until(lambda: len(list(moments.iterdir())) == 2, "tasks that read and write")
        wait_until(lambda: staged_parts(node) == before + 1, "the part that is staged before")
        node.kill()
        (moments / "away").touch()
        try:
            time.sleep(OUTAGE_S)
            assert not reading.done()
            assert not writing.done()
        finally:
            node.start()
        found = reading.result(LIMIT_SECONDS)
        writing.result(LIMIT_SECONDS)
    with pika.BlockingConnection(node.parameters) as connection:
        publish(connection.channel(), topic, range(READ, READ + MORE))
    assert found == Counter([*range(READ), *range(*BETWEEN), *range(READ)])
    assert bodies(load(target)) == Counter([*range(*EARLY), *range(*LATE)])
    assert stream.wait_for(READ + MORE) == list(range(READ + MORE))
