"""Parameters of range reads: any query is understood, or refused with a reason."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.errors import ChannelError
from leveret.features.range_reads import rules
from leveret.features.range_reads.columns import COLUMNS
from leveret.features.range_reads.rules import (
    RangeRequest,
    check_read_by_offset,
    log_number,
    log_text,
    parse_request,
    parse_time,
)
from leveret.ports.definitions import QueueDefinition
from tests.support.client import Client
from tests.support.stage import Stage

texts = st.one_of(
    st.text(max_size=25),
    st.integers(-10, 1 << 70).map(str),
    st.sampled_from(["", "+1", "1_0", " 1", "1 ", "²", "٣", "0x1", "1e3", "-0", "0" * 25]),
    st.lists(st.sampled_from([*COLUMNS, "", "Value", "offset "]), max_size=9).map(",".join),
    st.lists(st.sampled_from(["a", "1", "'t'", "(", ")", "!", "&&", "=", "AND"])).map(" ".join),
)
queries = st.dictionaries(
    st.sampled_from(["offset", "rows", "bytes", "wait", "chunks", "columns", "tags", "filter"]),
    texts,
)


@given(queries)
@example({"offset": "9" * 5000})
@example({"offset": "9223372036854775808"})
def test_any_query_is_understood_or_refused_with_a_reason(query):
    reason = ""
    try:
        request = parse_request(query)
    except ValueError as error:
        reason = str(error)
    if reason:
        assert any(name in reason for name in ("offset", *query, "column"))
        assert len(reason) < 300
    else:
        assert 0 <= request.offset < 1 << 63
        assert 1 <= request.rows_max <= rules.ROWS_MAX
        assert 1 <= request.bytes_max <= rules.BYTES_MAX
        assert 1 <= request.chunks_max <= rules.CHUNKS_MAX
        assert 0 <= request.wait_ms <= rules.WAIT_MS_MAX
        assert request.columns
        assert list(request.columns) == sorted(set(request.columns))
        assert (request.filter is None) == ("tags" not in query and "filter" not in query)


def test_defaults():
    assert parse_request({"offset": "7"}) == RangeRequest(7)
    assert RangeRequest(0).columns == tuple(range(len(COLUMNS)))
    assert parse_time({}) is None
    assert parse_time({"time": "12"}) == 12


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "offset is needed: where to begin"),
        ({"offset": "x"}, f"offset is a whole number from 0 to {(1 << 63) - 1}"),
        ({"offset": "0", "rows": "0"}, f"rows is a whole number from 1 to {rules.ROWS_MAX}"),
        ({"offset": "0", "wait": "20001"}, "wait is a whole number from 0 to 20000"),
        (
            {"offset": "0", "columns": "value,ofset"},
            "unknown column 'ofset'; did you mean 'offset'?; there are " + ", ".join(COLUMNS),
        ),
        (
            {"offset": "0", "tags": "a && "},
            "tags: expected a tag, found the end at character 6, after 'a && '",
        ),
        (
            {"offset": "0", "tags": "a", "filter": "n >"},
            "filter: expected a value, found the end at character 4, after 'n >'",
        ),
        ({"offset": "0", "filter": "n = 1" + " " * 4096}, "filter: longer than 4096 characters"),
    ],
)
def test_reasons(query, reason):
    with pytest.raises(ValueError) as caught:
        parse_request(query)
    assert str(caught.value) == reason


@pytest.mark.parametrize("name", ["tags", "filter"])
def test_expressions_are_bounded_as_those_of_consumers_are(name):
    for text, reason in (
        ("(" * 1000, "nested deeper than 32"),
        ("+".join("1" * 300) if name == "filter" else "||".join("a" * 700), "more than "),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {reason}"):
            parse_request({"offset": "0", name: text})


def test_which_queues_keep_messages():
    stage = Stage()
    client = Client(stage).open()
    client.declare("plain", durable=True)
    client.declare("kept", durable=True, arguments={"x-retention": "1h"})
    client.declare("stream", durable=True, arguments={"x-queue-type": "stream"})
    for name in ("kept", "stream"):
        check_read_by_offset(stage.queue(name), name)
    with pytest.raises(ChannelError) as caught:
        check_read_by_offset(stage.queue("plain"), "plain")
    assert caught.value.code == 406
    assert "declare it with x-retention, or as a stream" in caught.value.explanation


def test_another_queue_of_the_same_name_has_another_log():
    one, two = (
        QueueDefinition("/", "q", durable=True, incarnation=incarnation)
        for incarnation in ("random1", "random2")
    )
    assert log_number(one) != log_number(two)
    assert log_text(one) == f"{log_number(one):016x}"
