"""Counts of how often messages came back: in runs, and dropped."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from leveret.ports import returns as returns_module
from leveret.ports.ranges import RangeSet
from leveret.ports.returns import Returns

OFFSETS = st.integers(0, 40)
COUNTS = st.dictionaries(OFFSETS, st.tuples(st.integers(1, 3), st.integers(0, 2)))
RANGES = st.lists(st.tuples(OFFSETS, st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1])))


def returns_of(counts):
    returns = Returns()
    for offset, (acquired, failures) in counts.items():
        returns.put(offset, offset + 1, acquired, failures)
    return returns


def counts_of(returns):
    assert returns.failures.keys() <= returns.acquired.keys()
    return {o: (count, returns.failures.get(o, 0)) for o, count in returns.acquired.items()}


def within(counts, ranges):
    return {o: kept for o, kept in counts.items() if any(low <= o < high for low, high in ranges)}


@given(COUNTS, RANGES)
def test_runs_say_everything_once(counts, ranges):
    told = {}
    for wanted, expected in [(None, counts), (RangeSet(ranges), within(counts, ranges))]:
        runs = list(returns_of(counts).runs(wanted))
        told = {o: kept for first, stop, *kept in runs for o in range(first, stop)}
        assert {o: tuple(kept) for o, kept in told.items()} == expected
        assert runs == sorted(runs)
        for (_, stop, *one), (first, _, *other) in pairwise(runs):
            assert stop < first or one != other


@given(COUNTS, RANGES)
def test_what_is_done_with_is_dropped(counts, ranges):
    returns, others = returns_of(counts), returns_of(counts)
    returns.forget(ranges)
    others.keep(RangeSet(ranges))
    assert {**counts_of(returns), **counts_of(others)} == counts
    assert counts_of(others) == within(counts, ranges)


def test_long_runs_are_told_in_parts(monkeypatch):
    monkeypatch.setattr(returns_module, "RUN_OFFSETS_MAX", 4)
    returns = Returns()
    returns.put(3, 13, 1, 0)
    assert list(returns.runs()) == [(3, 7, 1, 0), (7, 11, 1, 0), (11, 13, 1, 0)]
