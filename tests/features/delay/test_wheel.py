"""The wheel against a sorted list: the same keys, in the same order, whatever the clock does."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leveret.features.delay.due_list import DueList
from leveret.features.delay.wheel import TimingWheel
from tests.support.examples import examples

START = 1_700_000_000_000
# Distances that end in each of the wheel's levels, and right at their edges.
DISTANCES = st.one_of(
    st.integers(-2000, 2000),
    st.integers(0, 48).map(lambda bits: (1 << bits) % (1 << 45)),
    st.integers(0, 45).map(lambda bits: (1 << bits) - 1),
    st.integers(0, 366 * 86_400_000),
)
KEYS = st.integers(0, 40).map(lambda number: (number % 3) << 48 | number)


class Wheels(RuleBasedStateMachine):
    """A wheel, and a list of (due time, order of addition, key) that is sorted when asked."""

    def __init__(self):
        super().__init__()
        self.now = START
        self.wheel = TimingWheel(self.now)
        self.model = {}
        self.additions = 0

    def add_to_model(self, key, due):
        self.additions += 1
        if key not in self.model or due < self.model[key][0]:
            self.model[key] = (due, self.additions)

    @rule(key=KEYS, distance=DISTANCES)
    def add(self, key, distance):
        due = max(self.now + distance, 0)
        assert self.wheel.add(key, due) == (key not in self.model)
        self.add_to_model(key, due)

    @rule(dues=st.lists(st.tuples(st.integers(0, 30), DISTANCES), max_size=5))
    def add_all(self, dues):
        listed = DueList()
        for offset, distance in dues:
            listed.add(max(self.now + distance, 0), offset)
            self.add_to_model(7 << 48 | offset, max(self.now + distance, 0))
        self.wheel.add_all(listed, 7 << 48)

    @rule(key=KEYS)
    def cancel(self, key):
        due = self.model.pop(key, (None,))[0]
        assert self.wheel.cancel(key) == due

    @rule(distance=DISTANCES, limit=st.one_of(st.just(-1), st.integers(0, 5)))
    def expire(self, distance, limit):
        """Time goes on, or the clock jumps, either way."""
        self.now = max(self.now + distance, 0)
        due = sorted((*at, key) for key, at in self.model.items() if at[0] <= self.now)
        if limit >= 0:
            due = due[:limit]
        assert list(self.wheel.expire(self.now, limit)) == [key for _, _, key in due]
        for _, _, key in due:
            del self.model[key]

    @invariant()
    def is_the_same(self):
        assert len(self.wheel) == len(self.model)
        earliest = min(self.model.values(), default=None)
        if earliest is None:
            assert self.wheel.wakes_ms is None
        else:
            assert self.wheel.wakes_ms <= earliest[0]


TestWheels = Wheels.TestCase
TestWheels.settings = settings(max_examples=examples(150), stateful_step_count=40)


@given(st.lists(st.integers(0, 5000), max_size=300))
def test_waking_when_told_misses_nothing(distances):
    """Sleeping until `wakes_ms` expires each timer at its very millisecond."""
    wheel = TimingWheel(START)
    for number, distance in enumerate(distances):
        wheel.add(number, START + distance)
    found = []
    while (now := wheel.wakes_ms) is not None:
        for number in wheel.expire(now):
            assert START + distances[number] == now
            found.append(number)
    assert found == sorted(range(len(distances)), key=distances.__getitem__)


def test_a_clock_that_goes_back_makes_nothing_early_and_nothing_twice():
    wheel = TimingWheel(START)
    wheel.add(1, START + 1000)
    wheel.add(2, START + 90_000)
    assert list(wheel.expire(START + 60_000)) == [1]
    wheel.add(3, START + 5000)  # an hour ago by the wheel, in five seconds by the clock
    assert list(wheel.expire(START + 4999)) == []
    assert list(wheel.expire(START + 5000)) == [3]
    assert list(wheel.expire(START + 89_999)) == []
    assert list(wheel.expire(START + 90_000)) == [2]


def test_a_clock_that_leaps_a_year_makes_all_of_it_due_once():
    wheel = TimingWheel(START)
    for number in range(1000):
        wheel.add(number, START + number * 30_000_000)
    assert list(wheel.expire(START + 366 * 86_400_000)) == list(range(1000))
    assert list(wheel.expire(START + 400 * 86_400_000)) == []
    assert len(wheel) == 0


def test_a_timer_takes_at_most_64_bytes():
    wheel = TimingWheel(START)
    for number in range(200_000):
        wheel.add(number, START + number * 7)
    assert wheel.allocated_bytes / 200_000 <= 64
    for number in range(200_000):
        wheel.cancel(number)
    before = wheel.allocated_bytes
    for number in range(200_000):
        wheel.add(number << 20, START + number * 7)
    assert wheel.allocated_bytes == before
