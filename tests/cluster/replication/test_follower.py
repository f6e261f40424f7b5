"""A follower: what it does about answers, timely and late."""

import pytest

from leveret.cluster.partition_state import Member
from leveret.cluster.replication.follower import FollowerReplica, FollowerStep
from leveret.cluster.replication.messages import Diverged, Fetch, Records, Refused
from leveret.ports.epochs import EpochEnd, EpochIndex

ME = Member(2, 0)


@pytest.fixture
def follower():
    """Follow epoch 4, with five records of epoch 1 and five of epoch 3."""
    epochs = EpochIndex()
    epochs.add(1, 0)
    epochs.add(3, 5)
    return FollowerReplica(ME, 4, epochs, committed=2)


def test_it_says_what_it_has(follower):
    assert follower.fetch(10, 8) == Fetch(ME, 4, end=10, last_epoch=3, durable=8)


def test_it_appends_what_follows_its_log(follower):
    answer = Records(4, 10, committed=12)
    assert follower.take(answer, 10) == FollowerStep(append_at=10)
    assert follower.appended(answer, 11) == 11
    assert follower.appended(Records(4, 11, committed=7), 12) == 11


@pytest.mark.parametrize(
    "answer",
    [
        Records(4, 9, 9),
        Records(3, 10, 9),
        Refused(4),
        Refused(5),
        Diverged(3, 10, 3, EpochEnd(1, 5)),
    ],
)
def test_it_does_nothing_about_answers_to_something_else(follower, answer):
    assert follower.take(answer, 10) == FollowerStep()


@pytest.mark.parametrize(
    ("agrees_until", "end"),
    [
        (EpochEnd(3, 7), 7),  # the leader has fewer of the epoch
        (EpochEnd(1, 3), 3),
        (EpochEnd(1, 9), 5),  # the leader has more of an older epoch
        (EpochEnd(2, 8), 5),  # an epoch without records here
        (EpochEnd(0, 0), 0),
    ],
)
def test_it_truncates_to_where_both_may_agree(follower, agrees_until, end):
    assert follower.take(Diverged(4, 10, 3, agrees_until), 10) == FollowerStep(truncate_to=end)


def test_a_late_answer_does_not_truncate_again(follower):
    late = Diverged(4, 10, 3, EpochEnd(3, 8))
    follower._epochs.add(4, 8)  # truncated to 8, and fetched since
    assert follower.take(late, 10) == FollowerStep()
    assert follower.take(late, 11) == FollowerStep()
