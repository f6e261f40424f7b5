"""The ledger of priorities, against a model that keeps a list of every offset."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.core.ledgers.priorities import PriorityLedger
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder
from tests.support.examples import examples
from tests.support.queue_bench import content_header

PRIORITIES = st.one_of(st.none(), st.integers(0, 3), st.sampled_from([9, 255]))


def batch_of(base_offset, priorities):
    builder = BatchBuilder()
    for priority in priorities:
        properties = {} if priority is None else {"priority": priority}
        flags, header = content_header(1, **properties)
        builder.add(flags, 0, b"", b"q", header, b"x")
    return builder.seal(base_offset)


def learned(ledger, priorities):
    ledger.index(batch_of(ledger.committed, priorities))
    ledger.commit(ledger.committed + len(priorities))


def delivered(ledger):
    order = []
    while ledger.ready_count:
        first, stop, redelivered = ledger.peek(100)
        ledger.lease(first, stop)
        order += [(offset, redelivered) for offset in range(first, stop)]
    return order


def offsets(*numbers, redelivered=False):
    return [(number, redelivered) for number in numbers]


def test_higher_ones_come_first_and_equal_ones_in_order():
    ledger = PriorityLedger(0, 0, RangeSet(), 0, 5)
    learned(ledger, [None, 1, 5, 3, 9, 0, 1])
    assert delivered(ledger) == offsets(2, 4, 3, 1, 6, 0, 5)


def test_what_comes_back_has_its_old_place():
    ledger = PriorityLedger(0, 0, RangeSet())
    learned(ledger, [1, 2, 1, 2])
    delivered(ledger)
    ledger.return_([(3, 4), (0, 2)])
    learned(ledger, [2, 3])
    assert delivered(ledger) == [
        (5, False),
        *offsets(1, 3, redelivered=True),
        (4, False),
        (0, True),
    ]


@pytest.mark.covers("B-146")
def test_what_comes_back_is_first_where_that_is_the_order():
    ledger = PriorityLedger(0, 0, RangeSet(), 0, 31, 4, True)
    learned(ledger, [None, 9, 2])
    assert delivered(ledger) == offsets(1, 0, 2)
    ledger.return_([(2, 3)])
    ledger.return_([(0, 2)])
    learned(ledger, [31])
    assert delivered(ledger) == [*offsets(2, 0, 1, redelivered=True), (3, False)]


def test_what_an_earlier_run_left_is_ready_when_it_was_learned():
    ledger = PriorityLedger(0, 6, RangeSet([(1, 2), (4, 5)]), 3)
    assert ledger.ready_count == 0
    ledger.index(batch_of(6, [7, 7]))  # what comes meanwhile does not wait to be learned
    ledger.index(batch_of(0, [0, 5, 1]))
    ledger.commit(3)
    ledger.index(batch_of(3, [1, 5, None]))
    ledger.commit(8)
    assert delivered(ledger) == [
        *offsets(6, 7),
        (2, True),
        (3, False),
        (0, True),
        (5, False),
    ]


class LedgerAgainstLists(RuleBasedStateMachine):
    """`ready` is in order of delivery; `leased` and `settled` are sets."""

    @initialize(
        returns_first=st.booleans(), otherwise=st.sampled_from([0, 2]), highest=st.integers(2, 9)
    )
    def open(self, returns_first, otherwise, highest):
        self.ledger = PriorityLedger(0, 0, RangeSet(), 0, highest, otherwise, returns_first)
        self.returns_first, self.otherwise, self.highest = returns_first, otherwise, highest
        self.priorities = []
        self.committed = 0
        self.fresh, self.returns = set(), []
        self.leased, self.redelivered = set(), set()

    def order(self):
        fresh = sorted(self.fresh, key=lambda offset: (-self.priorities[offset], offset))
        return self.returns + fresh

    @rule(priorities=st.lists(PRIORITIES, min_size=1, max_size=12), known=st.booleans())
    def append(self, priorities, known):
        if known:
            self.ledger.index(batch_of(len(self.priorities), priorities))
        self.priorities += [
            self.otherwise if p is None or not known else min(p, self.highest) for p in priorities
        ]

    @rule(share=st.integers(0, 4))
    def commit(self, share):
        stop = self.committed + (len(self.priorities) - self.committed) * share // 4
        self.ledger.commit(stop)
        self.fresh |= set(range(self.committed, stop))
        self.committed = stop

    @rule()
    def lose_uncommitted(self):
        del self.priorities[self.committed :]
        self.ledger.truncate(self.committed)

    @precondition(lambda self: self.order())
    @rule(limit=st.integers(1, 6))
    def deliver(self, limit):
        first, stop, redelivered = self.ledger.peek(limit)
        run = list(range(first, stop))
        assert 0 < len(run) <= limit
        assert self.order()[: len(run)] == run
        assert [offset in self.redelivered for offset in run] == [redelivered] * len(run)
        self.ledger.lease(first, stop)
        self.take(run)

    @precondition(lambda self: self.order())
    @rule(limit=st.integers(1, 8), reach=st.integers(1, 40))
    def deliver_runs(self, limit, reach):
        end = self.ledger.peek(1)[0] + reach
        runs, redelivered = self.ledger.peek_runs(limit, end)
        sent = [offset for first, stop in runs for offset in range(first, stop)]
        order = self.order()
        assert 0 < len(sent) <= limit
        assert order[: len(sent)] == sent
        assert max(sent) < end
        assert [offset in self.redelivered for offset in sent] == [redelivered] * len(sent)
        if not self.returns and len(sent) < min(limit, len(order)):
            another = order[len(sent)]  # why it is not one of them
            assert (
                another >= end
                or self.priorities[another] != self.priorities[sent[0]]
                or (another in self.redelivered) != redelivered
            )
        for first, stop in runs:
            self.ledger.lease(first, stop)
        self.take(sent)

    def take(self, offsets):
        self.leased |= set(offsets)
        self.redelivered |= set(offsets)
        self.leave(offsets)

    def leave(self, offsets):
        self.fresh -= set(offsets)
        self.returns = [offset for offset in self.returns if offset not in offsets]

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), settles=st.booleans())
    def end_leases(self, data, settles):
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.leased)), min_size=1))
        ranges = list(RangeSet((offset, offset + 1) for offset in chosen))
        self.leased -= chosen
        if settles:
            assert self.ledger.settle(ranges) == len(chosen)
            return
        self.ledger.return_(ranges)
        self.redelivered |= chosen
        if self.returns_first:
            self.returns += sorted(chosen)
        else:
            self.fresh |= chosen

    @rule(first=st.integers(0, 40), length=st.integers(0, 10), how=st.sampled_from("wl"))
    def out_of_turn(self, first, length, how):
        wanted = set(range(first, first + length))
        mine = wanted & set(self.order())
        act = self.ledger.withdraw if how == "w" else self.ledger.lose
        taken = act([(first, first + length)] if length else [])
        assert {o for low, high in taken for o in range(low, high)} == mine
        self.leave(mine)
        if how == "w":
            self.ledger.settle(taken)

    @rule()
    def purge(self):
        assert sum(stop - first for first, stop in self.ledger.purge()) == len(self.order())
        self.leave(self.order())

    @invariant()
    def counts(self):
        if hasattr(self, "ledger"):
            order = self.order()
            assert self.ledger.ready_count == len(order)
            assert self.ledger.leased_count == len(self.leased)
            assert self.ledger.first_ready == min(order, default=None)
            following = [
                o for first, stop in self.ledger.next_ranges(5) for o in range(first, stop)
            ]
            assert following == order[:5]
            assert set(order) | self.leased == {
                o for first, stop in self.ledger.unsettled() for o in range(first, stop)
            }
            assert sorted(order) == sorted(
                o for first, stop in self.ledger.ready_in(0, 10**6) for o in range(first, stop)
            )
            assert sorted(self.leased) == sorted(
                o for first, stop in self.ledger.leased_in(0, 10**6) for o in range(first, stop)
            )


TestLedgerAgainstLists = LedgerAgainstLists.TestCase
TestLedgerAgainstLists.settings = settings(max_examples=examples(150), stateful_step_count=40)
