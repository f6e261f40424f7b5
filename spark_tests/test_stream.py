"""Topics as streams: batches, limits, restarts, partitions that come and go, losses."""

from __future__ import annotations

import json
import time

import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows

from leveret.spark.errors import DataLossError
from leveret.spark.read_options import read_options
from leveret.spark.schema import table_schema
from leveret.spark.stream_reader import LeveretStreamReader

KEY = "x-partition-key"
SECONDS_MAX = 90


def publish(channel, topic, *numbers, key=None, padding=b""):
    for number in numbers:
        properties = pika.BasicProperties(
            delivery_mode=2, headers={KEY: key or f"key-{number % 16}"}
        )
        channel.basic_publish("", topic, b"%d" % number + padding, properties)


class Query:
    """A streaming query into Parquet files, which can be stopped and started again."""

    def __init__(self, spark, node, topic, directory):
        self._spark, self._node, self._topic = spark, node, topic
        self.output, self._checkpoint = str(directory / "out"), str(directory / "checkpoint")
        self._query = None
        self.options = {"startingOffsets": "earliest"}

    def run(self, **options):
        """Run until everything that is there now was read; return the query."""
        query = self._started(options).trigger(availableNow=True).start()
        query.awaitTermination(SECONDS_MAX)
        return query

    def start(self, **options):
        """Start, to run until it is stopped."""
        self._query = self._started(options).start()
        return self._query

    def _started(self, options):
        given = {"servers": self._node.server, "subscribe": self._topic, **self.options, **options}
        table = self._spark.readStream.format("leveret").options(**given).load()
        writer = table.selectExpr(
            "cast(value as string) as body", "partition", "offset"
        ).writeStream
        return writer.option("checkpointLocation", self._checkpoint).option("path", self.output)

    def bodies(self):
        """Return what was written so far, as numbers."""
        rows = self._spark.read.schema("body string").parquet(self.output).collect()
        return sorted(int(row.body) for row in rows)

    def wait_for(self, count):
        """Wait until so many rows were written."""
        end = time.monotonic() + SECONDS_MAX
        while len(self.bodies()) < count:
            assert self._query.exception() is None, self._query.exception()
            assert time.monotonic() < end, (len(self.bodies()), self._query.status)
            time.sleep(0.2)
        self._query.stop()
        return self.bodies()


@pytest.fixture
def query(spark, node, topic, tmp_path):
    return Query(spark, node, topic, tmp_path)


def test_a_query_goes_on_where_it_was(query, channel, topic):
    publish(channel, topic, *range(20))
    query.run()
    assert query.bodies() == list(range(20))
    query.run()
    publish(channel, topic, *range(20, 50))
    query.run()
    assert query.bodies() == list(range(50))


def test_the_progress_tells_what_is_left(query, channel, topic):
    publish(channel, topic, *range(50))
    found = query.run(maxOffsetsPerTrigger="10")

    def messages(progress, name):
        offsets = json.loads(getattr(progress.sources[0], name))["offsets"]
        return sum(offsets[topic].values())

    read = [each for each in found.recentProgress if each.numInputRows]
    assert {messages(each, "latestOffset") for each in read} == {50}
    assert 0 < messages(read[0], "endOffset") <= 10
    assert messages(read[-1], "endOffset") == 50
    assert not read[-1].sources[0].metrics  # Spark asks no source in Python for them


def test_a_batch_has_a_limit(query, channel, topic):
    publish(channel, topic, *range(50))
    found = query.run(maxOffsetsPerTrigger="10")
    counts = [progress.numInputRows for progress in found.recentProgress]
    assert sum(counts) == 50
    assert max(counts) <= 10
    assert query.bodies() == list(range(50))


