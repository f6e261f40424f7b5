"""Due lists, and pages of them, against Python's own lists."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.features.delay.due_list import (
    BITS_MAX,
    BITS_MIN,
    DueList,
    DuePage,
    put_record,
    record_of,
)
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder

PAIRS = st.lists(st.tuples(st.integers(0, 1 << 41), st.integers(0, 60)), max_size=60)
SMALL = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60)), max_size=60)
OFFSETS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5)


def listed(pairs):
    dues = DueList()
    for due_ms, offset in pairs:
        dues.add(due_ms, offset)
    return dues


@given(PAIRS, st.integers(0, 1 << 41), st.integers(1, 7))
def test_every_record_is_in_one_bucket_which_is_far_enough_or_the_smallest(pairs, base, count):
    found = []
    for start, bits, part in listed(pairs).buckets(base):
        assert BITS_MIN <= bits <= BITS_MAX
        assert start % (1 << bits) == 0
        assert bits == BITS_MIN or start >= base + (1 << bits)
        pieces = part.pieces(count)
        unpacked = DueList()
        for size, packed in pieces:
            assert 1 <= size <= count
            unpacked.unpack(packed)
        assert list(unpacked) == list(part)
        assert all(start <= due_ms < start + (1 << bits) for due_ms, _ in part)
        found += list(part)
    assert found == sorted(set(pairs))


@given(SMALL, OFFSETS, st.integers(0, 60), st.integers(0, 20), st.integers(0, 20))
def test_parts_of_a_list(pairs, settled, offset, from_ms, before_ms):
    gone = RangeSet(settled)
    dues = listed(pairs)
    dues.forget(gone)
    kept = [pair for pair in pairs if pair[1] not in gone]
    assert list(dues) == kept
    between = [pair for pair in kept if from_ms <= pair[0] < before_ms]
    assert list(dues.between(from_ms, before_ms)) == between
    dues.truncate(offset)
    assert list(dues) == [pair for pair in kept if pair[1] < offset]


@given(
    st.lists(SMALL, max_size=4),
    OFFSETS,
    OFFSETS,
    st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(0, 60))),
    st.one_of(st.none(), st.integers(0, 20)),
    st.integers(0, 10),
)
def test_a_page_is_the_first_of_all_it_was_shown(lists, settled, leased, after, before, count):
    page = DuePage(after, before, count)
    settled, leased = RangeSet(settled), RangeSet(leased)
    # An offset has one due time, however often it is shown.
    times = {offset: due_ms for pairs in lists for due_ms, offset in pairs}
    for pairs in lists:
        page.look(listed([(times[offset], offset) for _, offset in pairs]), settled, leased)
    wanted = sorted(
        (due_ms, offset)
        for offset, due_ms in times.items()
        if offset not in settled
        and offset not in leased
        and (after is None or (due_ms, offset) > after)
        and (before is None or due_ms < before)
    )
    assert page.page() == wanted[:count]
    if len(wanted) > count > 0:
        assert page.full_until_ms == wanted[count - 1][0]


@given(st.lists(st.integers(0, (1 << 48) - 2), min_size=1, max_size=20), OFFSETS)
def test_due_times_are_learned_from_batches(times, settled):
    builder = BatchBuilder()
    for due_ms in times:
        put_record(builder, due_ms, 8, 5, b"x", b"key", b"head", b"%d" % due_ms)
    batch = builder.seal(10)
    gone = RangeSet(settled)
    dues = DueList()
    dues.index(batch, gone)
    waiting = [(due_ms, 10 + at) for at, due_ms in enumerate(times) if 10 + at not in gone]
    assert list(dues) == waiting
    for due_ms, offset in waiting:
        wanted = (due_ms, offset, 8, b"x", b"key", b"head", b"%d" % due_ms)
        assert record_of(batch, offset) == wanted
