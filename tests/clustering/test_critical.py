"""Partitions that hang on a node, and those that it keeps."""

import pytest

from leveret.cluster.partition_state import Member, PartitionState
from leveret.clustering.operating.critical import is_critical, kept_by
from leveret.core.settings.replication import Acks, Replication

THREE = Replication(replicas=3, acks=Acks.ALL, in_sync_min=2)
ALL = {1, 2, 3}


def state(replicas, in_sync, leader=1):
    return PartitionState(
        replicas, frozenset(Member(node, 0) for node in in_sync), leader, epoch=1, version=1
    )


@pytest.mark.parametrize(
    ("replicas", "in_sync", "present", "critical"),
    [
        ((1, 2, 3), (1, 2, 3), ALL, False),
        ((1, 2, 3), (1, 2), ALL, True),  # one would be left
        ((1, 2, 3), (2, 3), ALL, False),  # it is behind: the others go on
        ((1, 2, 3), (1, 2, 3), {1, 2}, True),  # the third is away already
        ((1, 2, 3), (1,), ALL, True),
        ((2, 3), (2, 3), ALL, False),  # it has none
        ((1,), (1,), ALL, True),  # others were lost, and it shall have three
        ((1, 2), (1, 2), ALL, True),
    ],
)
def test_a_partition_hangs_on_a_node_without_which_too_few_are_in_sync(
    replicas, in_sync, present, critical
):
    assert is_critical(state(replicas, in_sync), THREE, 1, present) is critical


def test_replicas_that_are_the_only_ones_by_intention_do_not_count():
    one = Replication(replicas=1, acks=Acks.ALL, in_sync_min=1)
    assert not is_critical(state((1,), (1,)), one, 1, ALL)


def test_one_replica_in_sync_is_enough_where_no_more_are_needed():
    two = Replication(replicas=2, acks=Acks.ALL, in_sync_min=1)
    assert not is_critical(state((1, 2), (1, 2)), two, 1, ALL)
    assert is_critical(state((1, 2), (1,)), two, 1, ALL)


def test_who_cannot_be_removed_is_told_what_helps():
    alone, behind = state((3,), (3,), 3), state((1, 3), (3,), 3)
    told = kept_by(3, [("queue 'a'", alone), ("queue 'b'", behind), ("queue 'b'", behind)])
    assert str(told) == (
        "node 3 has the only replica of queue 'a': start the node, or delete what only it has with "
        "`leveret queue delete QUEUE`; node 3 has the only replica in sync of queue 'b': start the "
        "node, or go on with what another one has by `leveret cluster elect QUEUE --unclean`; and "
        "repeat this command"
    )
    many = [(f"queue '{number}'", alone) for number in range(5)]
    assert "queue '0', queue '1', queue '2' and 2 more: start" in str(kept_by(3, many))
