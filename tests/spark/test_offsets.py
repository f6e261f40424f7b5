"""Offsets of a stream: as JSON, limited fairly, divided into ranges."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.spark.offsets import (
    OffsetRange,
    TopicOffsets,
    cut_ranges,
    divide_ranges,
    limit_offsets,
    ranges_between,
)

PLACES = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, 4), st.integers(0, 1000), min_size=1),
)


@st.composite
def stretches(draw):
    """Return a start, and an end that is nowhere before it and has maybe more partitions."""
    end = draw(PLACES)
    start = {
        topic: {
            number: draw(st.integers(0, offset))
            for number, offset in places.items()
            if draw(st.booleans())
        }
        for topic, places in end.items()
    }
    return TopicOffsets(start), TopicOffsets(end)


@given(PLACES)
def test_what_is_written_down_is_read_again(places):
    offsets = TopicOffsets(places, dict.fromkeys(places, "0f"))
    told = json.loads(json.dumps(offsets.to_json()))
    assert TopicOffsets.from_json(told) == offsets


def test_equal_offsets_are_equal_text():
    one = TopicOffsets({"b": {1: 2, 0: 1}, "a": {0: 3}}, {"b": "1", "a": "2"})
    two = TopicOffsets({"a": {0: 3}, "b": {0: 1, 1: 2}}, {"a": "2", "b": "1"})
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())


@pytest.mark.parametrize("told", [{}, {"offsets": 1, "logs": {}}, {"offsets": {"a": {"x": 1}}}])
def test_other_json_is_refused(told):
    with pytest.raises(ValueError, match="no offsets"):
        TopicOffsets.from_json(told)


def test_going_back_is_refused():
    with pytest.raises(
        ValueError, match="topic 'a', partition 0 cannot be read from offset 5 back"
    ):
        ranges_between(TopicOffsets({"a": {0: 5}}), TopicOffsets({"a": {0: 4}}))


@given(stretches(), st.integers(1, 3000))
def test_a_limit_leaves_no_partition_behind(stretch, count_max):
    start, end = stretch
    wanted = ranges_between(start, end)
    limited = ranges_between(start, limit_offsets(start, end, count_max))
    assert {each[:2] for each in limited} == {each[:2] for each in wanted}
    assert sum(each.end - each.first for each in limited) <= max(count_max, len(wanted))
    for part, whole in zip(limited, wanted, strict=True):
        assert part.first == whole.first
        assert whole.first < part.end <= whole.end


@given(stretches(), st.integers(1, 3000))
def test_limited_batches_come_to_the_end(stretch, count_max):
    start, end = stretch
    for _ in range(5000):
        if not ranges_between(start, end):
            return
        start = limit_offsets(start, end, count_max)
    raise AssertionError("never at the end")


@given(stretches(), st.integers(0, 50))
def test_divided_ranges_are_the_same_offsets(stretch, count_min):
    ranges = ranges_between(*stretch)
    pieces = divide_ranges(ranges, count_min)
    for whole in ranges:
        mine = [each for each in pieces if each[:2] == whole[:2]]
        assert mine[0].first == whole.first
        assert mine[-1].end == whole.end
        assert all(one.end == two.first for one, two in itertools.pairwise(mine))
        assert all(each.first < each.end for each in mine)


@given(stretches(), st.integers(1, 1000))
def test_cut_ranges_are_the_same_offsets_and_none_is_larger(stretch, size_max):
    ranges = ranges_between(*stretch)
    pieces = cut_ranges(ranges, size_max)
    assert [each for piece in pieces for each in range(piece.first, piece.end)] == [
        each for whole in ranges for each in range(whole.first, whole.end)
    ]
    assert all(0 < each.end - each.first <= size_max for each in pieces)
    assert len(pieces) == sum(-(-(each.end - each.first) // size_max) for each in ranges)


def test_large_ranges_are_cut_first():
    ranges = [OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 10, 110)]
    pieces = divide_ranges(ranges, 10)
    assert [each.partition for each in pieces] == [0] * 9 + [1]
    assert divide_ranges(ranges, 2) == ranges
