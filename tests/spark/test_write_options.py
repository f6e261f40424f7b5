"""Options of tables that are written: where rows go, and which batch they are."""

from __future__ import annotations

import pytest

from leveret.spark.option_reader import OptionError
from leveret.spark.write_options import write_options


def streaming(**options):
    return write_options({"servers": "broker", **options}, is_streaming=True)


def batch(**options):
    return write_options({"servers": "broker", **options}, is_streaming=False)


def test_a_topic_is_a_key_of_the_default_exchange():
    found = batch(topic="orders")
    assert (found.exchange, found.routing_key) == ("", "orders")
    found = batch(exchange="x", routingKey="k")
    assert (found.exchange, found.routing_key) == ("x", "k")
    assert (batch().exchange, batch().routing_key) == (None, None)


def test_defaults():
    table, stream = batch(topic="t"), streaming(topic="t")
    assert (table.persistent, table.mandatory, table.atomic) == (True, True, False)
    assert stream.atomic
    assert (table.writer, table.number) == (None, None)


def test_a_named_batch_is_atomic():
    found = batch(topic="t", writer="etl", batchId="12")
    assert (found.writer, found.number, found.atomic) == ("etl", 12, True)
    assert streaming(topic="t", writer="etl").writer == "etl"


@pytest.mark.parametrize(
    ("read", "options", "message"),
    [
        (batch, {"topic": "t", "exchange": "x"}, "option 'topic' is given, and 'exchange'"),
        (batch, {"topic": "t", "routingKey": "x"}, "option 'topic' is given"),
        (batch, {"topic": "é" * 128}, "'topic' has more than 255 bytes"),
        (batch, {"writer": "w"}, "give both"),
        (batch, {"batchId": "1"}, "give both"),
        (batch, {"batchId": "-1", "writer": "w"}, "'batchId' is '-1'"),
        (batch, {"batchId": "1", "writer": "w", "atomic": "false"}, "'batchId' is atomic"),
        (streaming, {"batchId": "1", "writer": "w"}, "is for batch writes"),
        (streaming, {"atomic": "false"}, "'atomic' is for batch writes"),
        (batch, {"subscribe": "t"}, "no option 'subscribe'"),
    ],
)
def test_contradictions_are_refused(read, options, message):
    with pytest.raises(OptionError, match=message):
        read(**options)
