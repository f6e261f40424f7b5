"""Records that a filter lets through, against the same question asked of pamqp's tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from leveret.features.filters.filters import RecordFilter
from leveret.features.filters.stream_filter import StreamValues, stream_values
from leveret.ports.records import BatchBuilder, RecordFlag
from tests.amqp.strategies import header_values, properties
from tests.support.contents import encode_properties

NAME = "x-stream-filter-value"
VALUES = ["", "a", "b", "ключ"]


@st.composite
def messages(draw):
    """Properties that often have a filter value, somewhere among other headers."""
    chosen = draw(properties())
    chosen.timestamp = None
    if draw(st.booleans()):
        names = st.sampled_from([NAME, NAME[:-1], NAME + "s"]) | st.text(max_size=5)
        values = st.sampled_from(VALUES) | header_values
        chosen.headers = draw(st.dictionaries(names, values, max_size=4))
    return chosen


def batches_of(groups, base=0):
    found = []
    for group in groups:
        builder = BatchBuilder()
        for chosen in group:
            flags = RecordFlag.HAS_HEADERS if chosen.headers is not None else 0
            builder.add(flags, 1, b"", b"s", encode_properties(chosen, 0), b"")
        found.append(builder.seal(base))
        base += len(group)
    return found


def wants(chosen, values, unfiltered):
    value = (chosen.headers or {}).get(NAME)
    return value in values if isinstance(value, str) else unfiltered


@given(
    st.lists(st.lists(messages(), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sets(st.sampled_from(VALUES)),
    st.booleans(),
    st.data(),
)
def test_exactly_the_wanted_records_come(groups, values, unfiltered, data):
    stored = [chosen for group in groups for chosen in group]
    batches = batches_of(groups, 100)
    first = data.draw(st.integers(100, 100 + len(stored) - 1))
    stop = data.draw(st.integers(first + 1, 100 + len(stored)))
    found = []
    chosen = RecordFilter(None, StreamValues([value.encode() for value in values], unfiltered))
    at = first
    while at < stop:
        begin, end = chosen.run(batches, at, stop)
        assert at <= begin <= end <= stop
        found += range(begin, end)
        at = end
    assert found == [
        offset for offset in range(first, stop) if wants(stored[offset - 100], values, unfiltered)
    ]


@pytest.mark.covers("C-212")
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"x-stream-filter": "a"}, [0]),
        ({"x-stream-filter": ["a", "b", 5]}, [0, 1]),
        ({"x-stream-filter": []}, []),
        ({"x-stream-filter": "a", "x-stream-match-unfiltered": True}, [0, 2]),
        ({"x-stream-filter": b"\xff"}, []),
        ({"x-stream-filter": "a", "x-stream-match-unfiltered": "yes"}, [0]),
    ],
)
def test_what_a_consumer_asks_for(arguments, wanted):
    stored = [
        commands.Basic.Properties(headers={NAME: "a"}),
        commands.Basic.Properties(headers={NAME: "b"}),
        commands.Basic.Properties(),
    ]
    batches = batches_of([stored])
    chosen = RecordFilter(None, stream_values(arguments))
    assert [at for at in range(3) if chosen.run(batches, at, at + 1) == (at, at + 1)] == wanted


@pytest.mark.parametrize(
    "arguments", [{}, {"x-stream-match-unfiltered": True}, {"x-stream-filter": 5}]
)
def test_who_asks_for_nothing_gets_everything(arguments):
    assert stream_values(arguments) is None


@given(st.binary(max_size=40))
def test_headers_that_make_no_sense_have_no_value(head):
    builder = BatchBuilder()
    builder.add(RecordFlag.HAS_HEADERS, 1, b"", b"s", head, b"")
    batches = [builder.seal(0)]
    assert RecordFilter(None, StreamValues([b"a"], True)).run(batches, 0, 1) == (0, 1)
    assert RecordFilter(None, StreamValues([b"a"], False)).run(batches, 0, 1) == (1, 1)
