"""Writes that share a batch."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata.changes import ChangeBatch, PendingWrite
from leveret.cluster.metadata.grouping import WRITES_MAX, group_writes
from leveret.cluster.metadata.state import MetadataState
from leveret.ports.coordination import VALUE_BYTES_MAX, WRITE_BYTES_MAX, KeyChange, KeyCheck

KEYS = st.sampled_from("abc")
VERSIONS = st.none() | st.integers(0, 3)
WRITES = st.lists(
    st.builds(KeyChange, KEYS, st.none() | st.just(b"1"), VERSIONS)
    | st.builds(KeyCheck, KEYS, st.integers(0, 3)),
    max_size=3,
    unique_by=lambda each: (type(each), each.key),
).map(PendingWrite.of)


def state_of(*keys):
    state = MetadataState()
    for number, key in enumerate(keys, 1):
        state.apply(ChangeBatch(1, number, number, (KeyChange(key, b"0"),)))
    return state


@given(st.lists(WRITES, max_size=8))
def test_a_group_does_what_its_writes_do_one_by_one(writes):
    state, single = state_of("a", "b"), state_of("a", "b")
    group = group_writes(state, writes)
    assert group.taken > 0 or not writes
    conflicts = dict(group.conflicts)
    assert sorted([*group.accepted, *conflicts]) == list(range(group.taken))
    for index, write in enumerate(writes[: group.taken]):
        assert single.conflicts(write) == conflicts.get(index, [])
        if index not in conflicts:
            number = single.sequence + 1
            single.apply(ChangeBatch(2, number, number, write.changes))
    changed = [change.key for index in group.accepted for change in writes[index].changes]
    assert len(changed) == len(set(changed))


def test_a_group_ends_at_its_limits():
    state = MetadataState()
    large = [PendingWrite.of([KeyChange(f"k{n}", bytes(VALUE_BYTES_MAX))]) for n in range(3)]
    assert group_writes(state, large).taken == 1
    smaller = [PendingWrite.of([KeyChange(f"k{n:03}", bytes(1014))]) for n in range(1000)]
    assert {write.size for write in smaller} == {1024}
    assert group_writes(state, smaller).taken == WRITE_BYTES_MAX // 1024
    many = [PendingWrite.of([KeyChange(f"k{n}", b"")]) for n in range(WRITES_MAX + 1)]
    assert group_writes(state, many).taken == WRITES_MAX


def test_a_write_that_conflicts_takes_no_room():
    state = state_of("a")
    large = PendingWrite.of([KeyChange("a", bytes(VALUE_BYTES_MAX), 7)])
    assert group_writes(state, [large] * 5).conflicts == [(n, ["a"]) for n in range(5)]
