from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.ledgers.ledger import CAME_BACK_MAX, Ledger
from leveret.ports.ranges import RangeSet


def test_begins_with_what_is_committed_and_not_settled_ready():
    ledger = Ledger(10, 20, RangeSet([(0, 12), (15, 16)]))
    assert list(ledger.ready) == [(12, 15), (16, 20)]
    assert ledger.ready_count == 7
    assert ledger.leased_count == 0


def test_does_not_touch_the_settled_set_it_was_given():
    settled = RangeSet([(0, 2)])
    ledger = Ledger(0, 4, settled)
    ledger.lease(2, 3)
    ledger.settle([(2, 3)])
    assert list(settled) == [(0, 2)]


def test_peek_stays_within_the_lowest_range_and_the_limit():
    ledger = Ledger(0, 10, RangeSet([(4, 5)]))
    assert ledger.peek(100) == (0, 4, False)
    assert ledger.peek(3) == (0, 3, False)


def test_peek_ends_where_redelivered_offsets_end():
    ledger = Ledger(0, 10, RangeSet())
    ledger.lease(0, 6)
    ledger.return_([(0, 1), (3, 6)])
    assert ledger.peek(100) == (0, 1, True)
    ledger.lease(0, 1)
    assert list(ledger.ready) == [(3, 10)]
    assert ledger.peek(100) == (3, 6, True)
    assert ledger.peek(2) == (3, 5, True)
    ledger.lease(3, 6)
    assert ledger.peek(100) == (6, 10, False)


def test_offsets_of_an_earlier_run_are_redelivered_also_when_committed_late():
    ledger = Ledger(0, 2, RangeSet(), redelivered_stop=5)
    assert ledger.peek(10) == (0, 2, True)
    ledger.commit(8)
    assert ledger.peek(10) == (0, 5, True)
    ledger.lease(0, 5)
    assert ledger.peek(10) == (5, 8, False)


def test_a_redelivered_stop_below_the_first_offset_says_nothing():
    assert Ledger(5, 8, RangeSet(), redelivered_stop=3).peek(10) == (5, 8, False)


def test_settled_offsets_come_back_in_no_way():
    ledger = Ledger(0, 6, RangeSet())
    ledger.lease(0, 6)
    assert ledger.settle([(1, 2), (4, 6)]) == 3
    ledger.return_([(0, 1), (2, 4)])
    assert list(ledger.ready) == [(0, 1), (2, 4)]
    assert ledger.leased_count == 0


def test_settles_what_a_range_set_names():
    ledger = Ledger(0, 6, RangeSet())
    ledger.lease(0, 6)
    assert ledger.settle(RangeSet([(0, 2), (3, 4)])) == 3


def test_purge_leaves_leases_and_flags_nothing_that_comes_later():
    ledger = Ledger(0, 4, RangeSet())
    ledger.lease(0, 4)
    ledger.return_([(1, 3)])
    assert ledger.purge() == [(1, 3)]
    ledger.commit(6)
    assert ledger.peek(10) == (4, 6, False)
    assert list(ledger.leased) == [(0, 1), (3, 4)]


def test_peek_runs_passes_over_what_is_not_ready():
    ledger = Ledger(0, 20, RangeSet([(4, 5), (7, 10), (12, 13)]))
    assert ledger.peek_runs(100, 100) == ([(0, 4), (5, 7), (10, 12), (13, 20)], False)
    assert ledger.peek_runs(7, 100) == ([(0, 4), (5, 7), (10, 11)], False)
    assert ledger.peek_runs(100, 11) == ([(0, 4), (5, 7), (10, 11)], False)
    assert ledger.peek_runs(100, 10) == ([(0, 4), (5, 7)], False)


