"""Chores go on by turns, and none hurts another."""

import weakref
from itertools import count

from leveret.core.chores import SLICE_NS_MAX, Chores, at_once, drain
from leveret.core.turn import Turn


class Bench:
    def __init__(self, steps_in_a_slice=5):
        self.scheduled, self.reported, self.done = [], [], []
        looks = count(step=SLICE_NS_MAX // steps_in_a_slice)
        self.turn = Turn(self.scheduled.append, self.report, lambda: next(looks))
        self.chores = Chores(self.turn, self.report)

    def report(self, subject, error):
        self.reported.append(str(error))

    def chore(self, name, steps):
        for _ in range(steps):
            self.done.append(name)
            yield

    def run(self):
        turns = 0
        while self.scheduled:
            self.scheduled.pop()()
            turns += 1
        return turns


def test_a_short_chore_is_done_at_once():
    bench = Bench()
    bench.chores.begin(bench.chore("a", 3))
    assert bench.done == ["a"] * 3
    assert not bench.scheduled


def test_a_long_one_is_done_in_slices_and_others_have_their_share():
    bench = Bench()
    bench.chores.begin(bench.chore("a", 100))
    assert 0 < len(bench.done) < 10
    bench.chores.begin(bench.chore("b", 100))
    assert bench.run() > 10
    assert sorted(bench.done) == ["a"] * 100 + ["b"] * 100
    assert bench.done.index("b") < 10
    middle = bench.done[20:100]
    assert abs(middle.count("a") - middle.count("b")) < 10


def test_one_that_raises_is_reported_and_given_up():
    bench = Bench()

    def fail():
        yield
        raise KeyError("a bug")

    bench.chores.begin(fail())
    bench.chores.begin(bench.chore("a", 30))
    bench.run()
    assert bench.reported == ["'a bug'"]
    assert bench.done == ["a"] * 30


def test_one_that_is_closed_meanwhile_is_done():
    bench = Bench()
    chore = bench.chore("a", 1000)
    bench.chores.begin(chore)
    chore.close()
    bench.run()
    assert len(bench.done) < 10


def test_where_there_are_no_turns_all_is_done_at_once():
    bench = Bench()
    at_once(bench.chore("a", 100))
    assert len(bench.done) == 100


class Thing:
    pass


def test_drained_items_go_one_by_one():
    things = [Thing() for _ in range(3)]
    known = weakref.WeakSet(things)
    drained = drain(things)
    del things
    left = []
    for thing in drained:
        del thing
        left.append(len(known))
    assert left == [2, 1, 0]


def test_what_comes_meanwhile_is_not_drained():
    things = {1: "a"}
    drained = drain(things.values())
    things[2] = "b"
    assert list(drained) == ["a"]


def test_one_that_another_begins_waits_for_that_to_pause():
    bench = Bench()

    def begins_another():
        bench.chores.begin(bench.chore("inner", 2))
        assert not bench.done
        yield
        bench.done.append("outer")

    bench.chores.begin(begins_another())
    bench.run()
    assert sorted(bench.done) == ["inner", "inner", "outer"]
    assert not bench.reported
