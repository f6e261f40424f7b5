"""The index of a log's epochs, compared with one that is made from the log each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.ports.epochs import NO_EPOCH, EpochEnd, EpochIndex

# Of each record, by how much its epoch is greater than that of the one before.
steps = st.lists(st.integers(0, 2), max_size=30)


def index_of(epochs):
    index = EpochIndex()
    for offset, epoch in enumerate(epochs):
        index.add(epoch, offset)
    return index


def accumulated(steps):
    epoch, found = 1, []
    for step in steps:
        epoch += step
        found.append(epoch)
    return found


@given(steps, st.integers(0, 70), st.integers(0, 30))
def test_it_is_what_the_log_says(steps, asked, end):
    epochs = accumulated(steps)
    index = index_of(epochs)
    index.truncate(end)
    epochs = epochs[:end]
    upto = [epoch for epoch in epochs if epoch <= asked]
    expected = EpochEnd(upto[-1], len(upto)) if upto else EpochEnd(asked, 0)
    assert index.end_of(asked, len(epochs)) == expected
    assert index.last == (epochs[-1] if epochs else NO_EPOCH)


@given(steps, st.integers(0, 30), st.integers(0, 70))
def test_what_is_forgotten_may_be_of_any_earlier_epoch(steps, first, asked):
    epochs = accumulated(steps)
    index = index_of(epochs)
    index.forget(first)
    kept = list(index)
    assert all(later > first for _, later in kept[1:])
    assert len(kept) >= bool(epochs)
    if kept and asked < kept[0][0]:
        assert index.end_of(asked, len(epochs)) == EpochEnd(asked, kept[0][1])
    assert list(EpochIndex(kept)) == kept


def test_epochs_that_do_not_follow_each_other_are_refused():
    for epochs in ([(2, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 5), (2, 3)]):
        with pytest.raises(ValueError, match="epoch"):
            EpochIndex(epochs)


def test_an_older_epoch_cannot_follow():
    index = index_of([1, 3])
    with pytest.raises(ValueError, match="epoch 2 at offset 2 comes after epoch 3"):
        index.add(2, 2)
    assert repr(index) == "EpochIndex([(1, 0), (3, 1)])"
