"""Outstanding deliveries against the plainest model there is: a dictionary of tags."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp.unacked import ENDED_RUNS_MAX, Unacked

HOLDERS = ("first", "second", "third")
spans = st.tuples(st.integers(0, 45), st.integers(0, 12)).map(lambda span: (span[0], sum(span)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6), st.integers(0, 50), st.sampled_from(HOLDERS)),
        st.tuples(st.just("take"), spans),
        st.tuples(st.just("take up to"), st.integers(0, 60) | st.just(2**64 - 1)),
        st.tuples(st.just("end"), spans),
        st.tuples(st.just("put aside"), spans),
        st.tuples(st.just("put back")),
    ),
    max_size=40,
)


class Model:
    """Tag -> (holder, offset)."""

    def __init__(self):
        self.held = {}
        self.ended = set()
        self.next_tag = 1

    def add(self, count, offset, holder):
        for step in range(count):
            self.held[self.next_tag + step] = (holder, offset + step)
        self.next_tag += count

    def take(self, first, last):
        taken = []
        for tag in range(first, last + 1):
            if tag in self.held:
                taken.append(self.held.pop(tag))
            elif tag not in self.ended:
                return taken, tag
        return taken, None

    def take_up_to(self, last):
        return self.take_where(lambda tag, _: tag <= last)

    def end(self, first, last):
        self.ended |= {tag for tag in self.held if first <= tag <= last}
        return self.take_where(lambda tag, _: first <= tag <= last)

    def take_where(self, wanted):
        return [self.held.pop(tag) for tag in sorted(self.held) if wanted(tag, self.held[tag])]


def one_by_one(runs):
    return [(holder, offset) for holder, first, stop in runs for offset in range(first, stop)]


def put_back(unacked, aside):
    tag, runs = aside
    for holder, first, stop in runs:
        unacked.restore(tag, stop - first, first, holder)
        tag += stop - first


def numbers(runs):
    return [tag for first, last in runs for tag in range(first, last + 1)]


@given(steps)
def test_any_sequence_leaves_what_a_dictionary_would(sequence):
    unacked, model = Unacked(), Model()
    aside, kept = [], []
    for name, *arguments in sequence:
        if name == "add":
            count, offset, holder = arguments
            unacked.add(model.next_tag, count, offset, holder)
            model.add(count, offset, holder)
        elif name == "take":
            unknown = unacked.first_unknown(*arguments[0])
            taken, missing = unacked.take(*arguments[0])
            assert unknown == missing
            assert (one_by_one(taken), missing) == model.take(*arguments[0])
        elif name == "end":
            assert one_by_one(unacked.end(*arguments[0])) == model.end(*arguments[0])
        elif name == "put aside":
            first, last = arguments[0]
            runs = unacked.outstanding(last, first)
            aside.append([(run[0], unacked.take(*run)[0]) for run in runs])
            kept.append({tag: model.held.pop(tag) for tag in numbers(runs)})
        elif name == "put back":
            for part in aside.pop() if aside else ():
                put_back(unacked, part)
            model.held.update(kept.pop() if kept else ())
        else:
            taken = unacked.take_up_to(arguments[0])
            assert one_by_one(taken) == model.take_up_to(*arguments)
        assert unacked.count == len(unacked) == len(model.held)
        assert numbers(unacked.outstanding(20)) == [tag for tag in sorted(model.held) if tag <= 20]
        assert [tag for tag in range(70) if unacked.is_outstanding(tag)] == [
            tag for tag in range(70) if tag in model.held or tag in model.ended
        ]
        assert {
            tag: holder for low, high, holder in unacked.runs() for tag in range(low, high + 1)
        } == {tag: holder for tag, (holder, _) in model.held.items()}
        for holder in (*HOLDERS, "nobody"):
            assert numbers(unacked.held_in(holder, 3, 30)) == [
                tag for tag in range(3, 31) if unacked.holder_of(tag) == holder
            ]


def test_every_second_tag_can_go_first():
    unacked = Unacked()
    unacked.add(1, 1000, 0, "one")
    for tag in range(2, 1001, 2):
        assert unacked.take(tag, tag) == ([("one", tag - 1, tag)], None)
    assert one_by_one(unacked.take_up_to(2**64 - 1)) == [("one", tag) for tag in range(0, 1000, 2)]
    assert unacked.count == 0


def test_of_many_ended_leases_the_oldest_are_remembered_roughly():
    unacked = Unacked()
    unacked.add(1, 4 * ENDED_RUNS_MAX, 0, "one")
    for tag in range(1, 4 * ENDED_RUNS_MAX, 2):
        unacked.end(tag, tag)
    assert unacked.take(1, 1) == ([], None)
    assert unacked.is_outstanding(4 * ENDED_RUNS_MAX - 1)
    assert unacked.count == 2 * ENDED_RUNS_MAX


def test_the_last_tag_there_is_can_be_named():
    unacked = Unacked()
    unacked.add(1, 2, 0, "one")
    assert unacked.take(2**64 - 1, 2**64 - 1) == ([], 2**64 - 1)
    assert unacked.take(1, 2**64 - 1) == ([("one", 0, 2)], 3)


@pytest.mark.parametrize("seed", range(20))
def test_thousands_of_holes_from_either_end(seed):
    """Cases too long for Hypothesis: splits near both ends while more is delivered."""
    rng = random.Random(seed)
    unacked, model = Unacked(), Model()
    for low, high in ((0, 0.1), (0.9, 1), (0, 1), (0.4, 0.6)):
        for _ in range(600):
            if rng.random() < 0.3:
                run = (rng.randrange(1, 4), rng.randrange(10**6), rng.choice(HOLDERS))
                unacked.add(model.next_tag, *run)
                model.add(*run)
            tag = 1 + int(rng.uniform(low, high) * model.next_tag)
            taken, unknown = unacked.take(tag, tag)
            expected, expected_unknown = model.take(tag, tag)
            assert (one_by_one(taken), unknown) == (expected, expected_unknown)
        assert unacked.count == len(model.held)
    assert one_by_one(unacked.take_up_to(2**64 - 1)) == model.take_up_to(2**64 - 1)


def test_runs_stand_for_tags_that_follow_each_other():
    unacked = Unacked()
    unacked.add_runs(4, [(10, 12), (20, 21), (21, 22)], "first")
    assert unacked.count == 4
    assert unacked.take(4, 7) == ([("first", 10, 12), ("first", 20, 22)], None)


def test_who_has_a_record_is_found_by_its_offset():
    """Also where consumers of another queue have the same offsets."""
    unacked = Unacked()
    unacked.add(1, 3, 10, "a")
    unacked.add(4, 2, 11, "b")
    unacked.take(2, 2)
    assert unacked.holder_at({"a"}, 12) == (3, "a")
    assert unacked.holder_at({"b"}, 12) == (5, "b")
    assert unacked.holder_at({"a"}, 11) is None
    assert unacked.holder_at({"b"}, 13) is None
    assert unacked.holder_at(set(), 10) is None


MANY = 40_000  # deliveries: acknowledged at random they are far more entries than one array keeps


@pytest.mark.parametrize("seed", range(2))
def test_many_entries_are_settled_anywhere(seed):
    rng = random.Random(seed)
    unacked, model = Unacked(), Model()
    while model.next_tag < MANY:
        count = rng.randrange(1, 2000)
        holder, offset = rng.choice(HOLDERS), rng.randrange(10**6)
        unacked.add(model.next_tag, count, offset, holder)
        model.add(count, offset, holder)
    tags = rng.sample(range(1, MANY), MANY // 3)
    aside = []
    for number, tag in enumerate(tags):
        if tag not in model.held:
            continue
        last = min(tag + rng.choice((0, 0, 0, 1)), MANY - 1)
        if number % 100 == 0 and model.held.keys() >= set(range(tag, last + 1)):
            aside.append({one: model.held[one] for one in range(tag, last + 1)})
        taken, missing = unacked.take(tag, last)
        assert (one_by_one(taken), missing) == model.take(tag, last)
        if number % 1000 == 1 and aside:
            held = aside.pop()
            for again, (holder, offset) in held.items():
                unacked.restore(again, 1, offset, holder)
                assert unacked.holder_of(again) == holder
            model.held.update(held)
    assert unacked.held_bytes > 4096 * 32  # it is in blocks
    assert unacked.count == len(model.held)
    assert numbers(unacked.outstanding(MANY * 2)) == sorted(model.held)
    while model.held:
        last = min(model.held) + 1000
        taken = []
        while some := unacked.take_up_to(last, 100):
            taken += one_by_one(some)
        assert taken == model.take_up_to(last)
        assert unacked.oldest() is None or unacked.oldest()[0] == min(model.held)
    assert (len(unacked), unacked.runs()) == (0, [])
