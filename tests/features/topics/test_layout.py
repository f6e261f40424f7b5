"""Layouts of partitions: what more and fewer of them mean."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.features.topics.layout import resized, without
from leveret.ports.definitions import PartitionLayout


def layout(count):
    return PartitionLayout(tuple(range(count)), (), count)


def test_more_partitions_are_new_ones():
    assert resized(layout(2), 4) == PartitionLayout((0, 1, 2, 3), (), 4)


def test_fewer_partitions_retire_the_highest():
    assert resized(layout(4), 1) == PartitionLayout((0,), (1, 2, 3), 4)


def test_retired_partitions_come_back_before_new_ones_are_made():
    assert resized(resized(layout(4), 1), 5) == PartitionLayout((0, 1, 2, 3, 4), (), 5)


def test_a_number_is_never_used_again():
    fewer = without(resized(layout(4), 2), [2, 3])
    assert fewer == PartitionLayout((0, 1), (), 4)
    assert resized(fewer, 3) == PartitionLayout((0, 1, 4), (), 5)


def test_present_partitions_are_those_of_both_kinds():
    assert resized(layout(3), 1).present == (0, 1, 2)


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=12))
def test_no_number_means_two_partitions(count, changes):
    current, gone = layout(count), set()
    for wanted, is_read in changes:
        before = current
        current = resized(current, wanted)
        assert len(current.active) == wanted
        assert set(before.present) <= set(current.present)
        assert not gone & set(current.present)
        assert not set(current.active) & set(current.retired)
        assert all(number < current.made for number in current.present)
        if is_read:
            gone |= set(current.retired)
            current = without(current, current.retired)
            assert not current.retired
