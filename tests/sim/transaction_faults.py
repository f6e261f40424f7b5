"""Mistakes planted in what commits transactions: the simulator must find each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.cluster.transactions.decisions import DecisionLeader, TransactionOutcome
from leveret.clustering.forwarding.remote_parts import RemotePart, RemoteParts
from leveret.clustering.transactions.decider import ClusterDecider
from leveret.clustering.transactions.decision_log import LedDecisions
from leveret.clustering.transactions.partitions import DecisionPartitions
from tests.sim import transactions

if TYPE_CHECKING:
    import pytest


def tells_before_the_decision_is_replicated(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, transaction: int, told: Any) -> None:
        told(TransactionOutcome.COMMITTED)

    patch.setattr(DecisionLeader, "tell", wrong)


def decides_what_it_has_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecisionLeader, "_has_given_up", lambda *_: False)


def decides_what_an_earlier_leader_was_to_decide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecisionLeader, "_is_ours", lambda *_: True)


def leads_without_the_decisions_of_others(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any) -> None:
        self._machine = DecisionLeader(self._partition, self.epoch, {})

    patch.setattr(LedDecisions, "load", wrong)


def answers_those_who_lead_no_more(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any, number: int, transaction: int, _: Any) -> TransactionOutcome:
        led = self.led(number)
        return TransactionOutcome.UNKNOWN if led is None else led.machine.outcome(transaction)

    patch.setattr(DecisionPartitions, "_outcome", wrong)


def forgets_before_outcomes_are_replicated(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, transaction: int) -> bool:
        return transaction in self.unresolved

    patch.setattr(transactions.SimLog, "has_part", wrong)


def forgets_what_the_client_does_not_know_yet(patch: pytest.MonkeyPatch) -> None:
    right = ClusterDecider._names

    def wrong(self: Any, transaction: int, logs: Any) -> list[str]:
        self.driving.discard(transaction)
        return right(self, transaction, logs)

    patch.setattr(ClusterDecider, "_names", wrong)


def takes_silence_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any, participants: Any, decided: Any) -> None:
        self._finish(TransactionOutcome.ABORTED, decided)

    patch.setattr(ClusterDecider, "_find_out", wrong)


def takes_silence_for_a_part_that_is_prepared(patch: pytest.MonkeyPatch) -> None:
    right = RemotePart.answer
    patch.setattr(RemotePart, "answer", lambda self, _error: right(self, None))


def delivers_what_may_be_settled(patch: pytest.MonkeyPatch) -> None:
    right = transactions.Place.waits_for_outcomes

    def wrong(self: Any, log: Any) -> bool:
        if right(self, log):
            self.node.parts_to_ask.add(self)
        return False

    patch.setattr(transactions.Place, "waits_for_outcomes", wrong)
    patch.setattr(transactions.Place, "to_ask", lambda self, _: self.log.undecided)
    patch.setattr(
        transactions.Place,
        "resolve",
        lambda self, transaction, *, committed: self.log.resolve(transaction, committed=committed),
    )


def leaves_parts_out_that_are_remote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteParts, "participant", lambda *_: "")


PLANTED = [
    tells_before_the_decision_is_replicated,
    decides_what_it_has_given_up,
    decides_what_an_earlier_leader_was_to_decide,
    leads_without_the_decisions_of_others,
    answers_those_who_lead_no_more,
    forgets_before_outcomes_are_replicated,
    forgets_what_the_client_does_not_know_yet,
    takes_silence_for_a_failure,
    takes_silence_for_a_part_that_is_prepared,
    delivers_what_may_be_settled,
    leaves_parts_out_that_are_remote,
]
