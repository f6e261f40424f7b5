"""Deadlines against a list of records, and who of a few batches has expired."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.deadlines import Deadlines, deadline, same_fate
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder
from tests.support.queue_bench import content_header

RECORDS = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 30)), min_size=1, max_size=30
)


def batches_of(records, length):
    """Batches of `length` records (milliseconds after the one before, expiration)."""
    now, base, batches, deadlines = 1000, 0, [], []
    for start in range(0, len(records), length):
        builder = BatchBuilder()
        for pause, lives in records[start : start + length]:
            now += pause
            properties = {} if lives is None else {"expiration": str(lives)}
            flags, header = content_header(0, **properties)
            builder.add(flags, now, b"", b"q", header, b"")
            deadlines.append((now, lives))
        batches.append(builder.seal(base))
        base += len(builder) or batches[-1].count
    return batches, deadlines


def offsets(ranges):
    return [offset for first, stop in ranges for offset in range(first, stop)]


@given(RECORDS, st.integers(1, 9), st.lists(st.integers(0, 20), max_size=8))
def test_each_is_due_once_and_at_its_time(records, length, pauses):
    batches, known = batches_of(records, length)
    heap, now = Deadlines(), 1000
    for batch in batches:
        heap.index(batch)
    left = {i: at + lives for i, (at, lives) in enumerate(known) if lives is not None}
    for pause in pauses:
        now += pause
        assert heap.next == min(left.values(), default=None)
        due = {offset for offset, at in left.items() if at <= now}
        assert sorted(offsets(heap.take_due(now))) == sorted(due)
        left = {offset: at for offset, at in left.items() if at > now}


def test_many_that_are_due_at_once_are_taken_some_at_a_time():
    heap = Deadlines()
    for number in range(1000):
        heap.add(2 * number, 2 * number + 1, 1000)
    taken = []
    while heap.next is not None:
        some = heap.take_due(1000)
        assert 0 < len(some) <= 256
        taken += some
    assert taken == [(2 * number, 2 * number + 1) for number in range(1000)]


@given(RECORDS, st.integers(1, 9), st.sets(st.integers(0, 30)), st.integers(0, 30))
def test_what_is_forgotten_is_never_due(records, length, live, end):
    batches, known = batches_of(records, length)
    heap = Deadlines()
    for batch in batches:
        heap.index(batch)
    heap.truncate(end)
    heap.prune(RangeSet((offset, offset + 1) for offset in live))
    due = set(offsets(heap.take_due(10**6)))
    own = {i for i, (_, lives) in enumerate(known) if lives is not None}
    assert due & live == own & live & set(range(end))
    assert due <= own & set(range(end))


@given(
    RECORDS,
    st.integers(1, 9),
    st.none() | st.integers(0, 40),
    st.integers(1000, 1100),
    st.integers(0, 29),
    st.integers(1, 30),
)
def test_fates_are_told_apart(records, length, ttl, now, first, count):
    batches, known = batches_of(records, length)
    first = min(first, len(known) - 1)
    stop = min(first + count, len(known))
    ends = []
    for at, lives in known:
        own = [life for life in (lives, ttl) if life is not None]
        ends.append(at + min(own) if own else None)
    fates = [end is not None and end <= now for end in ends]
    reached, expired = same_fate(batches, first, stop, now, ttl)
    assert fates[first:reached] == [expired] * (reached - first)
    assert reached == stop or fates[reached] != expired
    holding = next(batch for batch in batches if first < batch.stop_offset)
    assert deadline(holding, first, ttl) == ends[first]
