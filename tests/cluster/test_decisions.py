"""The machine that decides transactions, and their numbers."""

from leveret.cluster.transactions.decisions import (
    DecisionLeader,
    TransactionDecision,
    TransactionOutcome,
)
from leveret.cluster.transactions.numbers import HOME_MAX, TransactionNumber, is_of_cluster

COMMITTED, ABORTED, UNKNOWN = TransactionOutcome


def number(partition=1, epoch=5, own=0):
    return TransactionNumber(partition, epoch, own).pack()


def test_numbers_say_who_decides():
    packed = TransactionNumber(15, 9, 77).pack()
    assert TransactionNumber.of(packed) == (15, 9, 77)
    assert is_of_cluster(packed)
    assert is_of_cluster(TransactionNumber(0, 0, 0).pack())
    assert not is_of_cluster(HOME_MAX)
    assert packed < 1 << 64


def test_no_number_is_given_twice():
    leader = DecisionLeader(1, 5, {})
    first, second = leader.draw(), leader.draw()
    assert first.start == number()
    assert first.stop == second.start


def test_a_decision_is_told_once_it_is_committed():
    leader, told = DecisionLeader(1, 5, {}), []
    transaction = number(own=3)
    assert leader.admits([transaction])
    leader.appended({transaction: ["i/0@2"]}, 40)
    leader.tell(transaction, told.append)
    assert leader.committed(40) == []
    assert leader.outcome(transaction) is UNKNOWN
    for call in leader.committed(41):
        call()
    assert told == [COMMITTED]
    assert leader.outcome(transaction) is COMMITTED


def test_what_was_told_to_have_aborted_is_never_decided():
    leader = DecisionLeader(1, 5, {})
    assert leader.outcome(number(own=3)) is ABORTED
    assert not leader.admits([number(own=2), number(own=3)])
    assert leader.admits([number(own=2)])


def test_a_new_leader_knows_everything_of_earlier_epochs():
    found = {number(epoch=4, own=1): TransactionDecision(0, {"i/0@1"})}
    leader = DecisionLeader(1, 5, found)
    assert leader.outcome(number(epoch=4, own=1)) is COMMITTED
    assert leader.outcome(number(epoch=4, own=2)) is ABORTED
    assert not leader.admits([number(epoch=4, own=3)])


def test_nothing_is_said_about_others():
    leader = DecisionLeader(1, 5, {})
    assert leader.outcome(number(epoch=6)) is UNKNOWN
    assert leader.outcome(number(partition=2)) is UNKNOWN
    assert leader.outcome(17) is UNKNOWN


def test_a_leader_that_ends_tells_that_it_does_not_know():
    leader, told = DecisionLeader(1, 5, {}), []
    leader.appended({number(): ["i/0@2"]}, 0)
    leader.tell(number(), told.append)
    for call in leader.end():
        call()
    assert told == [UNKNOWN]


def test_a_decision_is_forgotten_when_no_participant_needs_it():
    leader = DecisionLeader(1, 5, {})
    leader.appended({number(): ["i/0@2", "i/1@1"]}, 7)
    leader.committed(8)
    assert leader.unheard() == {"i/0@2": [number()], "i/1@1": [number()]}
    assert leader.heard("i/0@2", [number()]) == []
    assert leader.heard("i/0@2", [number()]) == []
    assert leader.heard("i/1@1", [number()]) == [7]
    assert leader.unheard() == {}
    # Should a late question come nevertheless, and to the same leader, it is answered.
    assert leader.outcome(number()) is COMMITTED
    assert leader.is_known([number()])
