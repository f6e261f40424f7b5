"""When leases end, against models that note every number by itself."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leveret.features.pull.rules import LeaseEnds, LeaseTable, Terms, rounded_end

NOW = 1_700_000_000_000


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_no_term_is_cut_and_none_is_much_longer(passed, term_ms):
    now = NOW + passed
    assert now + term_ms <= rounded_end(now, term_ms) <= now + term_ms + max(1, term_ms // 64)


def test_a_long_term_at_a_high_rate_is_few_entries():
    terms = Terms()
    for number in range(100_000):
        terms.begin(number, number, rounded_end(NOW + number, 100_000))
    runs = terms.take_due(NOW + 10**9)
    assert len(runs) <= 66
    assert sorted(n for first, last in runs for n in range(first, last + 1)) == [*range(100_000)]


runs = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 500), st.integers(0, 50)), max_size=30)


@given(runs)
def test_terms_end_each_at_its_time(sequence):
    terms, model, now, number = Terms(), {}, NOW, 1
    for count, term_ms, passed in sequence:
        end_ms = rounded_end(now, term_ms)
        terms.begin(number, number + count - 1, end_ms)
        model.update(dict.fromkeys(range(number, number + count), end_ms))
        number += count
        now += passed
        assert terms.next_ms == min(model.values(), default=None)
        ended = {n for first, last in terms.take_due(now) for n in range(first, last + 1)}
        assert ended == {n for n, end_ms in model.items() if end_ms <= now}
        model = {n: end_ms for n, end_ms in model.items() if end_ms > now}
        assert bool(terms) == bool(model)


@given(st.sets(st.integers(0, 20)), st.integers(0, 20), st.integers(0, 20))
def test_what_was_not_extended(extended, first, last):
    extensions = LeaseEnds()
    for number in extended:
        extensions.move(number, NOW)
    found = [n for low, high in extensions.outside(first, last) for n in range(low, high + 1)]
    assert found == [n for n in range(first, last + 1) if n not in extended]


def test_extensions_forget_what_was_settled():
    extensions = LeaseEnds()
    for number in range(1000):
        extensions.move(number, NOW + number)
        extensions.prune(1, lambda live, number=number: live == number)
    assert len(extensions) < 100
    assert extensions.take_due(NOW + 999)[-1] == 999


def test_the_last_word_on_an_extension_counts():
    extensions = LeaseEnds()
    extensions.move(7, NOW + 10)
    extensions.move(7, NOW + 30)
    assert extensions.take_due(NOW + 29) == []
    assert 7 in extensions
    assert extensions.take_due(NOW + 30) == [7]
    assert 7 not in extensions


class Leasing(RuleBasedStateMachine):
    """A table and a dictionary hear the same; time runs on as it likes."""

    def __init__(self):
        super().__init__()
        self.table = LeaseTable()
        self.model = {}  # offset -> (token, end)
        self.over = []  # leases that have ended in any way
        self.now = NOW
        self.token = 0

    @rule(offsets=st.sets(st.integers(0, 30), max_size=8), term_ms=st.integers(0, 100))
    def begin(self, offsets, term_ms):
        free = offsets - self.model.keys()
        self.token += 1
        self.table.begin(free, self.token, self.now + term_ms)
        self.model.update(dict.fromkeys(free, (self.token, self.now + term_ms)))

    @rule(choice=st.randoms(use_true_random=False))
    def end(self, choice):
        if self.model:
            offset = choice.choice(sorted(self.model))
            token, _ = self.model.pop(offset)
            assert self.table.end(offset, token)
            self.over.append((offset, token))

    @rule(choice=st.randoms(use_true_random=False), term_ms=st.integers(0, 100))
    def extend(self, choice, term_ms):
        if self.model:
            offset = choice.choice(sorted(self.model))
            token, _ = self.model[offset]
            assert self.table.extend(offset, token, self.now + term_ms)
            self.model[offset] = token, self.now + term_ms

    @rule(passed=st.integers(0, 60))
    def wait(self, passed):
        self.now += passed
        due = self.table.take_due(self.now)
        assert due == sorted(o for o, (_, end) in self.model.items() if end <= self.now)
        self.over += [(offset, self.model.pop(offset)[0]) for offset in due]

    @invariant()
    def what_is_over_stays_over(self):
        for offset, token in self.over[-20:]:
            assert not self.table.end(offset, token)
            assert not self.table.extend(offset, token, self.now)
        assert len(self.table) == len(self.model)
        next_ms = self.table.next_ms
        if self.model:
            assert next_ms is not None
            assert next_ms <= min(end for _, end in self.model.values())


TestLeasing = Leasing.TestCase
