"""Streams that consume a queue: what is written is settled, and nothing else is taken."""

import time

import pika
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxRows

from leveret.spark.queue_options import read_queue_options
from leveret.spark.queue_reader import LeveretQueueReader


@pytest.fixture
def queue(channel, topic):
    """Declare a queue with the name of a topic that nobody uses."""
    name = f"work-{topic}"
    channel.queue_declare(name, durable=True)
    return name


def publish(channel, queue, bodies, **properties):
    properties = pika.BasicProperties(delivery_mode=2, **properties)
    for body in bodies:
        channel.basic_publish("", queue, body, properties)


def stream(spark, node, queue, **options):
    options = {"servers": node.server, "consume": queue, **options}
    return spark.readStream.format("leveret").options(**options).load()


def run(table, directory, name="out", **trigger):
    """Write what is there into files, one directory for each batch."""

    def write(batch, number):
        batch.write.mode("overwrite").parquet(f"{directory}/{name}/batch={number}")

    writer = table.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def counts(channel, queue):
    """Return (ready, consumers)."""
    method = channel.queue_declare(queue, passive=True).method
    return method.message_count, method.consumer_count


def written(spark, directory, name="out"):
    rows = spark.read.parquet(f"{directory}/{name}").select("value", "batch").collect()
    return sorted((int(bytes(row.value)), row.batch) for row in rows)


def test_what_is_written_is_taken_from_the_queue(spark, node, channel, queue, tmp_path):
    publish(channel, queue, [b"%d" % n for n in range(25)], headers={"a": 1})
    table = stream(spark, node, queue, maxOffsetsPerTrigger="10", minPartitions="3")
    assert table.columns[:3] == ["key", "value", "topic"]
    run(table, tmp_path).awaitTermination()
    found = written(spark, tmp_path)
    assert [value for value, _ in found] == list(range(25))
    assert len({batch for _, batch in found}) == 3
    assert counts(channel, queue) == (0, 0)
    assert node.ask("GET", f"leveret/leases/%2F/{queue}")["ready"] == 0
    publish(channel, queue, [b"25"])
    run(table, tmp_path).awaitTermination()
    assert [value for value, _ in written(spark, tmp_path)] == list(range(26))
    assert counts(channel, queue) == (0, 0)


def test_a_query_that_is_stopped_is_soon_no_consumer_any_more(
    spark, node, channel, queue, tmp_path
):
    publish(channel, queue, [b"%d" % n for n in range(5)])
    query = run(stream(spark, node, queue), tmp_path, processingTime="0 seconds")
    wait_until(lambda: counts(channel, queue) == (0, 1) and leased(node, channel, queue) == 0)
    publish(channel, queue, [b"5"])
    wait_until(lambda: leased(node, channel, queue) == 0 and counts(channel, queue)[0] == 0)
    query.stop()
    wait_until(lambda: counts(channel, queue) == (0, 0))
    assert [value for value, _ in written(spark, tmp_path)] == list(range(6))


def leased(node, channel, queue):
    """Return how many messages are leased."""
    return node.ask("GET", f"queues/%2F/{queue}")["messages_unacknowledged"]


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_batch_that_was_not_written_is_read_again_and_taken_once(
    spark, node, channel, queue, tmp_path
):
    publish(channel, queue, [b"%d" % n for n in range(10)])
    table = stream(spark, node, queue, maxOffsetsPerTrigger="4")
    tried = []

    def fail(batch, number):
        if number == 2:
            tried.append([bytes(row.value) for row in batch.select("value").collect()])
            raise RuntimeError("the sink is full")
        batch.write.mode("overwrite").parquet(f"{tmp_path}/out/batch={number}")

    writer = table.writeStream.foreachBatch(fail)
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert leased(node, channel, queue) == 4
    assert counts(channel, queue)[0] == 2
    run(table, tmp_path).awaitTermination()
    found = written(spark, tmp_path)
    assert [value for value, _ in found] == list(range(10))
    again = [b"%d" % value for value, batch in found if batch == 2]
    assert tried == [again]
    assert counts(channel, queue) == (0, 0)


