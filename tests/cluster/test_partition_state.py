"""States of partitions as the coordinator has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.partition_state import Member, PartitionState

numbers = st.integers(0, 1000)
states = st.builds(
    PartitionState,
    st.lists(numbers, max_size=5, unique=True).map(tuple),
    st.frozensets(st.builds(Member, numbers, numbers), max_size=5),
    st.none() | numbers,
    numbers,
    numbers,
    numbers,
)


@given(states)
def test_a_state_is_read_as_it_was_written(state):
    assert PartitionState.from_bytes(state.to_bytes()) == state


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b"null", b"\xff", b'{"replicas":"ab"}', b"[" * 100_000]
)
def test_something_else_is_refused(value):
    with pytest.raises(ValueError, match="no state of a partition"):
        PartitionState.from_bytes(value)
