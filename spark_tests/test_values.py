"""Bodies decoded on request, in tables and streams, with malformed ones among them."""

from __future__ import annotations

import datetime as dt
import io
import json

import fastavro
import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import IntegerType, StructField, StructType

SCHEMA = "id long, name string, at timestamp, tags array<string>"
GOOD = b'{"id": %d, "name": "lev", "at": "2026-01-05T13:30:00Z", "tags": ["a", null], "more": 1}'
NOON = dt.datetime(2026, 1, 5, 13, 30)  # noqa: DTZ001 - as Spark has it
POISON = (
    b"{" * 10_000,
    b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"id": ' + b"9" * 100_000 + b"}",
    b'{"id": NaN}',
    b"\xff\xfe",
    b'{"id": 1} {"id": 2}',
    b'{"id": 1} null {"id": 2}',
    b"null",
    b"[1]",
    b'{"id": "one"}',
    b'{"id": 1, "tags": "a"',
)


def publish(channel, topic, bodies):
    for body in bodies:
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-partition-key": "k"})
        channel.basic_publish("", topic, body, properties)


@pytest.fixture
def read(spark, node, topic):
    """Return a function that reads the topic with options."""

    def read(schema=None, **options):
        given = {"servers": node.server, "subscribe": topic, **options}
        reader = spark.read.format("leveret").options(**given)
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def mixed(channel, topic):
    """Publish good bodies, and malformed ones between them."""
    bodies = []
    for number, poison in enumerate(POISON):
        bodies += [GOOD % number, poison]
    publish(channel, topic, bodies)
    return bodies


def test_json_with_a_schema_of_ddl(read, channel, topic):
    publish(channel, topic, [GOOD % number for number in range(600)])
    table = read(format="json", valueSchema=SCHEMA)
    assert table.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        "_corrupt_record",
    ]
    rows = table.orderBy("offset").collect()
    assert [row.value.id for row in rows] == list(range(600))
    assert {(row.value.name, row.value.at, tuple(row.value.tags)) for row in rows} == {
        ("lev", NOON, ("a", None))
    }
    assert {row._corrupt_record for row in rows} == {None}
    assert table.selectExpr("sum(value.id)").first()[0] == 599 * 300


def test_json_with_other_schemas(spark, read, channel, topic):
    publish(channel, topic, [b'{"id": 7}'])
    as_json = StructType([StructField("id", IntegerType())]).json()
    assert read(format="json", valueSchema=as_json).first().value.id == 7
    assert read(format="json", valueSchema="map<string, int>").first().value == {"id": 7}
    assert read(format="json", valueSchema="struct<id: int>").first().value.id == 7
    given = read("value struct<id: short>, offset long", format="json")
    assert [(row.value.id, row.offset) for row in given.collect()] == [(7, 0)]


def test_a_view_of_sql(spark, node, read, channel, topic):
    publish(channel, topic, [b'{"id": 7}'])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW decoded USING leveret OPTIONS (servers '{node.server}', "
        f"subscribe '{topic}', format 'json', valueSchema 'id int')"
    )
    assert spark.sql("SELECT value.id FROM decoded").first().id == 7


def test_malformed_bodies_are_null_and_kept(read, mixed):
    rows = read(format="json", valueSchema=SCHEMA, columnNameOfCorruptRecord="bad")
    rows = rows.orderBy("offset").collect()
    assert len(rows) == len(mixed)
    assert [row.value.id for row in rows[::2]] == list(range(len(POISON)))
    assert {row.bad for row in rows[::2]} == {None}
    assert [bytes(row.bad) for row in rows[1::2]] == list(POISON)
    assert {row.value and row.value.id for row in rows[1::2]} == {None}


def test_malformed_bodies_are_dropped(read, mixed):
    table = read(format="json", valueSchema=SCHEMA, mode="DROPMALFORMED")
    assert "_corrupt_record" not in table.columns
    rows = table.orderBy("offset").collect()
    assert [(row.value.id, row.offset) for row in rows] == [(n, 2 * n) for n in range(len(POISON))]


