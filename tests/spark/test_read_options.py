"""Options of the Spark data source: accepted, defaulted, and refused with their names."""

from __future__ import annotations

import pytest

from leveret.spark.option_reader import OptionError
from leveret.spark.read_options import StartKind, columns_wanted, read_options
from leveret.spark.value_formats import (
    MalformedMode,
    SchemaIdOptions,
    ValueFormat,
    ValueOptions,
)
from leveret.spark.value_options import value_options

NEEDED = {"servers": "broker:15672", "subscribe": "orders"}


def streaming(**options):
    return read_options({**NEEDED, **options}, is_streaming=True)


def batch(**options):
    return read_options({**NEEDED, **options}, is_streaming=False)


def test_defaults_are_those_of_the_kafka_source():
    stream, table = streaming(), batch()
    assert stream.starting.kind is StartKind.LATEST
    assert table.starting.kind is StartKind.EARLIEST
    assert table.ending.kind is StartKind.LATEST
    assert stream.fails_on_data_loss
    assert (stream.min_offsets, stream.max_delay_s, stream.min_partitions) == (0, 900, 0)


def test_a_stream_has_a_limit_unless_it_is_taken_away():
    assert streaming().max_offsets > 0
    assert streaming(maxOffsetsPerTrigger="0").max_offsets == 0


