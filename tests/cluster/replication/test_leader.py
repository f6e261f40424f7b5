"""A leader: what it answers, what is committed, and who is in sync."""

from dataclasses import replace

import pytest

from leveret.cluster.partition_state import Member, PartitionState
from leveret.cluster.replication.leader import LeaderReplica, ReplicationLimits
from leveret.cluster.replication.messages import Diverged, Fetch, Records, Refused
from leveret.ports.epochs import EpochEnd, EpochIndex

A, B, C = (Member(node, 0) for node in (1, 2, 3))
LAG = 1000


class Bench:
    """A leader with ten records of epoch 1, which leads epoch 2."""

    def __init__(self, *in_sync, minimum=1, acks=None, replicas=(1, 2, 3)):
        self.now = 5000
        self.epochs = EpochIndex()
        self.epochs.add(1, 0)
        self.end = 10
        state = PartitionState(replicas, frozenset(in_sync), 1, 7, epoch=2, version=4)
        self.leader = LeaderReplica(
            A,
            state,
            self.epochs,
            end=10,
            durable=10,
            committed=6,
            limits=ReplicationLimits(LAG, minimum, acks),
            now_ms=self.now,
        )

    def write(self, count, *, stream=0):
        self.epochs.add(2, self.end)
        self.end += count
        return self.leader.written(self.end, self.end, stream)

    def fetch(self, member, end, *, durable=None, epoch=2, last_epoch=None, stream=0):
        last = (1 if end <= 10 else 2) if last_epoch is None else last_epoch
        durable = end if durable is None else durable
        request = Fetch(member, epoch, end, last if end else 0, durable, stream)
        return self.leader.fetch(request, self.now)

    def propose(self):
        found = self.leader.propose(self.now)
        return None if found is None else set(found.in_sync)

    def decide(self, **changes):
        wanted = replace(self.leader.proposal or self.leader.state, **changes)
        self.leader.decided(replace(wanted, version=self.leader.state.version + 1))


# -- the stream


def test_the_stream_is_replicated_as_far_as_all_in_sync_have_it():
    bench = Bench(A, B)
    bench.write(1, stream=500)
    assert bench.leader.replicated == 0
    bench.fetch(B, 11, stream=300)
    assert bench.leader.replicated == 300
    bench.fetch(B, 11, stream=200)  # it was delayed on its way
    assert bench.leader.replicated == 300
    bench.fetch(C, 11, stream=100)
    assert bench.propose() is None, "C lacks what counts as replicated"
    bench.fetch(C, 11, stream=300)
    assert bench.propose() == {A, B, C}
    bench.fetch(B, 11, stream=500)
    assert bench.leader.replicated == 300, "who may be in the set counts"
    bench.fetch(C, 11, stream=500)
    assert bench.leader.replicated == 500


# -- answers


def test_a_log_that_is_a_prefix_gets_what_follows():
    bench = Bench(A, B)
    assert bench.fetch(B, 4) == Records(2, 4, 6)
    assert bench.fetch(C, 0) == Records(2, 0, 6)
    assert bench.fetch(B, 10) == Records(2, 10, 10)


@pytest.mark.parametrize(
    ("end", "last_epoch", "agrees_until"),
    [(11, 1, EpochEnd(1, 10)), (9, 3, EpochEnd(2, 12)), (13, 2, EpochEnd(2, 12))],
)
def test_a_log_that_is_another_is_told_where_they_may_agree(end, last_epoch, agrees_until):
    bench = Bench(A, B)
    bench.write(2)
    answer = bench.fetch(B, end, last_epoch=last_epoch)
    assert answer == Diverged(2, end, last_epoch, agrees_until)
    assert bench.leader.committed == 6  # such a request says nothing of what the follower has


@pytest.mark.parametrize("epoch", [1, 3])
def test_other_epochs_are_refused(epoch):
    assert Bench(A, B).fetch(B, 10, epoch=epoch) == Refused(2)


def test_who_has_no_replica_is_refused():
    assert Bench(A, B).fetch(Member(9, 0), 10) == Refused(2)


# -- what is committed


def test_all_who_are_in_sync_have_what_is_committed():
    bench = Bench(A, B, C)
    bench.fetch(B, 10)
    assert (bench.leader.committed, bench.leader.is_ready) == (6, False)
    bench.fetch(C, 10, durable=8)
    assert bench.leader.committed == 8
    bench.fetch(C, 10)
    assert (bench.leader.committed, bench.leader.is_ready) == (10, True)
    assert bench.write(5) == 10
    bench.fetch(B, 15)
    assert bench.leader.committed == 10


def test_one_alone_commits_unless_there_must_be_more():
    assert Bench(A).write(1) == 11
    bench = Bench(A, minimum=2)
    assert (bench.write(1), bench.leader.missing) == (6, 1)
    bench.decide(in_sync=frozenset({A, B}))
    assert bench.leader.missing == 0
    bench.fetch(B, 11)
    assert bench.leader.committed == 11


@pytest.mark.parametrize(
    ("in_sync", "minimum", "acks", "replicas", "missing"),
    [
        ((A,), 1, None, (1, 2, 3), 0),
        ((A,), 3, None, (1, 2, 3), 2),
        ((A, B), 3, None, (1, 2, 3), 1),
        ((A, B), 5, None, (1, 2), 0),  # there are no more
        ((A,), 2, None, (1,), 0),
        ((A,), 1, 0, (1, 2, 3), 0),
        ((A,), 1, 2, (1, 2, 3), 1),  # so many are to have it
        ((A,), 1, 2, (1,), 0),
    ],
)
def test_replicas_are_missing_until_enough_are_in_sync(in_sync, minimum, acks, replicas, missing):
    bench = Bench(*in_sync, minimum=minimum, acks=acks, replicas=replicas)
    assert bench.leader.missing == missing


