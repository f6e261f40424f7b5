"""The group coordinator against what every interleaving must keep to."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.features.groups.coordinator import Assign, GroupCoordinator
from tests.support.examples import examples

PARTITIONS = st.sets(st.integers(0, 7))


def fair_moves(owners, partitions, members):
    """Return how many partitions at least change hands, for everybody to have a fair share.

    `owners` has those that have one, by partition. Tries all members for the larger shares.
    """
    held = sorted((sum(owners.get(p) == m for p in partitions) for m in members), reverse=True)
    least, more = divmod(len(partitions), len(members))
    kept = sum(min(count, least + (at < more)) for at, count in enumerate(held))
    return len(partitions) - kept


class CoordinatorMachine(RuleBasedStateMachine):
    """`delivered` is who is delivered which partition, `draining` whose must be released first."""

    def __init__(self):
        super().__init__()
        self.coordinator = GroupCoordinator([0, 1, 2])
        self.partitions = {0, 1, 2}
        self.delivered: dict[int, str] = {}
        self.draining: dict[int, str] = {}
        self.members: dict[str, set[int] | None] = {}
        self.suspended: set[str] = set()
        self.number = 0

    def carry_out(self, steps):
        for step in steps:
            partition, member = step
            if isinstance(step, Assign):
                assert partition not in self.delivered
                assert self.draining.get(partition, member) == member
                self.draining.pop(partition, None)
                self.delivered[partition] = member
            else:
                assert self.delivered.pop(partition) == member
                assert partition not in self.draining
                self.draining[partition] = member

    def rebalance(self, act):
        """Carry a command out, and check that it has moved no more than it must."""
        before = {**self.delivered, **self.draining}
        self.carry_out(act())
        sharing = [
            m for m, wanted in self.members.items() if wanted is None and m not in self.suspended
        ]
        pinned = self.pinned()
        rest = self.partitions - pinned.keys()
        if sharing:
            shares = {p: m for p, m in self.goal().items() if p in rest}
            moved = sum(before.get(p) != m for p, m in shares.items())
            assert moved == fair_moves(before, rest, sharing)

    def goal(self):
        """Return who would have each partition if all that is revoked were released."""
        released = GroupCoordinator(self.partitions)
        released._members = dict(self.coordinator._members)
        released._suspended = set(self.coordinator._suspended)
        released._owned = self.coordinator._owned
        return released._shares()

    def pinned(self):
        pinned: dict[int, str] = {}
        for member, wanted in self.members.items():
            if wanted is not None and member not in self.suspended:
                for partition in wanted & self.partitions:
                    pinned.setdefault(partition, member)
        return pinned

    @rule(wanted=st.none() | st.none() | PARTITIONS)
    def join(self, wanted):
        self.number += 1
        name = f"m{self.number}"
        self.members[name] = wanted
        self.rebalance(lambda: self.coordinator.join(name, wanted))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data):
        name = data.draw(st.sampled_from(sorted(self.members)))
        del self.members[name]
        self.suspended.discard(name)
        self.rebalance(lambda: self.coordinator.leave(name))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def fall_behind(self, data):
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.suspended.add(name)
        self.rebalance(lambda: self.coordinator.suspend(name))

    @precondition(lambda self: self.suspended)
    @rule(data=st.data())
    def catch_up(self, data):
        name = data.draw(st.sampled_from(sorted(self.suspended)))
        self.suspended.discard(name)
        self.rebalance(lambda: self.coordinator.resume(name))

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def release(self, data):
        partition = data.draw(st.sampled_from(sorted(self.draining)))
        del self.draining[partition]
        self.carry_out(self.coordinator.released(partition))

    @rule(partitions=PARTITIONS)
    def change_partitions(self, partitions):
        self.partitions = partitions
        self.rebalance(lambda: self.coordinator.set_partitions(partitions))

    @invariant()
    def one_owner_each(self):
        assert not self.delivered.keys() & self.draining.keys()
        assert self.delivered.keys() <= self.partitions
        for partition, member in {**self.delivered, **self.draining}.items():
            assert self.coordinator.owner(partition) == member
        active = self.members.keys() - self.suspended
        assert set(self.delivered.values()) <= active

    @invariant()
    def everything_is_delivered_once_it_is_released(self):
        if self.draining:
            return
        pinned = self.pinned()
        sharing = [m for m in self.members if self.members[m] is None and m not in self.suspended]
        for partition in self.partitions:
            if partition in pinned:
                assert self.delivered[partition] == pinned[partition]
            else:
                assert (partition in self.delivered) == bool(sharing)
        counts = [sum(owner == m for owner in self.delivered.values()) for m in sharing]
        assert not counts or max(counts) - min(counts) <= 1


TestCoordinator = CoordinatorMachine.TestCase
TestCoordinator.settings = settings(max_examples=examples(200), stateful_step_count=40)


def test_a_second_member_takes_half_and_no_more():
    coordinator = GroupCoordinator(range(4))
    assert coordinator.join("a") == [Assign(number, "a") for number in range(4)]
    assert coordinator.join("b") == [(2, "a"), (3, "a")]
    assert coordinator.partitions_of("b") == []
    assert coordinator.released(3) == [Assign(3, "b")]
    assert coordinator.released(2) == [Assign(2, "b")]


def test_a_revoked_partition_goes_back_to_its_owner_when_the_other_is_gone_again():
    coordinator = GroupCoordinator(range(2))
    coordinator.join("a")
    coordinator.join("b")
    assert coordinator.is_revoked(1)
    assert coordinator.leave("b") == [Assign(1, "a")]


@pytest.mark.parametrize("first", ["pinned", "sharing"])
def test_a_member_gets_the_partitions_that_it_asks_for(first):
    coordinator = GroupCoordinator(range(4))
    joins = {
        "pinned": lambda: coordinator.join("p", [0, 3]),
        "sharing": lambda: coordinator.join("s"),
    }
    joins.pop(first)()
    for join in joins.values():
        join()
    for partition in range(4):
        coordinator.released(partition)
    assert coordinator.partitions_of("p") == [0, 3]
    assert coordinator.partitions_of("s") == [1, 2]
