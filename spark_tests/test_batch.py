"""Topics as tables: what columns have, where reading begins and ends, what errors say."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from decimal import Decimal

import pika
import pytest
from pyspark.errors import PySparkException

import pyspark_leveret
from leveret.spark.source import LeveretDataSource
from tests.support.waiting import LIMIT_SECONDS

KEY = "x-partition-key"


def publish(channel, topic, *numbers, key=None, **properties):
    for number in numbers:
        headers = {KEY: key or f"key-{number}", **properties.pop("headers", {})}
        channel.basic_publish(
            "",
            topic,
            b"body %d" % number,
            pika.BasicProperties(delivery_mode=2, headers=headers, **properties),
        )


@pytest.fixture
def read(spark, node, topic):
    """Return a function that reads the topic with options."""

    def read(**options):
        given = {"servers": node.server, "subscribe": topic, **options}
        return spark.read.format("leveret").options(**given).load()

    return read


def bodies(table):
    return sorted(bytes(row.value).decode() for row in table.select("value").collect())


def numbered(numbers):
    return sorted(f"body {number}" for number in numbers)


def test_every_message_is_a_row(read, channel, topic):
    before = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(seconds=1)
    publish(channel, topic, *range(30))
    rows = read().collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(b"body %d" % n for n in range(30))
    assert {row.topic for row in rows} == {topic}
    assert {row.partition for row in rows} == {0, 1}
    assert {row.timestampType for row in rows} == {1}
    assert all(row.key == b"key-" + row.value[5:] for row in rows)
    assert all(before < row.timestamp < before + dt.timedelta(seconds=60) for row in rows)
    for number in (0, 1):
        offsets = [row.offset for row in rows if row.partition == number]
        assert sorted(offsets) == list(range(len(offsets)))


def test_an_empty_topic_has_no_rows(read):
    assert read().count() == 0


def test_only_the_columns_that_are_needed(read, channel, topic):
    publish(channel, topic, *range(5))
    assert read().select("offset").count() == 5
    assert read().filter("partition = 0").count() + read().filter("partition = 1").count() == 5


def test_headers_are_texts(read, channel, topic):
    headers = {
        "text": "häse",
        "bytes": b"\xff\x00",
        "small": 5,
        "negative": -7,
        "large": 1 << 40,
        "yes": True,
        "no": False,
        "nothing": None,
        "decimal": Decimal("1.5"),
        "list": [1, "two", {"three": 3}],
        "table": {"b": 2, "a": "x"},
        "time": dt.datetime(2026, 1, 5, tzinfo=dt.UTC),
    }
    publish(channel, topic, 0, key="k", headers=headers)
    publish(channel, topic, 1, key="k")
    channel.basic_publish("", topic, b"bare")
    bare, first, second = read(includeHeaders="true").orderBy("value").collect()
    found = {header.key: header.value for header in first.headers}
    assert found == {
        KEY: b"k",
        "text": "häse".encode(),
        "bytes": b"\xff\x00",
        "small": b"5",
        "negative": b"-7",
        "large": b"1099511627776",
        "yes": b"true",
        "no": b"false",
        "nothing": None,
        "decimal": found["decimal"],
        "list": b'[1, "two", {"three": 3}]',
        "table": b'{"a": "x", "b": 2}',
        "time": b"1767571200",
    }
    assert Decimal(found["decimal"].decode().strip('"')) == Decimal("1.5")
    assert [header.key for header in second.headers] == [KEY]
    assert bare.headers == []
    assert bare.key == topic.encode()


def test_properties(read, channel, topic):
    given = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "message_id": "m-1",
        "correlation_id": "c-1",
        "type": "order",
        "app_id": "shop",
        "reply_to": "answers",
        "expiration": "60000000",
        "user_id": "guest",
        "priority": 7,
    }
    channel.basic_publish("", topic, b"full", pika.BasicProperties(delivery_mode=2, **given))
    channel.basic_publish("", topic, b"bare")
    full, bare = read(includeProperties="true").orderBy("offset").collect()
    assert {name: full[name] for name in given} == given
    assert (full.exchange, full.routing_key) == ("", topic)
    assert {bare[name] for name in given} == {None}


def test_the_record_as_it_is_stored(read, channel, topic):
    publish(channel, topic, 1, headers={"a": 1})
    (row,) = read(includeRecord="true").collect()
    assert row.header[:2] == b"\x00\x3c"  # class basic
    assert row.flags & 1  # persistent
    assert (row.exchange, row.routing_key) == ("", topic)


def test_offsets_by_partition(read, channel, topic):
    publish(channel, topic, *range(10), key="a")
    (number,) = {row.partition for row in read().collect()}
    start = {topic: {str(number): 3, str(1 - number): -2}}
    end = {topic: {str(number): 7, str(1 - number): -1}}
    found = read(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))
    assert bodies(found) == numbered(range(3, 7))
    assert read(startingOffsets="latest").count() == 0


def test_times(read, channel, topic):
    publish(channel, topic, 0, 1, key="a")
    time.sleep(0.05)
    now_ms = int(time.time() * 1000)
    time.sleep(0.05)
    publish(channel, topic, 2, 3, key="a")
    late = {"startingTimestamp": str(now_ms), "startingOffsetsByTimestampStrategy": "latest"}
    assert bodies(read(**late)) == numbered((2, 3))
    assert bodies(read(endingTimestamp=str(now_ms))) == numbered((0, 1))
    by_partition = json.dumps({topic: {"0": now_ms, "1": now_ms}})
    late = {"startingOffsetsByTimestamp": by_partition}
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert bodies(read(**late)) == numbered((2, 3))
    with pytest.raises(PySparkException, match="no message at the starting time"):
        read(startingTimestamp=str(now_ms)).count()


def test_single_partitions_and_patterns(spark, node, channel, topic):
    publish(channel, topic, *range(20))
    options = {"servers": node.server}
    reader = spark.read.format("leveret").options(**options)
    one = reader.option("assign", json.dumps({topic: [1]})).load()
    assert {row.partition for row in one.collect()} == {1}
    reader = spark.read.format("leveret").options(**options)
    assert reader.option("subscribePattern", f"{topic[:-1]}{topic[-1]}").load().count() == 20
    reader = spark.read.format("leveret").options(**options)
    assert reader.option("subscribePattern", "nothing-.*").load().count() == 0


def test_large_partitions_are_read_in_pieces(read, channel, topic):
    publish(channel, topic, *range(40))
    assert read(batchRows="10").rdd.getNumPartitions() == 2
    found = read(minPartitions="8", batchRows="3")
    assert found.rdd.getNumPartitions() == 8
    assert bodies(found) == numbered(range(40))


def test_a_task_has_at_most_so_many_messages(read, channel, topic):
    publish(channel, topic, *range(40), key="a")
    found = read(maxRecordsPerPartition="7")
    sizes = found.rdd.glom().map(len).collect()
    assert (sum(sizes), max(sizes), len(sizes)) == (40, 7, 6)
    assert bodies(found) == numbered(range(40))
    assert read(maxRecordsPerPartition="7", minPartitions="9").rdd.getNumPartitions() >= 9


def test_small_partitions_share_a_task(read, channel, topic, node):
    node.set_partitions(topic, 9)
    publish(channel, topic, *range(100))
    together = read()
    assert together.rdd.getNumPartitions() == 1
    assert bodies(together) == numbered(range(100))
    assert {row.partition for row in together.collect()} == set(range(9))
    some = read(batchRows="40")
    assert 3 <= some.rdd.getNumPartitions() <= 5
    assert bodies(some) == numbered(range(100))


def test_the_broker_filters(read, channel, topic):
    for number in range(10):
        tags = ["even" if number % 2 == 0 else "odd"]
        publish(channel, topic, number, headers={"x-tags": tags, "n": number})
    assert bodies(read(filterTags="even")) == numbered(range(0, 10, 2))
    assert bodies(read(filter="n >= 7")) == numbered((7, 8, 9))
    assert bodies(read(filterTags="even", filter="n >= 7")) == numbered((8,))


@pytest.mark.parametrize(
    ("options", "text"), [({"filter": "n >="}, "filter: "), ({"filterTags": "a &&"}, "tags: ")]
)
def test_a_wrong_filter_is_refused_before_tasks_run(spark, read, channel, topic, options, text):
    publish(channel, topic, *range(10))
    with pytest.raises(PySparkException, match=f"400: {text}"):
        read(**options).rdd.getNumPartitions()  # which plans, and runs nothing


def test_classic_queues_with_a_retention(spark, node, channel, topic):
    name = f"{topic}-classic"
    channel.queue_declare(name, durable=True, arguments={"x-retention": "1h"})
    publish(channel, name, 1, 2)
    for _ in range(2):
        channel.basic_get(name, auto_ack=True)
    table = spark.read.format("leveret").options(servers=node.server, subscribe=name).load()
    assert bodies(table) == numbered((1, 2))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"password": "wrong"}, "wrong user or password"),
        ({"vhost": "elsewhere"}, "does not exist in virtual host 'elsewhere'"),
        ({"servers": "127.0.0.1:1", "retryTimeout": "1s"}, "none of http://127.0.0.1:1"),
        ({"maxOffsets": "5"}, "has no option 'maxoffsets'"),
        ({"startingOffsets": '{"TOPIC": {"0": 0}}'}, "none for its partition 1"),
        ({"startingOffsets": '{"TOPIC": {"0": 0, "1": 0, "2": 0}}'}, "has no partition 2"),
        ({"startingOffsets": '{"TOPIC": {"0": 5, "1": 0}}'}, "before the starting ones"),
    ],
)
def test_errors_say_what_is_wrong(read, topic, options, text):
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(PySparkException, match=text):
        read(**given).count()


def test_removed_messages_are_an_error_unless_that_is_wanted(read, node, channel, topic):
    publish(channel, topic, *range(10), key="a")
    (number,) = {row.partition for row in read().collect()}
    start = {topic: {str(number): 0, str(1 - number): 0}}
    end = {topic: {str(number): 20, str(1 - number): 0}}
    offsets = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    with pytest.raises(PySparkException, match="offsets 10 to 20 are not there any more"):
        read(**offsets).count()
    assert read(**offsets, failOnDataLoss="false").count() == 10


# Another session than the others', where nobody has registered it, and another directory than that
# of this checkout, whose packages Python would find there.
PROGRAM = """\
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
table = spark.read.format("leveret").options(servers=sys.argv[1], subscribe=sys.argv[2]).load()
print(table.count(), "rows")
"""


def test_spark_finds_the_source_of_this_editable_installation(tmp_path, node, channel, topic):
    publish(channel, topic, *range(10))
    command = [sys.executable, "-c", PROGRAM, node.server, topic]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    found = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert found.stdout == "10 rows\n", found.stderr
    assert pyspark_leveret.DefaultSource is LeveretDataSource
