import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.timers import SLEEP_MS_MAX, WAKE_SECONDS_MAX, Timers
from tests.support.clock import FakeClock


class Bench:
    def __init__(self):
        self.clock = FakeClock(1000)
        self.timers = Timers(self.clock.wall_ms, self.clock.call_later, self.clock.seconds)
        self.called = []

    def timer(self, name):
        return self.timers.timer(lambda: self.called.append((name, self.clock.now)))


def test_each_is_called_once_at_its_time():
    bench = Bench()
    for name, due in [("b", 1200), ("a", 1100), ("past", 10)]:
        bench.timer(name).set(due)
    bench.clock.advance(1000)
    assert bench.called == [("past", 1000), ("a", 1100), ("b", 1200)]


def test_the_last_word_counts():
    bench = Bench()
    moved, taken_back = bench.timer("moved"), bench.timer("taken back")
    moved.set(1100)
    taken_back.set(1100)
    moved.set(1050)
    moved.set(1300)
    taken_back.set(None)
    bench.clock.advance(1000)
    assert bench.called == [("moved", 1300)]


def test_a_timer_may_be_set_when_it_is_called():
    bench = Bench()
    timer = bench.timers.timer(lambda: timer.set(bench.clock.now + 10))
    timer.set(1010)
    bench.clock.advance(35)
    assert timer.due_ms == 1040


def test_a_clock_that_is_set_is_noticed():
    bench = Bench()
    bench.timer("a").set(1000 + 10 * SLEEP_MS_MAX)
    bench.clock.now += 10 * SLEEP_MS_MAX
    bench.clock.advance(SLEEP_MS_MAX)
    assert [name for name, _ in bench.called] == ["a"]
    bench.timer("b").set(bench.clock.now + 100)
    bench.clock.now -= 1000
    bench.clock.advance(1099)
    assert len(bench.called) == 1
    bench.clock.advance(1)
    assert len(bench.called) == 2


@pytest.mark.parametrize("jump_ms", [30_000, 61_000, 80 * 365 * 86_400_000])
def test_a_timer_set_after_the_clock_went_forward_is_not_late(jump_ms):
    bench = Bench()
    bench.timer("before").set(bench.clock.now + SLEEP_MS_MAX)
    bench.clock.now += jump_ms
    due = bench.clock.now + SLEEP_MS_MAX // 2 + 1000
    bench.timer("after").set(due)
    bench.clock.advance(SLEEP_MS_MAX)
    assert ("after", due) in bench.called


def test_a_timer_set_while_the_loop_is_late_is_called_in_its_order():
    bench = Bench()
    bench.timer("a").set(bench.clock.now + 10)
    bench.clock.monotonic += 50  # nothing was called meanwhile
    bench.clock.now += 50
    bench.timer("b").set(bench.clock.now - 45)
    bench.clock.advance(0)
    assert [name for name, _ in bench.called] == ["b", "a"]


def test_timers_that_are_set_again_and_again_do_not_pile_up():
    bench = Bench()
    timer = bench.timer("a")
    for number in range(10_000):
        timer.set(2000 + number)
    assert len(bench.timers._heap) < 100
    assert len(bench.clock.calls) - sum(call.cancelled for call in bench.clock.calls) == 1


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 300), st.integers(0, 50))))
def test_none_is_forgotten_and_none_comes_early(steps):
    bench = Bench()
    timers = [bench.timer(number) for number in range(5)]
    due, wanted = {}, []
    for number, delay, pause in steps:
        due[number] = None if delay is None else bench.clock.now + delay
        timers[number].set(due[number])
        end = bench.clock.now + pause
        bench.clock.advance(pause)
        for other, at in list(due.items()):
            if at is not None and at <= end:
                wanted.append((other, at))
                due[other] = None
    assert sorted(bench.called) == sorted(wanted)


def test_nobody_is_called_any_more_once_they_are_closed():
    bench = Bench()
    first, other = bench.timer("a"), bench.timer("b")
    first.set(bench.clock.now + 10)
    bench.timers.close()
    other.set(bench.clock.now + 5)
    bench.clock.advance(100_000)
    assert bench.called == []
    assert all(call.cancelled for call in bench.clock.calls)


def test_a_callback_that_raises_stops_no_other():
    bench = Bench()

    def fail():
        raise KeyError("a bug")

    bench.timers.timer(fail).set(1100)
    bench.timer("same").set(1100)
    bench.timer("later").set(1200)
    with pytest.raises(KeyError):
        bench.clock.advance(100)
    bench.clock.advance(100)
    assert bench.called == [("same", 1100), ("later", 1200)]


def test_many_that_are_due_at_one_moment_let_others_in_between():
    bench = Bench()
    called = []

    def take_long(number):
        called.append(number)
        bench.clock.monotonic += WAKE_SECONDS_MAX * 1000 / 3

    for number in range(10):
        bench.timers.timer(lambda number=number: take_long(number)).set(1000)
    (wake,) = bench.clock.calls
    wake.callback()
    assert called == [0, 1, 2, 3]
    (again,) = (call for call in bench.clock.calls if call is not wake)
    assert again.due <= bench.clock.monotonic
    again.callback()
    assert called == [*range(8)]
