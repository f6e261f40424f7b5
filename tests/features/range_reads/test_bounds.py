"""Offsets that can be read: found range by range, they are those that no set of holes has."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.open_queue import OpenQueue
from leveret.features.range_reads.bounds import bounds_of, first_readable, readable
from leveret.ports.ranges import RangeSet

places = st.integers(0, 40)
holes = st.lists(st.tuples(places, st.integers(1, 9)), max_size=6).map(
    lambda ranges: RangeSet((first, first + size) for first, size in ranges)
)


@given(st.lists(holes, max_size=3), places, places)
def test_readable_is_what_no_hole_has(sets, first, stop):
    wanted = [at for at in range(first, stop) if not any(at in each for each in sets)]
    ranges = readable(sets, first, stop)
    assert [at for begin, end in ranges for at in range(begin, end)] == wanted
    assert all(begin < end for begin, end in ranges)
    assert first_readable(sets, first, stop) == (wanted[0] if wanted else stop)


def test_the_first_readable_behind_a_large_hole():
    hole = RangeSet([(5, 5 + (1 << 40))])
    assert first_readable([hole], 0, 1 << 50) == 0
    assert first_readable([hole], 5, 1 << 50) == 5 + (1 << 40)
    assert first_readable([hole], 5, 1 << 40) == 1 << 40


@given(holes, holes, places, st.booleans())
def test_bounds_are_in_order_and_skip_no_aborted_beginning(removed, undone, first, is_stream):
    settled = RangeSet([*removed, *undone])
    log = SimpleNamespace(
        first=first,
        committed=50,
        settled=settled,
        removed=removed,
        undone=undone,
        erased=RangeSet(),
        retained_from=None,
    )
    partition = SimpleNamespace(log=log, settings=SimpleNamespace(is_stream=is_stream))
    partition.unreadable = OpenQueue.unreadable.fget(partition)
    bounds = bounds_of(partition)
    assert first <= bounds.first <= bounds.end == 50
    passed = range(first, bounds.first)
    assert all(at in removed or at in undone for at in passed)
    if passed:
        assert any(at not in undone for at in passed)