# -- what is confirmed


def test_what_is_confirmed_is_committed_where_all_must_have_it():
    bench = Bench(A, B, C)
    bench.write(2)
    bench.fetch(B, 12)
    assert (bench.leader.committed, bench.leader.confirmed) == (6, 6)
    bench.fetch(C, 12)
    assert (bench.leader.committed, bench.leader.confirmed) == (12, 12)


@pytest.mark.parametrize(("acks", "confirmed"), [(0, 14), (1, 12), (2, 11), (3, 6), (9, 6)])
def test_as_many_as_are_asked_for_have_what_is_confirmed(acks, confirmed):
    bench = Bench(A, B, C, acks=acks)
    bench.epochs.add(2, 10)
    bench.leader.written(14, 12)
    bench.fetch(B, 11)
    bench.fetch(C, 6)
    assert (bench.leader.committed, bench.leader.confirmed) == (6, confirmed)


def test_only_who_is_in_sync_counts_as_having_what_is_confirmed():
    bench = Bench(A, B, acks=2)
    bench.write(2)
    bench.fetch(C, 12)
    assert bench.leader.confirmed == 6
    bench.fetch(B, 8)
    assert bench.leader.confirmed == 8


def test_the_leader_itself_has_what_is_confirmed():
    bench = Bench(A, B, C, acks=2)
    bench.write(4)
    bench.leader.written(14, 10)
    bench.fetch(B, 14)
    bench.fetch(C, 14)
    assert bench.leader.confirmed == 10


def test_what_was_written_before_the_set_shrank_is_confirmed_once_it_is_committed():
    bench = Bench(A, B, C, acks=3)
    bench.write(2)
    bench.fetch(B, 12)
    bench.decide(in_sync=frozenset({A, B}))
    assert (bench.leader.committed, bench.leader.confirmed) == (12, 12)


def test_a_report_of_before_data_was_lost_does_not_count():
    bench = Bench(A, B)
    bench.fetch(B._replace(incarnation=1), 3)
    bench.fetch(B, 10)
    assert bench.leader.committed == 6
    assert bench.propose() == {A}


def test_a_report_that_comes_late_takes_nothing_back():
    bench = Bench(A, B)
    bench.fetch(B, 10)
    bench.fetch(B, 7)
    assert bench.leader.committed == 10


# -- the in-sync set


def test_who_lags_leaves_and_joins_again_at_the_end_of_the_log():
    bench = Bench(A, B)
    assert bench.propose() is None
    bench.now += LAG + 1
    assert bench.propose() == {A}
    assert bench.write(2) == 6  # until it is decided, B counts
    bench.decide()
    assert bench.leader.committed == 12
    bench.fetch(B, 11)
    assert bench.propose() is None
    bench.fetch(B, 12)
    assert bench.propose() == {A, B}
    bench.write(1)
    assert bench.leader.committed == 12  # B counts already
    bench.decide()
    bench.fetch(B, 13)
    assert bench.leader.committed == 13


def test_who_keeps_up_is_in_sync_though_it_is_never_at_the_end():
    bench = Bench(A, B)
    for _ in range(5):
        bench.now += LAG // 2
        bench.fetch(B, bench.end)
        bench.write(3)
        bench.now += LAG // 4
        bench.fetch(B, bench.end - 1)
    assert bench.propose() is None


def test_who_asks_for_nothing_leaves_soon_if_enough_others_are_in_sync():
    bench = Bench(A, B, C, minimum=2)
    bench.leader.limits = replace(bench.leader.limits, silent_ms_max=200)
    bench.fetch(B, 10)
    bench.fetch(C, 10)
    bench.now += 201
    assert bench.propose() is None  # both are silent
    bench.leader.waits(B, bench.now)
    assert bench.propose() == {A, B}
    bench.decide()
    bench.now += 100
    bench.fetch(C, 10)
    bench.leader.waits(B, bench.now)
    assert bench.propose() == {A, B, C}
    bench.decide()
    bench.now += 201
    bench.fetch(B, 10)
    assert bench.propose() == {A, B}
    bench.decide()
    bench.leader.waits(C, bench.now - 201)
    assert bench.propose() is None  # it does not join for having had everything once


def test_who_is_gone_leaves_at_once_and_who_is_not_there_does_not_join():
    bench = Bench(A, B)
    bench.fetch(C, 10)
    bench.leader.see({A})
    assert bench.propose() == {A}
    bench.decide()
    bench.leader.see({A, C})
    assert bench.propose() == {A, C}


def test_one_proposal_at_a_time():
    bench = Bench(A, B, C)
    bench.now += LAG + 1
    bench.fetch(C, 10)
    assert bench.propose() == {A, C}
    bench.now += LAG + 1
    assert bench.propose() is None
    bench.decide()
    assert bench.propose() == {A}


def test_a_state_that_is_known_decides_nothing():
    """The proposal may be taken later: then C counts, and may have been elected."""
    bench = Bench(A, B)
    bench.fetch(B, 10)
    bench.fetch(C, 10)
    assert bench.propose() == {A, B, C}
    bench.leader.decided(bench.leader.state)
    bench.write(1)
    bench.fetch(B, 11)
    assert bench.leader.committed == 10
    bench.decide(in_sync=frozenset({A, B}))  # another change was faster
    assert bench.leader.committed == 11


def test_who_is_no_replica_any_more_is_forgotten():
    bench = Bench(A, B)
    bench.fetch(C, 10)
    bench.decide(replicas=(1, 2))
    assert bench.propose() is None
