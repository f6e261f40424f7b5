"""New partitions are spread over nodes and racks, whatever is there already."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.assignment import NodeLoad, assign
from leveret.cluster.partition_state import PartitionState

racks = st.dictionaries(st.integers(1, 20), st.sampled_from("abc"), min_size=1, max_size=9)
loads = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True), max_size=8)


@given(racks, st.integers(1, 5), st.integers(1, 12), loads)
def test_each_partition_is_on_different_nodes_and_racks(racks, replicas, partitions, known):
    load = NodeLoad.of(PartitionState(tuple(each), frozenset()) for each in known)
    found = assign(partitions, replicas, racks, load)
    assert len(found) == partitions
    for chosen in found:
        assert len(chosen) == len(set(chosen)) == min(replicas, len(racks))
        assert set(chosen) <= set(racks)
        in_rack = Counter(racks[node] for node in chosen)
        # A rack has two of them only where each other one has one, or no node left.
        sizes = Counter(racks.values())
        for rack, count in in_rack.items():
            for other, size in sizes.items():
                assert count <= in_rack[other] + 1 or in_rack[other] == size, (rack, other)
    counted = Counter(node for each in [*known, *found] for node in each)
    assert load.replicas == counted


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 40))
def test_leaders_and_replicas_are_even(nodes, replicas, partitions):
    load = NodeLoad()
    assign(partitions, replicas, dict.fromkeys(range(nodes), "a"), load)
    for counts in (load.leaders, load.replicas):
        each = [counts[node] for node in range(nodes)]
        assert max(each) - min(each) <= 1


def test_a_new_node_leads_next():
    load = NodeLoad.of([PartitionState((1, 2), frozenset()), PartitionState((2, 1), frozenset())])
    assert assign(1, 2, {1: "a", 2: "b", 3: "a"}, load) == [(3, 2)]


@pytest.mark.parametrize(("racks", "replicas"), [({}, 3), ({1: "a"}, 0)])
def test_nothing_to_choose_from(racks, replicas):
    with pytest.raises(ValueError, match=f"{replicas} replicas on {len(racks)} nodes"):
        assign(1, replicas, racks, NodeLoad())
