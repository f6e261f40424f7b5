"""Pieces of a replay: every record once and in order, however often and differently it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.spark.jobs.replay_plan import (
    OffsetBucket,
    cut_pieces,
    needs_cutting,
    skip_rows,
)

RECORD_BYTES = st.lists(st.lists(st.integers(1, 50), max_size=30), max_size=3)  # by partition


def buckets_of(records, width):
    """Return the buckets of records' sizes, by partition, with so many offsets in each."""
    found = []
    for partition, sizes in enumerate(records):
        for first in range(0, len(sizes), width):
            some = sizes[first : first + width]
            found.append(OffsetBucket(partition, first, first + len(some), len(some), sum(some)))
    return found


def cut(records, buckets, before, done, piece_bytes):
    """Return buckets of which those that need it were cut into single records."""
    indexes = needs_cutting(buckets, before, done, piece_bytes)
    exact = []
    for index, each in enumerate(buckets):
        if index in indexes:
            exact += [
                OffsetBucket(each.partition, at, at + 1, 1, records[each.partition][at])
                for at in range(each.first, each.end)
            ]
        else:
            exact.append(each)
    return exact


def published(pieces):
    return [
        (part.partition, offset)
        for piece in pieces
        for part in piece.ranges
        for offset in range(part.first, part.end)
    ]


@given(
    RECORD_BYTES,
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 200)), min_size=1),
    st.data(),
)
def test_runs_that_end_anywhere_publish_each_record_once_and_in_order(records, runs, data):
    everything = [(p, o) for p, sizes in enumerate(records) for o in range(len(sizes))]
    done, found = 0, []
    for width, piece_bytes in [*runs, (1000, 1 << 30)]:
        exact = cut(records, buckets_of(records, width), 0, done, piece_bytes)
        at, rest = skip_rows(exact, 0, done)
        assert at >= done
        pieces = list(cut_pieces(rest, at, piece_bytes))
        assert [each.number for each in pieces] == [
            at + sum(each.rows for each in pieces[: index + 1]) for index in range(len(pieces))
        ]
        is_last = (width, piece_bytes) == (1000, 1 << 30)
        kept = pieces if is_last else pieces[: data.draw(st.integers(0, len(pieces)))]
        found += published(kept)
        done = kept[-1].number if kept else done
    assert found == everything


@given(RECORD_BYTES, st.integers(1, 200))
def test_pieces_have_limits(records, piece_bytes):
    buckets = buckets_of(records, 1)
    for piece in cut_pieces(buckets, 0, piece_bytes):
        assert piece.rows == 1 or sum(each.bytes for each in piece.ranges) <= piece_bytes
        assert all(one[0] < two[0] for one, two in pairwise(piece.ranges))


def test_a_run_that_ended_within_a_bucket_is_noticed():
    buckets = [OffsetBucket(0, 0, 10, 10, 100)]
    assert needs_cutting(buckets, 20, 25, 1000) == [0]
    assert needs_cutting(buckets, 20, 30, 1000) == []
    assert needs_cutting(buckets, 20, 20, 99) == [0]
    with pytest.raises(ValueError, match="end within offsets 0 to 10"):
        skip_rows(buckets, 20, 25)
