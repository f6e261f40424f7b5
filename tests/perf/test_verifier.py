from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leveret.perf.verifier import Verifier

PUBLISHERS, NUMBERS, SLOTS = 3, 4, 2
messages = st.tuples(
    st.integers(0, SLOTS - 1),
    st.integers(0, PUBLISHERS - 1),
    st.integers(0, NUMBERS - 1),
    st.integers(0, 12),
)


@given(st.lists(messages))
def test_ranges_hold_exactly_what_came(arrived):
    verifier = Verifier(PUBLISHERS, NUMBERS, SLOTS)
    for message in arrived:
        verifier.record(*message)
    held = {
        (stream, sequence)
        for stream, ranges in verifier.received().items()
        for first, stop in ranges
        for sequence in range(first, stop)
    }
    counts = Counter(
        ((slot * PUBLISHERS + publisher) * NUMBERS + number, sequence)
        for slot, publisher, number, sequence in arrived
    )
    assert held == set(counts)
    assert verifier.duplicates == len(arrived) - len(counts)
    assert verifier.foreign == 0


def test_messages_of_others_are_foreign():
    verifier = Verifier(1, 1, 1)
    verifier.record(0, 1, 0, 0)
    verifier.record(0, 0, 1, 0)
    verifier.record(1, 0, 0, 0)
    assert (verifier.foreign, verifier.received()) == (3, {})


def test_in_order_is_one_range():
    verifier = Verifier(1, 1, 1)
    for sequence in range(1000):
        verifier.record(0, 0, 0, sequence)
    assert verifier.received() == {0: [(0, 1000)]}
