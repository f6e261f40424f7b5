"""The plan of the controller: what it may write, and when it has nothing to do."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.plan import next_entry
from leveret.replication.shard import ShardEntry

NODES = st.integers(1, 5)


@st.composite
def entries(draw):
    replicas = draw(st.lists(NODES, min_size=1, unique=True))
    isr = draw(st.frozensets(st.sampled_from(replicas), min_size=1))
    leader = draw(st.none() | st.sampled_from(replicas))
    incarnation = 0 if leader is None else draw(st.integers(1, 3))
    return ShardEntry(leader, incarnation, draw(st.integers(0, 9)), isr, tuple(replicas), 7)


@given(entries(), st.dictionaries(NODES, st.integers(1, 3)), st.frozensets(NODES))
def test_it_elects_of_the_in_sync_set_and_leaves_that_alone(entry, live, nodes):
    planned = next_entry(entry, live, nodes, replicas=3)
    leads = entry.leader is not None and live.get(entry.leader) == entry.incarnation
    if planned is None:
        assert leads or not entry.isr & live.keys()
        return
    assert planned.change == entry.change + 1
    assert planned.isr == entry.isr
    if leads:
        assert planned[:4] == entry[:4]
        assert planned.replicas[: len(entry.replicas)] == entry.replicas
        assert len(planned.replicas) <= 3
        assert set(planned.replicas) - set(entry.replicas) <= nodes & live.keys()
    else:
        assert planned.leader in entry.isr
        assert planned.incarnation == live[planned.leader]
        assert planned.epoch == entry.epoch + 1
        assert planned.replicas == entry.replicas


@given(entries(), st.dictionaries(NODES, st.integers(1, 3)), st.frozensets(NODES))
def test_it_comes_to_an_end(entry, live, nodes):
    for _ in range(2 + 3):
        following = next_entry(entry, live, nodes, replicas=3)
        if following is None:
            return
        entry = following
    raise AssertionError("the plan goes on for ever")


def test_the_first_replica_that_is_in_sync_is_preferred():
    entry = ShardEntry(1, 1, 4, frozenset({1, 2, 3}), (1, 3, 2), 7)
    planned = next_entry(entry, {2: 5, 3: 6}, {1, 2, 3}, replicas=3)
    assert planned is not None
    assert (planned.leader, planned.incarnation) == (3, 6)


def test_a_leader_that_was_started_again_is_elected_anew():
    entry = ShardEntry(1, 1, 4, frozenset({1}), (1,), 7)
    planned = next_entry(entry, {1: 2}, {1}, replicas=3)
    assert planned == ShardEntry(1, 2, 5, frozenset({1}), (1,), 8)
