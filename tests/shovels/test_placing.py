"""One node runs each shovel: all nodes choose the same one, and few shovels move."""

from collections import Counter

from leveret.ports.coordination import DRAINING, NODES_PREFIX, KeyChange, KeyEntry
from leveret.shovels.placing import ClusterPlacing, SinglePlacing, running_node

NAMES = [("v", f"s{number}") for number in range(300)]


def test_shovels_are_spread_and_stay_where_they_are():
    before = {name: running_node({1, 2, 3}, *name) for name in NAMES}
    assert min(Counter(before.values()).values()) > 60
    after = {name: running_node({1, 2}, *name) for name in NAMES}
    assert all(after[name] == node for name, node in before.items() if node != 3)
    assert running_node((), "v", "s") is None


class SaidCoordinator:
    def __init__(self):
        self.nodes = {1: None, 2: None, 3: None}
        self.entries = SaidEntries()
        self.told = []

    def follow(self, callback):
        self.told.append(callback)

    def follow_nodes(self, callback):
        self.follow_nodes_of = callback


class SaidEntries(dict):
    def keys(self, prefix=""):
        return [key for key in super().__iter__() if key.startswith(prefix)]


def test_exactly_one_node_runs_each():
    coordinator = SaidCoordinator()
    placings = {node: ClusterPlacing(node, coordinator) for node in (1, 2, 3)}
    coordinator.entries[f"{NODES_PREFIX}2"] = KeyEntry(1, DRAINING)
    for name in NAMES:
        (runner,) = [node for node, each in placings.items() if each.node_of(*name) is None]
        assert runner in {1, 3}
        assert {each.node_of(*name) for each in placings.values()} == {None, runner}
    assert placings[1].others() == {2, 3}


def test_changes_are_told():
    coordinator, changes = SaidCoordinator(), []
    ClusterPlacing(1, coordinator).follow(lambda: changes.append(1))
    coordinator.follow_nodes_of()
    (told,) = coordinator.told
    told(1, [KeyChange("queues/q", b"")])
    assert len(changes) == 1
    told(2, [KeyChange(f"{NODES_PREFIX}1", DRAINING)])
    assert len(changes) == 2


def test_a_single_node_runs_all():
    placing = SinglePlacing()
    placing.follow(lambda: None)
    assert (placing.node_of("v", "s"), placing.others()) == (None, ())
