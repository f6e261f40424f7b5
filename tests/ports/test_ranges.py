"""RangeSet against a Python set."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leveret.ports.ranges import RangeSet
from tests.support.examples import examples

OFFSETS = st.integers(0, 60)


def as_ranges(offsets: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found


class RangeSetMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.real = RangeSet()
        self.model: set[int] = set()

    @rule(first=OFFSETS, stop=OFFSETS)
    def add(self, first, stop):
        wanted = set(range(first, stop))
        assert self.real.add(first, stop) == len(wanted - self.model)
        self.model |= wanted

    @rule(ranges=st.lists(st.tuples(OFFSETS, OFFSETS), max_size=8))
    def add_all(self, ranges):
        self.real.add_all(ranges)
        for first, stop in ranges:
            self.model |= set(range(first, stop))

    @rule(first=OFFSETS, stop=OFFSETS)
    def remove(self, first, stop):
        wanted = set(range(first, stop))
        assert self.real.remove(first, stop) == len(wanted & self.model)
        self.model -= wanted

    @rule()
    def clear(self):
        self.real.clear()
        self.model.clear()

    @rule(first=OFFSETS, stop=OFFSETS)
    def ask(self, first, stop):
        wanted = set(range(first, stop))
        assert self.real.contains(first, stop) is (wanted <= self.model)
        assert self.real.overlap(first, stop) == len(wanted & self.model)
        assert list(self.real.gaps(first, stop)) == as_ranges(wanted - self.model)
        assert (first in self.real) is (first in self.model)

    @invariant()
    def agrees(self):
        ranges = as_ranges(self.model)
        assert list(self.real) == ranges
        assert self.real.count == len(self.model)
        assert len(self.real) == len(ranges)
        assert bool(self.real) is bool(ranges)
        assert self.real.first == (ranges[0][0] if ranges else None)
        assert self.real.stop == (ranges[-1][1] if ranges else None)
        assert RangeSet.from_bytes(self.real.to_bytes()) == self.real
        assert self.real.copy() == self.real


TestRangeSet = RangeSetMachine.TestCase


@given(st.binary(max_size=80))
def test_any_bytes_are_a_range_set_or_a_value_error(raw):
    try:
        found = RangeSet.from_bytes(raw)
    except ValueError:
        return
    assert found.to_bytes() == raw
    assert list(RangeSet(found)) == list(found)


@pytest.mark.parametrize("ranges", [[(0, 2**64 - 1)], [(2**63, 2**63 + 1)]])
def test_large_offsets(ranges):
    assert list(RangeSet(ranges)) == ranges


def test_negative_offsets_are_refused():
    with pytest.raises(OverflowError):
        RangeSet().add(-1, 5)


@pytest.mark.parametrize("seed", range(20))
def test_thousands_of_holes_from_either_end(seed):
    """Cases too long for Hypothesis: growth to both sides, and shrinking again."""
    rng = random.Random(seed)
    ranges, model = RangeSet([(0, 2000)]), set(range(2000))
    for low, high in ((0, 100), (1900, 2000), (0, 2000), (900, 1100)):
        for _ in range(1000):
            offset = rng.randrange(low, high)
            change, other = rng.choice((("add", model.add), ("remove", model.discard)))
            getattr(ranges, change)(offset, offset + 1)
            other(offset)
        assert list(ranges) == as_ranges(model)
        assert ranges.count == len(model)
        for _ in range(rng.randrange(200)):
            first = ranges.first
            assert ranges.remove(first, first + 1) == 1
            model.remove(first)
    assert RangeSet.from_bytes(ranges.to_bytes()) == ranges


MANY = 12_000  # ranges: far more than are kept in one array


def test_many_ranges_are_cut_into_blocks_and_united_again():
    ranges = RangeSet((first, first + 1) for first in range(0, 2 * MANY, 2))
    assert list(ranges) == as_ranges(set(range(0, 2 * MANY, 2)))
    most = ranges.held_bytes
    for first in range(0, 2 * MANY - 200, 2):
        assert ranges.first == first
        ranges.remove(first, first + 1)
    assert list(ranges) == as_ranges(set(range(2 * MANY - 200, 2 * MANY, 2)))
    assert ranges.held_bytes < most // 4
    ranges.clear()
    assert ranges.held_bytes == 0
    assert list(ranges) == []


@pytest.mark.parametrize("step", [-2, 2])
def test_many_ranges_go_but_a_few_of_each_block(step):
    ranges = RangeSet((first, first + 1) for first in range(0, 2 * MANY, 2))
    most = ranges.held_bytes
    kept = set(range(0, 2 * MANY, 20))
    for first in range(0, 2 * MANY, 2)[:: step // 2]:
        if first not in kept:
            assert ranges.remove(first, first + 1) == 1
    assert list(ranges) == as_ranges(kept)
    assert ranges.held_bytes < most // 2


@pytest.mark.parametrize("seed", range(examples(6)))
def test_many_ranges_change_anywhere(seed):
    """Single offsets and long spans, at both ends, around one place, or anywhere."""
    rng = random.Random(seed)
    model = set(rng.sample(range(3 * MANY), MANY))
    ranges = RangeSet()
    ranges.add_all((offset, offset + 1) for offset in model)
    for places in ((0, 3 * MANY), (0, 50), (3 * MANY - 50, 3 * MANY), (MANY, MANY + 2000)):
        for length in (1, 1, 1, 40, MANY // 2):
            for _ in range(300 if length < MANY // 2 else 1):
                first = rng.randrange(*places)
                stop = first + rng.randrange(length) + 1
                wanted = set(range(first, stop))
                assert ranges.contains(first, stop) is (wanted <= model)
                assert ranges.overlap(first, stop) == len(wanted & model)
                if rng.random() < 0.5:
                    assert ranges.add(first, stop) == len(wanted - model)
                    model |= wanted
                else:
                    assert ranges.remove(first, stop) == len(wanted & model)
                    model -= wanted
                following = ranges.first_from(stop)
                assert following is None or following in model
                gaps = list(ranges.gaps(first, 3 * MANY))
                assert ranges.first_gap(first, 3 * MANY) == (gaps[0] if gaps else None)
                assert ranges.first_gap(first, stop) == next(iter(ranges.gaps(first, stop)), None)
            expected = as_ranges(model)
            assert list(ranges) == expected
            assert (len(ranges), ranges.count) == (len(expected), len(model))
            assert (ranges.first, ranges.stop) == (min(model), max(model) + 1)
            assert list(ranges.gaps(*places)) == as_ranges(set(range(*places)) - model)
            assert ranges.copy() == ranges == RangeSet.from_bytes(ranges.to_bytes())
            joined = RangeSet([(0, 10), (3 * MANY, 3 * MANY + 5)])
            joined.add_all(ranges)
            both = model | set(range(10)) | set(range(3 * MANY, 3 * MANY + 5))
            assert list(joined) == as_ranges(both)
            assert joined.count == len(both)
            joined.add_all(joined)
            assert joined.count == len(both)
            assert list(ranges) == as_ranges(model)
        for few_or_many in (100, MANY // 4):
            missing = set(rng.sample(range(3 * MANY), few_or_many))
            ranges.add_all((offset, offset + 1) for offset in missing)
            model |= missing
            assert list(ranges) == as_ranges(model)
    for offset in rng.sample(sorted(model), len(model)):
        assert ranges.remove(offset, offset + 1) == 1
    assert (len(ranges), ranges.count, list(ranges)) == (0, 0, [])