@given(
    back=st.sets(st.integers(0, 30)),
    over=st.sets(st.integers(0, 30)),
    limit=st.integers(1, 40),
    end=st.integers(1, 40),
)
def test_peek_runs_is_what_peek_says_again_and_again(back, over, limit, end):
    """`over` was passed over by the first deliveries, of which `back` came back."""
    ledger = Ledger(0, 30, RangeSet())
    for offset in sorted(set(range(30)) - over):
        ledger.lease(offset, offset + 1)
    ledger.return_([(offset, offset + 1) for offset in sorted(back - over) if offset < 30])
    ledger.commit(33)
    end += ledger.first_ready
    runs, redelivered = ledger.peek_runs(limit, end)
    found = [offset for first, stop in runs for offset in range(first, stop)]
    expected = []
    while ledger.ready_count and len(expected) < limit:
        first, stop, kind = ledger.peek(1)
        if first >= end or kind != redelivered:
            break
        ledger.lease(first, stop)
        expected.append(first)
    assert found == expected
    assert all(stop < after for (_, stop), (after, _) in pairwise(runs))


@pytest.mark.parametrize(
    "impossible",
    [
        lambda ledger: ledger.settle([(3, 4)]),  # ready
        lambda ledger: ledger.settle([(2, 3)]),  # leased no longer
        lambda ledger: ledger.settle([(0, 2), (1, 2)]),  # one offset twice
        lambda ledger: ledger.settle([(1, 7)]),  # partly beyond the end
        lambda ledger: ledger.settle([(2, 0)]),  # upside down
        lambda ledger: ledger.return_([(1, 3)]),  # partly settled
        lambda ledger: ledger.return_([(1, 2), (1, 2)]),  # one offset twice
        lambda ledger: ledger.lease(1, 2),  # leased already
        lambda ledger: ledger.lease(3, 7),  # not committed
        lambda ledger: ledger.commit(5),  # back
        lambda ledger: ledger.peek(0),  # nothing asked
        lambda ledger: Ledger(3, 3, RangeSet()).peek(1),  # nothing ready
    ],
)
def test_refuses_what_cannot_be(impossible):
    ledger = Ledger(0, 6, RangeSet())
    ledger.lease(0, 3)
    ledger.settle([(2, 3)])
    with pytest.raises(AssertionError):
        impossible(ledger)


def test_only_what_is_ready_can_be_lost():
    ledger = Ledger(0, 10, RangeSet([(4, 5)]))
    ledger.lease(0, 2)
    assert ledger.lose([(1, 3), (3, 7), (20, 30)]) == [(2, 3), (3, 4), (5, 7)]
    assert list(ledger.ready) == [(7, 10)]
    assert list(ledger.leased) == [(0, 2)]


def test_what_was_passed_over_was_never_delivered():
    ledger = Ledger(0, 10, RangeSet())
    ledger.lease(0, 2)
    ledger.lease(5, 6)
    ledger.lease(8, 9)
    ledger.return_([(1, 2), (5, 6)])
    assert ledger.redelivered_stop == 9
    assert ledger.kind(1, 10) == (2, True)
    assert ledger.kind(2, 10) == (5, False)
    assert ledger.kind(5, 10) == (6, True)
    assert ledger.kind(6, 8) == (8, False)
    assert ledger.kind(9, 10) == (10, False)
    assert ledger.peek(10) == (1, 2, True)
    ledger.lease(1, 2)
    assert ledger.peek(10) == (2, 5, False)
    ledger.lease(2, 5)
    assert ledger.peek(10) == (5, 6, True)
    ledger.return_([(2, 4)])
    assert ledger.peek(10) == (2, 4, True)


def test_what_is_lost_or_purged_is_not_passed_over_any_more():
    ledger = Ledger(0, 10, RangeSet())
    ledger.lease(9, 10)
    assert ledger.lose([(0, 3)]) == [(0, 3)]
    assert ledger.peek(10) == (3, 9, False)
    ledger.purge()
    ledger.commit(12)
    assert ledger.peek(10) == (10, 12, False)


def test_notes_what_comes_back_while_somebody_wants_to_know():
    ledger = Ledger(0, 10, RangeSet())
    ledger.lease(0, 6)
    ledger.return_([(0, 1)])
    ledger.came_back = RangeSet()
    ledger.return_([(2, 4), (5, 6)])
    assert list(ledger.came_back) == [(2, 4), (5, 6)]


def test_gives_up_noting_what_is_too_much():
    count = 2 * CAME_BACK_MAX + 2
    ledger = Ledger(0, count, RangeSet())
    ledger.lease(0, count)
    ledger.came_back = RangeSet()
    ledger.return_([(offset, offset + 1) for offset in range(0, count, 2)])
    assert ledger.came_back is None