def test_limits_of_bytes_and_columns_hold_for_queues(spark, node, channel, queue, tmp_path):
    publish(channel, queue, [b"%2000d" % n for n in range(10)], message_id="m", headers={"a": "b"})
    table = stream(
        spark,
        node,
        queue,
        maxBytesPerTrigger="6500",
        includeHeaders="true",
        includeProperties="true",
    )
    run(table, tmp_path).awaitTermination()
    rows = spark.read.parquet(f"{tmp_path}/out").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(10))
    assert len({row.batch for row in rows}) == 4
    row = rows[0]
    assert (row.topic, row.partition, row.message_id) == (queue, 0, "m")
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("a", b"b")]


def test_a_queue_with_partitions_is_consumed(spark, node, channel, topic, tmp_path):
    name = f"work-{topic}"
    channel.queue_declare(name, durable=True, arguments={"x-partitions": 3})
    for number in range(30):
        publish(channel, name, [b"%d" % number], headers={"x-partition-key": f"{number}"})
    run(stream(spark, node, name, maxOffsetsPerTrigger="20"), tmp_path).awaitTermination()
    rows = spark.read.parquet(f"{tmp_path}/out").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(30))
    assert {row.partition for row in rows} == {0, 1, 2}
    assert counts(channel, name) == (0, 0)


def test_a_query_ends_with_what_was_there_when_it_began(spark, node, channel, queue, tmp_path):
    publish(channel, queue, [b"%d" % n for n in range(6)])
    table = stream(spark, node, queue, maxOffsetsPerTrigger="3")

    def write(batch, number):
        batch.write.mode("overwrite").parquet(f"{tmp_path}/out/batch={number}")
        with pika.BlockingConnection(node.parameters) as connection:
            publish(connection.channel(), queue, [b"7"] * 5)

    writer = table.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [value for value, _ in written(spark, tmp_path)] == list(range(6))
    assert counts(channel, queue)[0] == 10 + 5  # of two batches, and of the first one without any


@pytest.mark.parametrize("count", [3, 10])
def test_a_query_takes_all_that_was_there_beside_what_it_had_leased_before(
    node, channel, queue, count
):
    """A driver that dies after it has leased a batch, and before Spark has written that down."""
    publish(channel, queue, [b"%d" % n for n in range(count)])
    options = read_queue_options({"servers": node.server, "consume": queue})
    limit = ReadMaxRows(4)
    died = LeveretQueueReader(options, None)
    start = died.latestOffset(died.initialOffset(), limit)
    assert died.latestOffset(start, limit)["ranges"] == {"0": [[0, min(4, count)]]}
    died.stop()

    reader = LeveretQueueReader(options, None)
    reader.prepareForTriggerAvailableNow()
    taken = []
    while (end := reader.latestOffset(start, limit)) != start:
        taken += end["ranges"]["0"]
        start = end
    assert taken == [[first, min(first + 4, count)] for first in range(0, count, 4)]
    assert counts(channel, queue) == (0, 0)
    reader.stop()


def test_a_wrong_queue_ends_the_query_at_once(spark, node, channel, topic, tmp_path):
    for name, reason in (("none", "does not exist"), (topic, "a stream is read by offset")):
        query = run(stream(spark, node, name), tmp_path / name)
        with pytest.raises(StreamingQueryException, match=reason):
            query.awaitTermination()


def test_a_table_of_a_queue_is_refused(spark, node, queue):
    options = {"servers": node.server, "consume": queue}
    with pytest.raises(PySparkException, match="readStream"):
        spark.read.format("leveret").options(**options).load().collect()
    with pytest.raises(PySparkException, match="'group' is for topics"):
        stream(spark, node, queue, group="g").writeStream.format("noop").start().awaitTermination()
