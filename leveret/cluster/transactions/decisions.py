"""The machine of a partition of the decisions, at its leader: what has committed, and who knows.

A transaction has committed once its record is committed in the partition's log. All others have
aborted: those of earlier epochs that the log does not have, and of the present epoch those that
somebody was told of as aborted, which are never decided any more.

A decision is forgotten when none of its participants can ask for it again. Each is asked, from time
to time, for the transactions of which it still has a part whose outcome is not safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.cluster.transactions.numbers import (
    EPOCH_MAX,
    NUMBER_MAX,
    TransactionNumber,
    is_of_cluster,
)
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = ["DecisionLeader", "TransactionDecision", "TransactionOutcome"]

BLOCK: Final = 4096  # numbers that a node gets at once


class TransactionOutcome(Enum):
    """Answer to a question about a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # not yet, or not here: to be asked again


@dataclass(slots=True)
class TransactionDecision:
    """Record of a committed transaction: its offset, and those who may ask for it."""

    offset: int
    participants: set[str]


class DecisionLeader:
    """Leader of one partition in one epoch. `found` are the decisions of earlier epochs.

    `found` is complete: the leader had committed everything that its log had before it was read.
    """

    def __init__(
        self, partition: int, epoch: int, found: Mapping[int, TransactionDecision]
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self._committed = dict(found)
        self._appended: dict[int, TransactionDecision] = {}  # in the log, and not committed yet
        self._waiting: dict[int, list[Callable[[TransactionOutcome], None]]] = {}
        self._forgotten = RangeSet()  # numbers of this epoch that have committed
        self._given_up = RangeSet()  # numbers of this epoch that were told to have aborted
        self._next = 0

    def draw(self) -> range:
        """Return numbers for new transactions, which nobody else gets; empty: there are no more."""
        if self.epoch > EPOCH_MAX:
            return range(0)
        first = self._next
        stop = min(first + BLOCK, NUMBER_MAX)
        self._next = stop
        base = TransactionNumber(self.partition, self.epoch, 0).pack()
        return range(base + first, base + stop)

    # -- deciding

    def admits(self, transactions: Iterable[int]) -> bool:
        """Whether these may be decided: nobody was told that one of them has aborted."""
        return all(self._is_ours(each) and not self._has_given_up(each) for each in transactions)

    def is_known(self, transactions: Iterable[int]) -> bool:
        """Whether these are decided already: the same request has come twice."""
        return any(
            each in self._appended
            or each in self._committed
            or (each & NUMBER_MAX) in self._forgotten
            for each in transactions
        )

    def appended(self, participants: Mapping[int, Collection[str]], first: int) -> None:
        """Note records of decisions that were appended as one batch, `first` the first offset."""
        for offset, (transaction, names) in enumerate(participants.items(), first):
            self._appended[transaction] = TransactionDecision(offset, set(names))

    def tell(self, transaction: int, told: Callable[[TransactionOutcome], None]) -> None:
        """Call `told` with the outcome of a transaction that is decided, possibly at once."""
        if transaction in self._appended:
            self._waiting.setdefault(transaction, []).append(told)
        else:
            told(TransactionOutcome.COMMITTED)

    def committed(self, stop: int) -> list[Callable[[], None]]:
        """Note that the log is committed below `stop`. Returns what is to be called."""
        calls: list[Callable[[], None]] = []
        for transaction, decision in list(self._appended.items()):
            if decision.offset >= stop:
                break
            self._committed[transaction] = self._appended.pop(transaction)
            calls += self._calls(transaction, TransactionOutcome.COMMITTED)
        return calls

    def end(self) -> list[Callable[[], None]]:
        """Lead no more: what waits is unknown here. Returns what is to be called."""
        return [
            call
            for transaction in list(self._waiting)
            for call in self._calls(transaction, TransactionOutcome.UNKNOWN)
        ]

    def _calls(self, transaction: int, outcome: TransactionOutcome) -> list[Callable[[], None]]:
        return [partial(told, outcome) for told in self._waiting.pop(transaction, ())]

    # -- answering

    def outcome(self, transaction: int) -> TransactionOutcome:
        """Return the outcome; what is not decided by now never will be.

        Nobody may ask for a transaction who was heard to have no part of it (see `heard`).
        """
        if transaction in self._committed:
            return TransactionOutcome.COMMITTED
        if transaction in self._appended or not is_of_cluster(transaction):
            return TransactionOutcome.UNKNOWN
        number = TransactionNumber.of(transaction)
        if number.partition != self.partition or number.epoch > self.epoch:
            return TransactionOutcome.UNKNOWN
        if number.epoch == self.epoch:
            if number.number in self._forgotten:
                return TransactionOutcome.COMMITTED
            self._given_up.add(number.number, number.number + 1)
        return TransactionOutcome.ABORTED

    def _is_ours(self, transaction: int) -> bool:
        return is_of_cluster(transaction) and TransactionNumber.of(transaction)[:2] == (
            self.partition,
            self.epoch,
        )

    def _has_given_up(self, transaction: int) -> bool:
        return (transaction & NUMBER_MAX) in self._given_up

    # -- forgetting

    def unheard(self) -> dict[str, list[int]]:
        """Return the committed transactions of which each participant may still have a part."""
        found: dict[str, list[int]] = {}
        for transaction, decision in self._committed.items():
            for name in decision.participants:
                found.setdefault(name, []).append(transaction)
        return found

    def heard(self, participant: str, transactions: Iterable[int]) -> list[int]:
        """Note that a participant has no part of these whose outcome is not safe.

        Returns the offsets of records that are not needed any more.
        """
        free = []
        for transaction in transactions:
            decision = self._committed.get(transaction)
            if decision is None:
                continue
            decision.participants.discard(participant)
            if not decision.participants:
                free.append(self._committed.pop(transaction).offset)
                if self._is_ours(transaction):
                    number = transaction & NUMBER_MAX
                    self._forgotten.add(number, number + 1)
        return free
