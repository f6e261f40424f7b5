"""Leases by their numbers, against a model that knows the number of each offset."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leveret.features.batch_leases.lease_book import LeaseBook
from leveret.features.batch_leases.rules import LeaseRefusedError
from leveret.ports.ranges import RangeSet

NUMBERS = st.integers(0, 6)
PARTITIONS = st.integers(0, 1)
OFFSETS = st.integers(0, 30)


class BookModel(RuleBasedStateMachine):
    """`leased` has the number of each (partition, offset) that is leased."""

    def __init__(self):
        super().__init__()
        self.book = LeaseBook()
        self.leased = {}
        self.settled = -1

    @rule(number=NUMBERS, partition=PARTITIONS, first=OFFSETS, count=st.integers(1, 9))
    def lease(self, number, partition, first, count):
        wanted = RangeSet([(first, first + count)])
        free = self.book.unknown(partition, wanted)
        expected = [at for at in range(first, first + count) if (partition, at) not in self.leased]
        assert [at for low, high in free for at in range(low, high)] == expected
        if number <= self.settled:
            with pytest.raises(LeaseRefusedError):
                self.book.open(number)
            return
        self.book.open(number).add(partition, free)
        self.leased |= {(partition, at): number for at in expected}

    @rule(number=NUMBERS)
    def settle(self, number):
        self.took(self.book.settle(number), lambda of: of <= number)
        self.settled = max(self.settled, number)

    @rule()
    def clear(self):
        self.took(self.book.clear(), lambda _: True)
        assert len(self.book) == 0

    def took(self, parts, is_taken):
        taken = {
            (partition, at)
            for partition, ranges in parts.items()
            for first, stop in ranges
            for at in range(first, stop)
        }
        assert taken == {place for place, number in self.leased.items() if is_taken(number)}
        self.leased = {place: of for place, of in self.leased.items() if place not in taken}

    @invariant()
    def each_lease_has_its_offsets(self):
        assert self.book.count == len(self.leased)
        assert self.book.settled == self.settled
        for lease in self.book:
            has = {
                (partition, at)
                for partition, ranges in lease.parts.items()
                for first, stop in ranges
                for at in range(first, stop)
            }
            assert has == {place for place, of in self.leased.items() if of == lease.number}
            assert lease.count == len(has)


TestBook = BookModel.TestCase


def test_a_lease_is_found_until_it_is_settled():
    book = LeaseBook()
    assert book.find(3) is None
    lease = book.open(3)
    assert book.find(3) is book.open(3) is lease
    lease.size = 7
    assert (book.size, list(lease.part(9))) == (7, [])
    book.settle(3)
    with pytest.raises(LeaseRefusedError) as caught:
        book.find(3)
    assert caught.value.code == "settled"


def test_what_is_shown_can_be_read_beside_what_is_leased():
    lease = LeaseBook().open(1)
    lease.add(0, [(0, 2)])
    lease.show({0: RangeSet([(0, 6)])}, {0: RangeSet([(0, 5)])})
    assert (list(lease.readable(0)), lease.count) == ([(0, 5)], 2)
    lease.show({0: RangeSet([(3, 6)])}, {})
    assert list(lease.readable(0)) == [(0, 3)]
    assert list(lease.readable(1)) == []
