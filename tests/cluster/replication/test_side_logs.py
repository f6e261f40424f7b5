"""The logs of one partition: who is in sync has all that is committed, in each of them."""

import random
from dataclasses import replace

import pytest

from leveret.cluster.partition_state import Member, PartitionState
from leveret.cluster.replication.leader import LeaderReplica, ReplicationLimits, propose_together
from leveret.cluster.replication.messages import Fetch
from leveret.ports.epochs import EpochIndex

A, B, C = (Member(node, 0) for node in (1, 2, 3))
LAG, SILENT = 1000, 300
EPOCH = 2


class Partition:
    """The machines of a partition's logs on the node that leads it, A; logs begin empty."""

    def __init__(self, *in_sync, side_logs=(), minimum=1):
        self.now = 5000
        self.limits = ReplicationLimits(LAG, minimum, silent_ms_max=SILENT)
        names = frozenset(side_logs)
        self.state = PartitionState((1, 2, 3), frozenset(in_sync), 1, 7, EPOCH, 4, side_logs=names)
        self.ends = {}
        self.machines = {}
        self.durable = {}
        for name in (None, *side_logs):
            self.create(name)

    def create(self, name):
        epochs = EpochIndex()
        epochs.add(EPOCH, 0)
        self.machines[name] = LeaderReplica(
            A,
            self.state,
            epochs,
            end=0,
            durable=0,
            committed=0,
            limits=self.limits,
            now_ms=self.now,
            side_log=name,
        )
        self.ends[name] = 0

    def write(self, name, count=1):
        self.ends[name] += count
        self.machines[name].written(self.ends[name], self.ends[name])

    def fetch(self, member, name, end=None):
        end = self.ends[name] if end is None else end
        self.durable[member, name] = max(self.durable.get((member, name), 0), end)
        request = Fetch(member, EPOCH, end, EPOCH if end else 0, end, 0)
        self.machines[name].fetch(request, self.now)

    def catch_up(self, *members):
        for member in members:
            for name in self.machines:
                self.fetch(member, name)

    def propose(self):
        names = frozenset(self.machines) - {None}
        return propose_together(list(self.machines.values()), names, self.now)

    def decide(self, state):
        self.state = state
        for machine in self.machines.values():
            machine.decided(state)

    def check(self):
        """Everybody in the set that the coordinator has, has what any log has committed."""
        for name, machine in self.machines.items():
            for member in self.state.in_sync - {A}:
                assert self.durable.get((member, name), 0) >= machine.committed
            assert machine.committed == 0 or name is None or name in self.state.side_logs


def test_who_lags_in_one_log_leaves_the_set_for_all():
    partition = Partition(A, B, C, side_logs=["q.retry"])
    partition.write("q.retry")
    for _ in range(6):
        partition.now += 200
        partition.catch_up(C)
        partition.fetch(B, None)
        partition.fetch(B, "q.retry", 0)
    wanted = partition.propose()
    assert wanted.in_sync == {A, C}
    assert all(each.proposal is wanted for each in partition.machines.values())


def test_who_has_one_log_only_does_not_join():
    partition = Partition(A, side_logs=["q.retry"])
    partition.write(None, 5)
    partition.write("q.retry", 5)
    partition.fetch(B, None)
    assert partition.propose() is None
    partition.fetch(B, "q.retry")
    assert partition.propose().in_sync == {A, B}


def test_nothing_of_a_companion_is_committed_before_the_state_names_it():
    partition = Partition(A)
    partition.create("q.retry")
    partition.write("q.retry", 3)
    assert partition.machines["q.retry"].confirmed == 0
    wanted = partition.propose()
    assert (wanted.in_sync, wanted.side_logs) == ({A}, {"q.retry"})
    assert partition.machines["q.retry"].confirmed == 0
    partition.decide(wanted)
    assert partition.machines["q.retry"].committed == 3


@pytest.mark.parametrize("acks", [0, 1])
def test_nor_confirmed_whatever_publishers_wait_for(acks):
    partition = Partition(A, B)
    partition.limits = replace(partition.limits, acks=acks)
    partition.create("q.retry")
    partition.write("q.retry", 3)
    assert partition.machines["q.retry"].confirmed == 0
    partition.decide(partition.propose())
    assert partition.machines["q.retry"].confirmed == 3


def test_who_has_not_heard_of_a_companion_is_given_time():
    partition = Partition(A, B, C)
    partition.create("q.retry")
    partition.write("q.retry")
    for _ in range(20):  # the coordinator does not answer
        partition.now += 200
        partition.fetch(B, None)
        partition.fetch(C, None)
        wanted = partition.propose()
        assert wanted is None or wanted.in_sync == {A, B, C}
    partition.decide(partition.machines[None].proposal)
    assert partition.propose() is None
    partition.now += LAG + 1
    partition.fetch(B, None)
    partition.catch_up(C)
    assert partition.propose().in_sync == {A, C}


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_who_is_in_sync_has_all(seed):
    chance = random.Random(seed)
    partition = Partition(A, B, C, minimum=chance.choice([1, 2]))
    names = ["q.retry", "q.eta"]
    for _ in range(300):
        partition.now += chance.choice([0, 10, 100, 400])
        known = list(partition.machines)
        match chance.randrange(8):
            case 0 | 1:
                partition.write(chance.choice(known), chance.randrange(1, 4))
            case 2 | 3 | 4:
                name = chance.choice(known)
                end = chance.choice([partition.ends[name], chance.randint(0, partition.ends[name])])
                partition.fetch(chance.choice([B, C]), name, end)
            case 5:
                partition.propose()
            case 6:
                proposal = partition.machines[None].proposal
                if proposal is not None:  # it is written, or somebody else was faster
                    lost = replace(partition.state, version=proposal.version)
                    partition.decide(chance.choice([proposal, proposal, lost]))
            case _:
                if names and chance.random() < 0.1:
                    partition.create(names.pop())
        partition.check()