def test_a_batch_has_a_limit_in_bytes(query, channel, topic):
    for number in range(40):
        properties = pika.BasicProperties(delivery_mode=2, headers={KEY: str(number)})
        channel.basic_publish("", topic, b"%d" % number + b" " * 10_000, properties)
    found = query.run(maxBytesPerTrigger="100000")
    counts = [progress.numInputRows for progress in found.recentProgress]
    assert sum(counts) == 40
    assert max(counts) <= 12


def test_a_running_query_reads_what_comes(query, channel, topic):
    query.options = {"startingOffsets": "latest"}
    publish(channel, topic, *range(5))
    running = query.start()
    while not running.recentProgress and running.exception() is None:
        time.sleep(0.1)
    publish(channel, topic, *range(5, 25))
    assert query.wait_for(20) == list(range(5, 25))


def test_a_batch_waits_for_enough(query, channel, topic):
    publish(channel, topic, *range(5))
    query.start(minOffsetsPerTrigger="20", maxTriggerDelay="1h")
    time.sleep(5)
    assert query.bodies() == []
    publish(channel, topic, *range(5, 20))
    assert query.wait_for(20) == list(range(20))


def test_a_batch_does_not_wait_for_ever(query, channel, topic):
    publish(channel, topic, *range(5))
    query.start(minOffsetsPerTrigger="20", maxTriggerDelay="2s")
    assert query.wait_for(5) == list(range(5))


def test_partitions_come_and_go(query, node, channel, topic):
    publish(channel, topic, *range(20))
    query.run()
    node.set_partitions(topic, 4)
    publish(channel, topic, *range(20, 80))
    query.run()
    node.set_partitions(topic, 1)
    publish(channel, topic, *range(80, 100))
    query.run()
    assert query.bodies() == list(range(100))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is for batch reads"),
        ({"maxOffsets": "5"}, "has no option 'maxoffsets'"),
        ({"maxOffsetsPerTrigger": "few"}, "'maxOffsetsPerTrigger' is 'few'"),
        ({"format": "text", "mode": "failfast", "filterTags": " "}, "'filterTags' is empty"),
        ({"subscribe": "", "consume": "invoices"}, "one of them must do"),
    ],
)
def test_a_wrong_option_is_the_error_and_nothing_else(query, options, text):
    with pytest.raises(PySparkException, match=text) as ended:
        query.run(**options)
    assert "UnboundLocalError" not in str(ended.value)
    told = [line for line in str(ended.value).splitlines() if not line.startswith("\tat ")]
    assert "OptionError: " in [line for line in told if "Error: " in line][-1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"password": "wrong"}, "wrong user or password"),
        ({"vhost": "elsewhere"}, "does not exist in virtual host 'elsewhere'"),
    ],
)
def test_what_the_broker_refuses_ends_the_query_at_once(query, channel, topic, options, text):
    publish(channel, topic, *range(10))
    with pytest.raises(PySparkException, match=text):
        query.run(**options)


def test_a_wrong_filter_ends_the_query_before_it_reads(query, channel, topic):
    publish(channel, topic, *range(10))
    with pytest.raises(PySparkException, match="400: filter: ") as ended:
        query.run(filter="n >=")
    assert "python_streaming_source_runner" in str(ended.value)  # on the driver: no task has run


def test_an_outage_that_lasts_ends_the_query(spark, query, node, channel, topic):
    publish(channel, topic, *range(10))
    query.run()
    query.options |= {"servers": "127.0.0.1:1", "retryTimeout": "1s"}
    with pytest.raises(PySparkException, match=r"none of http://127\.0\.0\.1:1"):
        query.run()


def test_another_server_is_asked(query, node, channel, topic):
    publish(channel, topic, *range(10))
    query.run(servers=f"127.0.0.1:1,{node.server}")
    assert query.bodies() == list(range(10))