def test_names_are_compared_without_regard_to_case():
    found = read_options(
        {"SERVERS": "broker", "subscribe": "a, b", "startingoffsets": "earliest"}, is_streaming=True
    )
    assert found.topics.names == ("a", "b")
    assert found.starting.kind is StartKind.EARLIEST


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("broker", "http://broker:15672"),
        ("broker:8080", "http://broker:8080"),
        ("https://broker", "https://broker:15672"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_servers_are_urls_of_management_ports(given, url):
    assert streaming(servers=f"{given}, other").connection.servers == (url, "http://other:15672")


def test_offsets_by_partition():
    found = batch(
        startingOffsets='{"orders": {"0": 23, "1": -2}}',
        endingOffsets='{"orders": {"0": -1, "1": 9}}',
    )
    assert found.starting.values == {"orders": {0: 23, 1: -2}}
    assert found.ending.values == {"orders": {0: -1, 1: 9}}


def test_a_time_goes_before_offsets():
    found = batch(startingTimestamp="1700000000000", startingOffsets="latest")
    assert (found.starting.kind, found.starting.time_ms) == (StartKind.TIME, 1_700_000_000_000)
    assert not found.starting.falls_to_latest
    found = batch(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")
    assert found.starting.falls_to_latest
    by_partition = batch(startingOffsetsByTimestamp='{"orders": {"0": 17}}')
    assert by_partition.starting.values == {"orders": {0: 17}}


def test_times_may_be_texts():
    text = "2026-01-05T10:30:00+01:00"
    found = batch(startingTimestamp=text, endingTimestamp="2026-01-05 09:30:01")
    assert (found.starting.time_ms, found.ending.time_ms) == (1767605400000, 1767605401000)
    by_partition = batch(startingOffsetsByTimestamp=f'{{"orders": {{"0": "{text}", "1": 17}}}}')
    assert by_partition.starting.values == {"orders": {0: 1767605400000, 1: 17}}


def test_single_partitions():
    found = read_options({"servers": "b", "assign": '{"orders": [3, 1]}'}, is_streaming=False)
    assert found.topics.partitions == {"orders": (1, 3)}


def test_a_password_is_read_from_a_file_and_never_shown(tmp_path):
    (tmp_path / "secret").write_text("hare\n")
    found = streaming(user="lev", passwordFile=str(tmp_path / "secret"))
    assert found.connection.password == "hare"
    assert "hare" not in repr(found)


def test_columns():
    assert columns_wanted(NEEDED) == (False, False, False)
    assert columns_wanted({**NEEDED, "includeHeaders": "TRUE"}).headers


def test_bodies_are_raw_unless_a_format_is_given():
    assert streaming().values == ValueOptions()
    assert ValueOptions().format is ValueFormat.RAW
    found = value_options({"FORMAT": "JSON", "valueschema": "a int", "mode": "FailFast"})
    assert (found.format, found.mode) == (ValueFormat.JSON, MalformedMode.FAIL_FAST)
    assert (found.schema, found.corrupt_column) == ("a int", "_corrupt_record")
    assert found.schema_ids is None


def test_schemas_by_id():
    found = streaming(
        format="avro",
        schemaRegistry="https://registry",
        schemaRegistryUser="me",
        schemaRegistryPassword="secret",
    )
    assert found.values.schema_ids == SchemaIdOptions("https://registry", "me", "secret")
    assert "secret" not in repr(found)
    found = streaming(format="avro", valueSchemas="{}")
    assert found.values.schema_ids == SchemaIdOptions(by_id="{}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": None}, "'servers' is missing"),
        ({"servers": "http://host/path"}, "no HOST:PORT"),
        ({"servers": "host:port"}, "no HOST:PORT"),
        ({"servers": "amqp://host"}, "no HOST:PORT"),
        ({"servers": "http://me:secret@host"}, "has a password"),
        ({"subscribe": None}, "given: none"),
        ({"subscribePattern": "a"}, "given: subscribe, subscribePattern"),
        ({"subscribe": "a,,b"}, "empty name"),
        ({"subscribe": None, "subscribePattern": "("}, "no pattern"),
        ({"subscribe": None, "assign": "[1]"}, "must be like"),
        ({"subscribe": None, "assign": '{"a": []}'}, "no list of partitions for topic 'a'"),
        ({"subscribe": None, "assign": '{"a": [true]}'}, "no list of partitions"),
        ({"subscribe": None, "assign": "{"}, "no JSON"),
        ({"maxOffsetsPerTrigger": "many"}, "must be an integer of at least 0"),
        ({"maxOffsetsPerTrigger": "-1"}, "'maxOffsetsPerTrigger' is '-1'"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "is greater than"),
        ({"batchRows": "0"}, "from 1 to 1000000"),
        ({"failOnDataLoss": "perhaps"}, "must be true or false"),
        ({"maxTriggerDelay": "soon"}, "a time such as 30s"),
        ({"startingOffsets": "yesterday"}, "no JSON"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "must be like"),
        ({"startingOffsets": '{"orders": {"zero": 1}}'}, "must be like"),
        ({"startingOffsets": '{"orders": 1}'}, "must be like"),
        ({"startingOffsets": '{"parcels": {"0": 1}}'}, "topic 'parcels'"),
        ({"startingOffsetsByTimestampStrategy": "maybe"}, "must be error or latest"),
        ({"startingOffsets": "[" * 100_000}, "no JSON"),
        ({"startingOffsets": '{"orders": {"0": "2026-01-05"}}'}, "must be like"),
        ({"startingTimestamp": "soon"}, "option 'startingTimestamp': 'soon' is no time"),
        ({"startingTimestamp": "-1"}, "'-1' is no time"),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": "soon"}}'},
            "option 'startingOffsetsByTimestamp': 'soon' is no time",
        ),
        ({"endingOffsets": "latest"}, "is for batch reads"),
        ({"topic": "x"}, "has no option 'topic'"),
        ({"format": "xml"}, "must be raw or text or json or avro"),
        ({"format": "json", "mode": "strict"}, "must be permissive or dropmalformed or failfast"),
        ({"mode": "failfast"}, "'mode' is for format=text or json or avro"),
        ({"format": "text", "valueSchema": "a int"}, "'valueSchema' is for format=json or avro"),
        ({"format": "json", "valueSchemas": "{}"}, "'valueSchemas' is for format=avro"),
        ({"format": "avro", "schemaRegistry": "file:///etc"}, "must be an http or https URL"),
        ({"format": "avro", "schemaRegistry": "https://me:secret@host"}, "has a password"),
        ({"format": "avro", "schemaRegistryUser": "a"}, "'schemaRegistry' is missing"),
        (
            {"format": "avro", "schemaRegistry": "http://a", "schemaRegistryPassword": "secret"},
            "'schemaRegistryUser' is missing",
        ),
        ({"format": "json", "timeZone": "Middle/Earth"}, "must be like Europe/Berlin"),
        ({"user": " "}, "'user' is empty"),
        ({"password": "a", "passwordFile": "b"}, "both"),
        ({"passwordFile": "/nowhere/at/all"}, "cannot be read"),
        ({"tlsKeyFile": "key.pem"}, "'tlsCertFile' is missing"),
    ],
)
def test_what_is_refused(options, text):
    given = {name: value for name, value in {**NEEDED, **options}.items() if value is not None}
    with pytest.raises(OptionError, match=text.replace("(", r"\(")):
        read_options(given, is_streaming=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "earliest"}, "nothing would be read"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "must be like"),
        ({"maxOffsetsPerTrigger": "5"}, "is for streaming reads"),
        ({"subscribe": None, "assign": '{"a": [0]}', "startingOffsets": '{"a": {"1": 0}}'}, "'a'"),
    ],
)
def test_what_is_refused_of_a_batch(options, text):
    given = {name: value for name, value in {**NEEDED, **options}.items() if value is not None}
    with pytest.raises(OptionError, match=text):
        read_options(given, is_streaming=False)


def test_the_options_that_there_are_are_listed_as_documents_have_them():
    with pytest.raises(OptionError, match=r"it has archivePath, assign, .*, startingOffsets, "):
        batch(**{"kafka.group.id": "a"})


def test_an_archive_is_read_as_it_is():
    assert batch(archivePath="/archive").archive_path == "/archive"
    assert batch().archive_path is None
    for name in ("filterTags", "filter"):
        with pytest.raises(OptionError, match="broker applies filters"):
            batch(archivePath="/archive", **{name: "a"})
