"""Batches of a consumed queue: as JSON, and divided into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.range_reader import LeasedOffsets, LeaseName
from leveret.spark.queue_batches import QueueBatch, divide_lease


def test_a_batch_is_read_as_it_was_written():
    leased = LeasedOffsets("ab", {0: [(1, 3), (5, 6)], 2: [(0, 1)]})
    batch = QueueBatch("me", 7, leased)
    told = json.loads(json.dumps(batch.to_json()))
    again = QueueBatch.from_json(told)
    assert again == batch
    assert again.to_json() == told
    assert batch.name("work") == LeaseName("work", "me", 7)
    assert QueueBatch.from_json(QueueBatch("me").to_json()) == QueueBatch("me")


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"offsets": {}, "logs": {}},
        {"holder": "me", "number": "x", "log": "", "ranges": {}},
        {"holder": "me", "number": 1, "log": "", "ranges": []},
        {"holder": "me", "number": 1, "log": "", "ranges": {"0": [[1]]}},
    ],
)
def test_anothers_offsets_are_refused(told):
    with pytest.raises(ValueError, match="another source"):
        QueueBatch.from_json(told)


def spans(steps):
    """Return ranges of these (gap before, length)."""
    found, at = [], 0
    for gap, length in steps:
        found.append((at + gap, at + gap + length))
        at += gap + length
    return found


STEPS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6)


@given(st.dictionaries(st.integers(0, 3), STEPS.map(spans)), st.integers(0, 20))
def test_the_pieces_are_the_whole_and_about_as_many_as_wanted(ranges, count_min):
    leased = LeasedOffsets("", ranges)
    pieces = divide_lease(leased, count_min)
    offsets = [
        (piece.partition, at)
        for piece in pieces
        for first, end in piece.ranges
        for at in range(first, end)
    ]
    assert offsets == [
        (number, at)
        for number in sorted(ranges)
        for first, end in ranges[number]
        for at in range(first, end)
    ]
    sizes = [sum(end - first for first, end in piece.ranges) for piece in pieces]
    assert all(sizes)
    assert len(pieces) <= max(count_min, 1) + len(ranges)
    if sizes and count_min:
        assert max(sizes) <= -(-leased.messages // count_min)
