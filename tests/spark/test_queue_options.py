"""Options of streams that consume a queue: accepted, defaulted, and refused with their names."""

from __future__ import annotations

import pytest

from leveret.spark.option_reader import OptionError
from leveret.spark.queue_options import OF_TOPICS, consumes, read_queue_options, refuse_batch
from leveret.spark.value_formats import ValueFormat

NEEDED = {"servers": "broker:15672", "consume": "work"}


def read(**options):
    return read_queue_options({**NEEDED, **options})


def test_a_queue_is_consumed_with_limits_by_default():
    found = read()
    assert (found.queue, found.max_messages, found.max_bytes) == ("work", 100_000, 0)
    assert (found.min_partitions, found.lease_timeout_ms) == (0, 600_000)
    assert found.connection.servers == ("http://broker:15672",)


def test_options_are_taken():
    found = read(
        maxOffsetsPerTrigger="5",
        maxBytesPerTrigger="6",
        minPartitions="7",
        batchRows="8",
        leaseTimeout="90s",
        includeHeaders="true",
        format="text",
        vhost="v",
    )
    assert (found.max_messages, found.max_bytes, found.min_partitions) == (5, 6, 7)
    assert found.columns.headers
    assert found.values.format is ValueFormat.TEXT
    assert (found.batch_rows, found.lease_timeout_ms, found.connection.vhost) == (8, 90_000, "v")


@pytest.mark.parametrize("name", OF_TOPICS)
def test_options_of_topics_contradict_it(name):
    with pytest.raises(OptionError, match=f"'{name}'.*topics.*'consume'"):
        read(**{name.upper(): "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consume", " "),
        ("leaseTimeout", "500ms"),
        ("leaseTimeout", "2d"),
        ("leaseTimeout", "soon"),
        ("maxOffsetsPerTrigger", "-1"),
        ("includeHeaders", "maybe"),
        ("leasetimeouts", "1s"),
    ],
)
def test_wrong_options_are_refused_by_name(name, value):
    with pytest.raises(OptionError, match=f"'{name}'"):
        read(**{name: value})


def test_a_queue_is_consumed_if_the_option_is_given_in_any_case():
    assert consumes({"CONSUME": "work"})
    assert not consumes({"subscribe": "consume"})
    assert "readStream" in str(refuse_batch())