def test_removed_messages_end_the_query(query, channel, node, spark, tmp_path):
    name = f"short-{tmp_path.name}"
    arguments = {
        "x-queue-type": "stream",
        "x-max-length-bytes": 200_000,
        "x-stream-max-segment-size-bytes": 50_000,
    }
    channel.queue_declare(name, durable=True, arguments=arguments)
    query._topic = name
    publish(channel, name, *range(10))
    query.run()
    publish(channel, name, *range(10, 200), padding=b" " * 10_000)
    with pytest.raises(PySparkException, match="were removed before they were read"):
        query.run()
    query.run(failOnDataLoss="false")
    found = query.bodies()
    assert found[:10] == list(range(10))
    assert found[-1] == 199
    assert len(set(found)) == len(found) < 200


def test_another_topic_of_the_same_name_is_told(query, channel, topic):
    publish(channel, topic, *range(10))
    query.run()
    channel.queue_delete(topic)
    arguments = {"x-queue-type": "stream", "x-partitions": 2}
    channel.queue_declare(topic, durable=True, arguments=arguments)
    publish(channel, topic, *range(100, 120))
    with pytest.raises(PySparkException, match="was deleted and declared again"):
        query.run()
    query.run(failOnDataLoss="false")
    assert query.bodies() == [*range(10), *range(100, 120)]


def test_a_topic_that_is_not_subscribed_to_any_more_ends_the_query(query, channel, topic):
    publish(channel, topic, *range(10))
    query.run()
    publish(channel, topic, *range(10, 20))
    query._topic = f"{topic}-other"
    channel.queue_declare(query._topic, durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, query._topic, *range(100, 120))
    with pytest.raises(PySparkException, match=f"topic '{topic}', partitions 0, 1"):
        query.run()
    query.run(failOnDataLoss="false")
    query.run()
    assert query.bodies() == [*range(10), *range(100, 120)]


def test_a_compacted_topic_has_no_losses(query, channel, spark, node, tmp_path):
    name = f"compacted-{tmp_path.name}"
    arguments = {"x-queue-type": "stream", "x-compact": True}
    channel.queue_declare(name, durable=True, arguments=arguments)
    query._topic = name
    publish(channel, name, *range(50), key="one")
    query.run()
    assert query.bodies() == list(range(50))


def test_the_first_batch_is_not_lost_in_a_crash(spark, node, channel, topic, tmp_path):
    """A query that dies in its first batch begins where it would have begun."""
    given = {"servers": node.server, "subscribe": topic, "startingOffsets": "latest"}
    options = read_options(given, is_streaming=True)

    def reader():
        return LeveretStreamReader(options, table_schema(options.columns))

    first = reader()
    start = json.loads(json.dumps(first.initialOffset()))
    end = first.latestOffset(start, ReadMaxRows(100))
    assert end == start  # what Spark writes down
    publish(channel, topic, *range(10))
    again = reader()
    assert again.partitions(again.initialOffset(), end) == []
    behind = again.latestOffset(end, ReadMaxRows(100))
    tasks = again.partitions(end, behind)
    ranges = [each.wanted for task in tasks for each in task.ranges]
    assert sum(each.end - each.first for each in ranges) == 10


def test_a_partition_that_goes_before_it_is_read_is_a_loss(spark, node, channel, topic):
    publish(channel, topic, *range(20))
    given = {"servers": node.server, "subscribe": topic, "retryTimeout": "1s"}

    def partitions_of(**more):
        options = read_options({**given, **more}, is_streaming=True)
        reader = LeveretStreamReader(options, table_schema(options.columns))
        start = json.dumps({"offsets": {topic: {"0": 0, "1": 0}}, "logs": {}})
        end = reader.latestOffset(json.loads(start), ReadMaxRows(100))
        return reader, reader.partitions(json.loads(start), end)

    strict, ranges = partitions_of()
    lenient, _ = partitions_of(failOnDataLoss="false")
    assert sum(len(batch) for part in ranges for batch in strict.read(part)) == 20
    channel.queue_delete(topic)
    with pytest.raises(DataLossError, match=r"offsets 0 to \d+ .*does not exist"):
        list(strict.read(ranges[0]))
    assert list(lenient.read(ranges[0])) == []
