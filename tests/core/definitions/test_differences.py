"""Warnings of an import: queues and exchanges that exist otherwise than its document says."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from leveret.core.definitions.differences import difference
from leveret.core.definitions.document import parse
from leveret.core.json_fields import plain, table_of
from leveret.ports.definitions import ExchangeDefinition, Paused, QueueDefinition

QUEUE = QueueDefinition("/", "q", arguments={"x-max-length": 1})
EXCHANGE = ExchangeDefinition("/", "x", "topic")


@pytest.mark.parametrize(
    ("stated", "what"),
    [
        ({"durable": False}, "durable is true, the document says false"),
        ({"auto_delete": True}, "auto_delete is false, the document says true"),
        ({"paused": Paused.ALL}, 'paused is "", the document says all'),
        ({"aliases": ("old",)}, 'aliases is [], the document says ["old"]'),
        ({"arguments": {"x-max-length": 2}}, "x-max-length is 1, the document says 2"),
        ({"arguments": {"x-max-length": True}}, "x-max-length is 1, the document says true"),
        ({"arguments": {}}, "x-max-length is 1, the document does not set it"),
        (
            {"arguments": {"x-max-length": 1, "x-expires": 5}},
            "x-expires is not set, the document says 5",
        ),
        (
            {"arguments": {"x-max-length": 1, "x-queue-type": "quorum"}},
            "type is classic, the document says quorum",
        ),
        (
            {"durable": False, "arguments": {"x-max-length": 2}},
            "durable is true, the document says false; x-max-length is 1, the document says 2",
        ),
    ],
)
def test_queue_that_differs_is_named_with_what_differs(stated, what):
    told = difference(QUEUE, replace(QUEUE, **stated))
    assert told == f"queue 'q' in vhost '/' stays as it is: {what}"


@pytest.mark.parametrize(
    ("held", "stated"),
    [
        ({}, {}),
        ({"arguments": {"x-queue-type": "classic"}}, {"arguments": {}}),
        ({"paused": Paused.ALL, "aliases": ("old",)}, {}),
        ({"incarnation": "i1", "created_ms": 5, "created_by": "guest"}, {}),
    ],
)
def test_what_a_document_need_not_say_is_no_difference(held, stated):
    assert difference(replace(QUEUE, **held), replace(QUEUE, **stated)) is None


def test_queue_that_was_renamed_is_told():
    renamed = replace(QUEUE, name="sales", aliases=("q",))
    assert difference(renamed, QUEUE) == (
        "queue 'q' in vhost '/' stays as it is: it is called 'sales' now"
    )


@pytest.mark.parametrize(
    ("stated", "what"),
    [
        ({"type": "fanout"}, "type is topic, the document says fanout"),
        ({"internal": True}, "internal is false, the document says true"),
        (
            {"arguments": {"alternate-exchange": "y"}},
            "alternate-exchange is not set, the document says y",
        ),
    ],
)
def test_exchange_that_differs_is_named_with_what_differs(stated, what):
    assert difference(EXCHANGE, EXCHANGE) is None
    told = difference(EXCHANGE, replace(EXCHANGE, **stated))
    assert told == f"exchange 'x' in vhost '/' stays as it is: {what}"


def test_arguments_that_json_cannot_say_equal_their_exported_form():
    arguments = {"a": Decimal("0.5"), "b": datetime(2026, 1, 1, tzinfo=UTC), "c": b"\xff"}
    held = replace(QUEUE, arguments=arguments)
    assert difference(held, replace(QUEUE, arguments=table_of(plain(arguments)))) is None


def test_sentences_are_bounded_and_cannot_steer_a_terminal():
    many = replace(QUEUE, arguments={f"x-{n}\x1b": "long" * 1000 for n in range(1000)})
    told = difference(QUEUE, many)
    assert told.isprintable()
    assert told.endswith("; and 996 more")
    assert len(told) < 1000


def test_rows_of_a_document_are_compared_as_they_are_read():
    row = {"vhost": "/", "name": "q", "type": "quorum", "arguments": {"x-max-length": 1}}
    (item,) = parse({"queues": [row]}).items["queues"]
    assert difference(QUEUE, item.definition).endswith("type is classic, the document says quorum")