def test_malformed_bodies_end_the_query(read, channel, topic):
    publish(channel, topic, [GOOD % 0, b'{"id": "secret"}'])
    with pytest.raises(PySparkException) as failure:
        read(format="json", valueSchema=SCHEMA, mode="FAILFAST").collect()
    text = str(failure.value)
    assert f"topic '{topic}', partition " in text
    assert ", offset 1: field 'id' is no integer of 64 bits" in text
    assert "secret" not in text


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def order(number):
    body = io.BytesIO()
    value = {"id": number, "at": NOON.replace(tzinfo=dt.UTC), "note": None}
    fastavro.schemaless_writer(body, fastavro.parse_schema(ORDER), value)
    return body.getvalue()


def test_avro(read, channel, topic):
    publish(channel, topic, [order(1), b"\xff", order(3)])
    table = read(format="avro", valueSchema=json.dumps(ORDER))
    assert table.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,at:timestamp,note:string>"
    )
    rows = table.orderBy("offset").collect()
    assert [row.value and (row.value.id, row.value.at) for row in rows] == [
        (1, NOON),
        None,
        (3, NOON),
    ]
    assert [row._corrupt_record for row in rows] == [None, b"\xff", None]


def test_avro_with_ids(read, channel, topic):
    publish(channel, topic, [b"\0\0\0\0\7" + order(1), b"\0\0\0\0\10" + order(2), order(3)])
    options = {"format": "avro", "valueSchema": json.dumps(ORDER), "mode": "DROPMALFORMED"}
    table = read(**options, valueSchemas=json.dumps({"7": ORDER}))
    assert [row.id for row in table.select("value.id").collect()] == [1]


def test_text(read, channel, topic):
    publish(channel, topic, ["häse".encode(), b"\xff", b""])
    rows = read(format="text").orderBy("offset").collect()
    assert [row.value for row in rows] == ["häse", None, ""]
    assert [row._corrupt_record for row in rows] == [None, b"\xff", None]
    assert read(format="text", mode="dropmalformed").count() == 2


def test_a_stream_goes_on_after_malformed_bodies(spark, node, topic, mixed, tmp_path):
    options = {"servers": node.server, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("leveret").options(**options)
    stream = stream.options(format="json", valueSchema=SCHEMA).load()
    writer = stream.select("offset", "value.id", "_corrupt_record").writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination(90)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [row.id for row in rows[::2]] == list(range(len(POISON)))
    assert [bytes(row._corrupt_record) for row in rows[1::2]] == list(POISON)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "json"}, "'valueSchema' is missing"),
        ({"format": "json", "valueSchema": '{"type": "struct"}'}, "neither DDL"),
        ({"format": "json", "valueSchema": "id integr"}, "integr"),
        ({"format": "json", "valueSchema": "id int NOT NULL"}, "leave it out"),
        ({"format": "json", "valueSchema": "map<int, int>"}, "keys are no strings"),
        ({"format": "json", "valueSchema": "id interval day"}, "not read of JSON"),
        ({"format": "avro"}, "'valueSchema' is missing"),
        ({"format": "avro", "valueSchema": '["int", "string"]'}, "union of other types"),
        ({"format": "avro", "valueSchema": '"int"', "valueSchemas": "[]"}, "no object with ids"),
        ({"format": "avro", "valueSchema": '"int"', "schema": "value string"}, "another schema"),
        ({"format": "text", "columnNameOfCorruptRecord": "key"}, "name of another column"),
        ({"format": "text", "schema": "value binary"}, "'value' is string with format=text"),
        ({"schema": "value string"}, "'value' is binary with format=raw"),
        ({"schema": "value binary, size int"}, "no column 'size'"),
        ({"format": "text", "schema": "_corrupt_record binary"}, "needs the column 'value'"),
    ],
)
def test_errors_say_what_is_wrong(read, options, text):
    with pytest.raises(PySparkException, match=text):
        read(**options).count()
