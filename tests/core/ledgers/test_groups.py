"""The ledger of groups against a model that looks at every message."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.core.ledgers.groups import GroupLedger, check_group_of
from leveret.errors import ChannelError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.ports.tables import encode_table
from tests.support.examples import examples


def batch_of(groups, base=0):
    """A batch of messages with these groups; None: without one."""
    builder = BatchBuilder()
    for group in groups:
        headers = {"other": 7} if group is None else {"other": 7, "x-message-group": group}
        content = header.ContentHeader(0, 1, commands.Basic.Properties(headers=headers))
        flags = RecordFlag.HAS_HEADERS | (0 if group is None else RecordFlag.HAS_GROUP)
        builder.add(flags, 1, b"", b"q", content.marshal(), b"b")
    return builder.seal(base)


def ledger_of(*groups):
    ledger = GroupLedger(0, 0, RangeSet())
    add(ledger, groups)
    return ledger


def add(ledger, groups):
    if groups:
        ledger.index(batch_of(groups, ledger.committed))
        ledger.commit(ledger.committed + len(groups))


def serve(ledger, limit=1):
    """Lease what is offered next: its offsets, or none."""
    if not ledger.is_open:
        return []
    first, stop, _ = ledger.peek(limit)
    assert first < stop <= first + limit
    ledger.lease(first, stop)
    return list(range(first, stop))


def served(ledger, count=10**6, *, settling=True):
    """Return what one consumer gets that settles each message before the next."""
    got = []
    while len(got) < count and (offsets := serve(ledger)):
        got += offsets
        if settling:
            ledger.settle([(offsets[0], offsets[0] + 1)])
    return got


@pytest.mark.covers("C-211")
def test_one_of_a_group_at_a_time():
    ledger = ledger_of("a", "a", "b", "a", "b")
    assert served(ledger, settling=False) == [0, 2]
    assert (ledger.ready_count, ledger.leased_count, ledger.is_open) == (3, 2, False)
    ledger.settle([(2, 3)])
    assert served(ledger, settling=False) == [4]
    ledger.settle([(0, 1)])
    assert served(ledger) == [1, 3]


@pytest.mark.covers("C-211")
def test_groups_take_turns_however_many_messages_they_have():
    ledger = ledger_of(*["big"] * 10, "x", "y", *["big"] * 3, "x")
    assert served(ledger) == [0, 10, 11, 1, 15, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14]


def test_neighbours_of_different_groups_are_one_run():
    ledger = ledger_of("a", "b", "c", "d", "a")
    assert serve(ledger, 100) == [0, 1, 2, 3]
    assert not ledger.is_open
    ledger.settle([(0, 4)])
    assert serve(ledger, 100) == [4]


def test_what_has_no_group_is_free():
    ledger = ledger_of(*[None] * 5)
    assert serve(ledger, 3) == [0, 1, 2]
    assert serve(ledger, 3) == [3, 4]


def test_what_has_no_group_gets_as_much_as_all_groups_together():
    ledger = ledger_of(*[None] * 100, *"abcd" * 10)
    got = served(ledger, 41)
    assert sum(offset < 100 for offset in got) in range(16, 25)


def test_a_returned_message_is_the_first_of_its_group_again():
    ledger = ledger_of("a", "a", "b")
    assert serve(ledger) == [0]
    ledger.return_([(0, 1)])
    assert ledger.peek(1) == (2, 3, False)  # the others have their turn
    assert serve(ledger) == [2]
    assert ledger.peek(1) == (0, 1, True)
    assert served(ledger) == [0, 1]


def test_what_is_withdrawn_holds_its_group_up_until_it_is_settled():
    ledger = ledger_of("a", "a", "a")
    assert ledger.withdraw([(0, 1), (2, 3)]) == [(0, 1), (2, 3)]
    assert not ledger.is_open
    ledger.settle([(0, 1)])
    assert served(ledger) == [1]
    ledger.return_([(2, 3)])
    assert served(ledger) == [2]
    assert ledger.group_count == 0


def test_what_is_lost_or_purged_holds_nothing_up():
    ledger = ledger_of("a", "a", "b", None)
    assert serve(ledger) == [0]
    assert ledger.lose([(1, 3)]) == [(1, 3)]
    assert served(ledger) == [3]
    add(ledger, ["a", None, "c"])
    assert ledger.purge() == [(4, 5), (5, 6), (6, 7)]
    ledger.settle([(0, 1)])
    assert (ledger.ready_count, ledger.leased_count, ledger.is_open) == (0, 0, False)
    assert ledger.node_count == 0


def test_the_oldest_go_first_when_there_is_no_room():
    ledger = ledger_of("a", "a", None, "b", None)
    serve(ledger)
    assert ledger.next_ranges(3) == [(1, 2), (2, 3), (3, 4)]
    assert ledger.next_ranges(99) == [(1, 2), (2, 3), (3, 4), (4, 5)]


def test_places_of_what_was_dropped_are_given_back():
    ledger = ledger_of("a")
    serve(ledger)
    for _ in range(100):
        add(ledger, ["a"] * 100)
        for first, stop in ledger.withdraw(ledger.next_ranges(100)):
            ledger.settle([(first, stop)])
    assert ledger.node_count < 1200


def test_an_earlier_run_is_learned_batch_by_batch():
    settled = RangeSet([(0, 1), (3, 4)])
    ledger = GroupLedger(0, 6, settled, 3)
    assert ledger.ready_count == 0
    new = batch_of(["a", "b"], 6)
    ledger.index(new)
    ledger.index(batch_of(["a", "a", "b"], 0))
    ledger.commit(3)
    ledger.index(batch_of([None, "a", "b"], 3))
    ledger.commit(6)
    ledger.commit(8)
    assert list(ledger.unsettled()) == [(1, 3), (4, 8)]
    assert ledger.peek(1) == (1, 2, True)
    assert served(ledger) == [1, 2, 4, 5, 6, 7]


def test_lost_records_are_forgotten():
    ledger = ledger_of("a")
    ledger.index(batch_of(["b", "b"], 1))
    ledger.truncate(1)
    add(ledger, [None, None])
    assert sorted(served(ledger, settling=False)) == [0, 1, 2]


def test_a_million_messages_cost_what_is_promised():
    """Twelve bytes each, and the ranges of what was taken from the middle."""
    ledger = GroupLedger(0, 0, RangeSet())
    for _ in range(100):
        add(ledger, [f"g{number % 50}" for number in range(1000)])
    assert (ledger.node_count, ledger.group_count) == (100_000, 50)
    assert len(served(ledger)) == 100_000
    assert (ledger.node_count, ledger.group_count) == (0, 0)


class Model:
    """Every message by itself: (group, offset) in lists, nothing clever."""

    def __init__(self):
        self.groups = {}  # offset -> group
        self.ready, self.leased = set(), set()
        self.withdrawn = set()  # of what is leased: it is with nobody

    def _others(self, offset):
        group = self.groups[offset]
        if group is None:
            return []
        held = self.ready | self.leased
        return [other for other in held if self.groups[other] == group and other != offset]

    def is_blocked(self, offset):
        """Whether it must not be delivered now: another of its group is out, or comes first."""
        delivered = self.leased - self.withdrawn
        return any(other in delivered or other < offset for other in self._others(offset))

    def is_due(self, offset):
        """Whether it must be offered some time if nothing else happens."""
        others = self._others(offset)
        return not any(other in self.leased or other < offset for other in others)


GROUPS = [None, "a", "b", "c", "d"]
moves = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from(GROUPS), max_size=8)),
    st.tuples(st.just("serve"), st.integers(1, 5), st.integers(0, 100)),
    st.tuples(st.just("settle"), st.integers(0, 100), st.integers(1, 3)),
    st.tuples(st.just("give_back"), st.integers(0, 100), st.integers(1, 3)),
    st.tuples(st.just("withdraw"), st.integers(0, 40), st.integers(1, 10)),
    st.tuples(st.just("lose"), st.integers(0, 40), st.integers(1, 4)),
    st.tuples(st.just("purge")),
)


def runs_of(offsets):
    return list(RangeSet((offset, offset + 1) for offset in offsets))


class Play:
    """The ledger and the model hear the same."""

    def __init__(self, sequence):
        self.ledger, self.model = GroupLedger(0, 0, RangeSet()), Model()
        for name, *arguments in sequence:
            getattr(self, name)(*arguments)
            self.agree()

    def agree(self):
        ledger, model = self.ledger, self.model
        assert ledger.ready_count == len(model.ready)
        assert ledger.leased_count == len(model.leased)
        assert list(ledger.unsettled()) == runs_of(model.ready | model.leased)
        assert ledger.first_ready == min(model.ready, default=None)

    def add(self, groups):
        first = self.ledger.committed
        add(self.ledger, groups)
        self.model.groups.update(enumerate(groups, first))
        self.model.ready |= set(range(first, first + len(groups)))

    def serve(self, limit, part):
        ledger, model = self.ledger, self.model
        if any(model.is_due(offset) for offset in model.ready):
            assert ledger.is_open, "what can be delivered is offered"
        if not ledger.is_open:
            return
        first, stop, _ = ledger.peek(limit)
        stop = min(stop, first + 1 + part % limit)
        offsets = set(range(first, stop))
        assert not any(model.is_blocked(offset) for offset in offsets)
        ledger.lease(first, stop)
        grouped = [model.groups[offset] for offset in offsets if model.groups[offset] is not None]
        assert len(grouped) == len(set(grouped)), "one of a group"
        model.ready -= offsets
        model.leased |= offsets

    def _choose(self, index, count):
        """Some of what is leased, which is so no more."""
        held = sorted(self.model.leased)
        index = index % len(held) if held else 0
        chosen = set(held[index : index + count])
        self.model.leased -= chosen
        self.model.withdrawn -= chosen
        return chosen

    def settle(self, index, count):
        chosen = self._choose(index, count)
        assert self.ledger.settle(runs_of(chosen)) == len(chosen)

    def give_back(self, index, count):
        chosen = self._choose(index, count)
        self.ledger.return_(runs_of(chosen))
        self.model.ready |= chosen

    def _take(self, taken, first, count):
        chosen = {offset for offset in self.model.ready if first <= offset < first + count}
        assert taken == sorted(taken)
        assert {offset for low, high in taken for offset in range(low, high)} == chosen
        self.model.ready -= chosen
        return chosen

    def withdraw(self, first, count):
        chosen = self._take(self.ledger.withdraw([(first, first + count)]), first, count)
        self.model.leased |= chosen
        self.model.withdrawn |= chosen

    def lose(self, first, count):
        self._take(self.ledger.lose([(first, first + count)]), first, count)

    def purge(self):
        assert runs_of(self.model.ready) == list(RangeSet(self.ledger.purge()))
        self.model.ready.clear()


@settings(max_examples=examples(400))
@given(st.lists(moves, max_size=60))
def test_never_two_of_a_group_nothing_lost_and_nothing_out_of_order(sequence):
    play = Play(sequence)
    ledger, model = play.ledger, play.model
    # In the end everything comes out, each group in its order.
    if model.leased:
        ledger.return_(runs_of(model.leased))
    got = served(ledger)
    assert sorted(got) == sorted(model.ready | model.leased)
    for group in GROUPS[1:]:
        of_group = [offset for offset in got if model.groups[offset] == group]
        assert of_group == sorted(of_group)
    assert (ledger.node_count, ledger.group_count, ledger.is_open) == (0, 0, False)


@pytest.mark.parametrize("seed", range(10))
def test_long_lives(seed):
    """Cases too long for Hypothesis: thousands of messages, and memory used again."""
    rng = random.Random(seed)
    sequence = []
    for _ in range(400):
        sequence += [
            ("add", rng.choices([None, *"abcdefghijk"], k=rng.randrange(8))),
            ("serve", rng.randrange(1, 6), rng.randrange(100)),
            ("serve", rng.randrange(1, 6), rng.randrange(100)),
            ("settle", rng.randrange(100), rng.randrange(1, 6)),
            ("give_back", rng.randrange(100), 1),
        ]
        if rng.random() < 0.05:
            sequence += [("withdraw", rng.randrange(500), rng.randrange(1, 50))]
        if rng.random() < 0.02:
            sequence += [("purge",)]
    play = Play(sequence)
    ledger, model = play.ledger, play.model
    if model.leased:
        ledger.settle(runs_of(model.leased))
    assert sorted(served(ledger)) == sorted(model.ready)


@pytest.mark.covers("C-211")
@given(st.lists(st.integers(1, 30), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_nobody_waits_longer_than_one_turn_of_each_other(sizes, rng):
    """Between two messages of a group with more to come, every other group has at most one turn."""
    names = [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]
    rng.shuffle(names)
    ledger = ledger_of(*names)
    turns = [names[offset] for offset in served(ledger)]
    for name in set(names):
        places = [place for place, turn in enumerate(turns) if turn == name]
        for before, after in pairwise(places):
            between = turns[before + 1 : after]
            assert len(between) == len(set(between))


# -- the header


@pytest.mark.parametrize("group", ["", "a", "g" * 255])
def test_groups_that_may_be(group):
    check_group_of(encode_table({"x-message-group": group})[4:])


@pytest.mark.parametrize("group", [7, True, None, ["a"], {"a": 1}, "g" * 256])
def test_groups_that_may_not_be(group):
    with pytest.raises(ChannelError, match="invalid header 'x-message-group'"):
        check_group_of(encode_table({"before": 1, "x-message-group": group})[4:])


def test_no_group_is_no_mistake():
    check_group_of(b"")
    check_group_of(encode_table({"other": 1})[4:])
