"""Tables and streams written into topics and exchanges."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

HEADERS = "array<struct<key string, value binary>>"


@pytest.fixture
def write(node):
    """Write a table, with these options."""

    def run(table, **options):
        writer = table.write.format("leveret").mode("append")
        writer.options(**{"servers": node.server, **options}).save()

    return run


def read(spark, node, topic, *columns, **options):
    table = spark.read.format("leveret").options(servers=node.server, subscribe=topic, **options)
    return table.load().select(*columns)


def received(channel, queue, count):
    """Return messages of a queue in order: properties and body."""
    found, end = [], time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < end, found
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((properties, body))
        else:
            time.sleep(0.05)
    assert channel.basic_get(queue)[0] is None
    return found


def writers(node):
    return node.ask("GET", "leveret/batches/%2F")


def test_a_table_is_written_into_a_topic(spark, node, topic, write):
    rows = [(b"k%d" % (n % 7), b"%d" % n) for n in range(1000)]
    known = writers(node)  # by other tests
    write(spark.createDataFrame(rows, "key binary, value binary").repartition(3), topic=topic)
    table = read(spark, node, topic, "key", "value", "partition").collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in table) == sorted(rows)
    by_key = {(bytes(row.key), row.partition) for row in table}
    assert len(by_key) == 7  # each key is in one partition
    assert writers(node) == known  # a writer with a name of its own leaves nothing behind


def test_rows_keep_their_order(spark, node, channel, write):
    channel.queue_declare("in-order", durable=True)
    table = spark.range(0, 50_000, numPartitions=2)
    write(table.selectExpr("cast(id as string) as value"), topic="in-order")
    bodies = [int(body) for _, body in received(channel, "in-order", 50_000)]
    assert bodies == list(range(50_000))


def test_what_a_message_has_is_in_columns(spark, node, channel, write):
    channel.queue_declare("properties", durable=True)
    schema = (
        f"value string, key string, headers {HEADERS}, tags array<string>, priority int, "
        "content_type string, correlation_id string, message_id string, type string, "
        "app_id string, reply_to string, expiration string, user_id string, "
        "content_encoding string"
    )
    full = (
        *("body", "k", [("a", b"1"), ("b", None)], ["x", "y z"], 7, "text/plain", "c", "m", "t"),
        *("app", "r", "60000", "guest", "utf-8"),
    )
    rows = [full, ("bare", *[None] * 13), (None, None, [], [], *[None] * 10)]
    write(spark.createDataFrame(rows, schema).coalesce(1), topic="properties")
    (one, body), (two, bare), (three, empty) = received(channel, "properties", 3)
    assert (body, bare, empty) == (b"body", b"bare", b"")
    assert one.headers == {"a": "1", "b": None, "x-partition-key": "k", "x-tags": ["x", "y z"]}
    assert (one.content_type, one.content_encoding, one.priority) == ("text/plain", "utf-8", 7)
    assert (one.correlation_id, one.message_id, one.type, one.app_id) == ("c", "m", "t", "app")
    assert (one.reply_to, one.expiration, one.user_id) == ("r", "60000", "guest")
    assert two == three == pika.BasicProperties(delivery_mode=2)


def test_delays(spark, node, channel, write):
    channel.queue_declare("delayed", durable=True)
    before = datetime.now(UTC)
    table = spark.createDataFrame([("now", None), ("soon", 1500)], "value string, delay int")
    write(table.coalesce(1), topic="delayed")
    at = spark.createDataFrame([("at",)], "value string").withColumn(
        "deliver_at", f.expr("current_timestamp() + interval 3 seconds")
    )
    write(at, topic="delayed")
    found = received(channel, "delayed", 3)
    assert [body for _, body in found] == [b"now", b"soon", b"at"]
    assert (datetime.now(UTC) - before).total_seconds() > 3
    assert found[1][0].headers == {"x-delay": -1500}


def test_maps_are_headers_and_a_string_is_a_tag(spark, channel, write):
    channel.queue_declare("maps", durable=True)
    table = spark.createDataFrame([(1,)], "n int").selectExpr(
        "'body' as value", "map('a', 'b', 'x-tags', 'not this') as headers", "'t' as tags"
    )
    write(table, topic="maps", persistent="false")
    [(properties, _)] = received(channel, "maps", 1)
    assert properties.headers == {"a": "b", "x-tags": ["t"]}
    assert properties.delivery_mode == 1


def test_exchanges_and_routing_keys(spark, channel, write):
    channel.exchange_declare("spark-topic", "topic", durable=True)
    for name in ("red", "blue"):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "spark-topic", f"*.{name}")
    rows = [("1", "a.red"), ("2", "a.blue"), ("3", "b.red")]
    table = spark.createDataFrame(rows, "value string, routing_key string").coalesce(1)
    write(table, exchange="spark-topic")
    write(table.select("value"), exchange="spark-topic", routingKey="c.blue")
    renamed = table.withColumnRenamed("routing_key", "topic").replace(
        {"a.red": "red"}, subset="topic"
    )
    write(renamed.where("topic = 'red'"))
    assert [body for _, body in received(channel, "red", 3)] == [b"1", b"3", b"1"]
    assert [body for _, body in received(channel, "blue", 4)] == [b"2", b"1", b"2", b"3"]


def test_a_topic_is_copied_as_it_was(spark, node, channel, topic, write):
    copy = f"{topic}-copy"
    arguments = {"x-queue-type": "stream", "x-partitions": 2}
    channel.queue_declare(copy, durable=True, arguments=arguments)
    for n in range(20):
        headers = {
            "x-partition-key": f"k{n}",
            "n": n,
            "deep": {"list": [1, "a", None, {"x": True}]},
        }
        properties = pika.BasicProperties(
            delivery_mode=1 + n % 2, headers=headers, timestamp=n, priority=n, cluster_id="c"
        )
        channel.basic_publish("", topic, b"%d" % n, properties)
    columns = ("partition", "value", "header")
    table = read(spark, node, topic, "value", "header", "offset", includeRecord="true")
    write(table, topic=copy)
    before = read(spark, node, topic, *columns, includeRecord="true").collect()
    after = read(spark, node, copy, *columns, includeRecord="true").collect()
    assert before
    assert sorted(before) == sorted(after)


def test_a_named_batch_is_written_once(spark, node, topic, write):
    named = {"topic": topic, "writer": f"etl-{topic}", "batchId": "7"}
    for value in ("first", "second"):
        write(spark.createDataFrame([(value,)] * 5, "value string"), **named)
    found = read(spark, node, topic, "value").collect()
    assert [bytes(row.value) for row in found] == [b"first"] * 5
    [writer] = [row for row in writers(node) if row["writer"] == f"etl-{topic}"]
    assert (writer["committed"], writer["parts"]) == (7, 0)


def test_an_atomic_table_has_a_limit_and_others_have_none(spark, node, write, channel):
    """More than one commit may hold is written in several, or not at all."""
    name = "large"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    table = spark.range(0, 300, numPartitions=2).selectExpr("repeat('x', 1000000) as value")
    with pytest.raises(PySparkException, match="With atomic=false"):
        write(table, topic=name, atomic="true")
    assert read(spark, node, name, "offset").count() == 0
    write(table, topic=name)
    assert read(spark, node, name, "offset").count() == 300
    assert not any(row["parts"] for row in writers(node))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'a' as body", {"topic": "t"}, "no part of a message|no column 'value'"),
        ("'a' as value; 1 as tagz", {"topic": "t"}, "column 'tagz' is no part of a message"),
        ("1 as value", {"topic": "t"}, "'value' is int, and must be binary or string"),
        ("'a' as value; array(1) as headers", {"topic": "t"}, "'headers' is array<int>"),
        ("'a' as value", {}, "where the rows go is not known"),
        ("'a' as value", {"exchange": "x"}, "an exchange needs routing keys"),
        ("'a' as value", {"topic": "a", "exchange": "x"}, "option 'topic' is given, and"),
        ("'a' as value; 't' as topic; 'x' as exchange", {}, "both columns 'topic' and 'exchange'"),
        ("'a' as value", {"topic": "t", "batchId": "3"}, "name a batch together"),
        ("'a' as value", {"topic": "t", "colour": "red"}, "no option 'colour'"),
        ("'a' as value", {"topic": "no-such-queue"}, "no queue gets: 1.*'no-such-queue'"),
        ("'a' as value", {"exchange": "none", "routingKey": "k"}, "no exchange 'none'"),
        ("'a' as value; string(null) as topic", {}, "column 'topic' is null in a row"),
        ("'a' as value; repeat('k', 256) as topic", {}, "256 bytes where AMQP has room for 255"),
        (
            "'a' as value; repeat('k', 256) as message_id",
            {"topic": "t"},
            "'message_id' of row 0 has 256",
        ),
        ("'a' as value; 256 as priority", {"topic": "t"}, "'priority' of row 0 is 256"),
        (
            "'a' as value; array(string(null)) as tags",
            {"topic": "t"},
            "'tags' of row 0 has a null",
        ),
        ("'a' as value", {"topic": "t", "password": "wrong"}, "wrong user or password"),
        (
            "'a' as value",
            {"topic": "t", "vhost": "elsewhere"},
            "in virtual host 'elsewhere': there is no such virtual host: create it",
        ),
        (
            "'a' as value",
            {"topic": "t", "servers": "127.0.0.1:1", "retryTimeout": "1s"},
            "none of http://127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_written_is_told(spark, write, columns, options, message):
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(*columns.split("; ")), **options)


def test_a_topic_is_not_overwritten(spark, node):
    writer = spark.range(1).selectExpr("'a' as value").write.format("leveret").mode("overwrite")
    with pytest.raises(PySparkException, match="append"):
        writer.options(servers=node.server, topic="t").save()


def test_a_user_without_permission_writes_nothing(spark, node, channel, topic, write):
    node.ask("PUT", "users/reader", {"password": "secret", "tags": ""})
    rights = {"configure": "", "write": "^$", "read": ".*"}
    node.ask("PUT", "permissions/%2F/reader", rights)
    with pytest.raises(PySparkException, match="refused for user 'reader'"):
        write(spark.sql("select 'a' as value"), topic=topic, user="reader", password="secret")
    assert read(spark, node, topic, "value").count() == 0


def test_a_stream_of_totals_is_refused(spark, node, topic, tmp_path):
    options = {"servers": node.server, "subscribe": topic}
    totals = spark.readStream.format("leveret").options(**options).load().groupBy("key").count()
    writer = totals.selectExpr("key", "string(count) as value").writeStream.format("leveret")
    writer = writer.options(servers=node.server, topic=topic, checkpointLocation=str(tmp_path))
    with pytest.raises(PySparkException, match="append"):
        writer.outputMode("complete").trigger(availableNow=True).start().awaitTermination()


class Copy:
    """A streaming query from a topic into another one."""

    def __init__(self, spark, node, source, target, directory):
        self._spark, self._node, self._source, self._target = spark, node, source, target
        self._checkpoint = str(directory / "checkpoint")

    def run(self, *, read=(), **write):
        options = {"servers": self._node.server, "subscribe": self._source, **dict(read)}
        table = self._spark.readStream.format("leveret").option("startingOffsets", "earliest")
        table = table.options(**options).load().selectExpr("key", "upper(string(value)) as value")
        writer = table.writeStream.format("leveret").trigger(availableNow=True)
        writer = writer.options(
            servers=self._node.server,
            topic=self._target,
            checkpointLocation=self._checkpoint,
            **write,
        )
        query = writer.start()
        query.awaitTermination(120)
        return query


@pytest.fixture
def copy(spark, node, channel, topic, tmp_path):
    target = f"{topic}-target"
    channel.queue_declare(target, durable=True, arguments={"x-queue-type": "stream"})
    return Copy(spark, node, topic, target, tmp_path)


def test_a_stream_is_written_batch_by_batch(spark, node, channel, topic, copy):
    for n in range(40):
        channel.basic_publish("", topic, b"a%d" % n)
    query = copy.run(read={"maxOffsetsPerTrigger": "15"})
    copy.run()
    found = read(spark, node, f"{topic}-target", "value").collect()
    assert sorted(bytes(row.value) for row in found) == sorted(b"A%d" % n for n in range(40))
    [writer] = [row for row in writers(node) if row["writer"] == query.id]
    assert writer["committed"] == max(each.batchId for each in query.recentProgress)
    assert writer["parts"] == 0


def test_a_stream_into_nowhere_ends(channel, topic, copy):
    channel.basic_publish("", topic, b"a")
    channel.queue_delete(f"{topic}-target")
    with pytest.raises(PySparkException, match="no queue gets: 1"):
        copy.run()
    copy.run(mandatory="false")


def test_a_micro_batch_that_is_too_large_is_told(channel, topic, copy):
    body = b"x" * (1 << 20)
    for _ in range(270):
        channel.basic_publish("", topic, body)
    with pytest.raises(PySparkException, match="maxBytesPerTrigger"):
        copy.run()
