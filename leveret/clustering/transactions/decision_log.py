"""A partition of the decisions while this node leads it: the machine, and its log.

record: body u64 transaction, little-endian, and the names of its participants, in UTF-8, each
ended by a line feed; exchange, routing key and content header empty
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

from leveret.cluster.transactions.decisions import (
    DecisionLeader,
    TransactionDecision,
    TransactionOutcome,
)
from leveret.core.logs.log_scan import LogScan
from leveret.errors import StorageError
from leveret.ports.callbacks import call_each
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from leveret.ports import TopicLog

__all__ = ["LedDecisions", "pack_decision", "parse_decision"]

TRANSACTION = struct.Struct("<Q")


def pack_decision(transaction: int, participants: Iterable[str]) -> bytes:
    """Return the body of a record."""
    return TRANSACTION.pack(transaction) + "".join(f"{each}\n" for each in participants).encode()


def parse_decision(body: bytes) -> tuple[int, set[str]]:
    """Return the transaction and the participants of a record."""
    (transaction,) = TRANSACTION.unpack_from(body)
    return transaction, set(body[TRANSACTION.size :].decode().splitlines())


class LedDecisions:
    """One partition of the decisions in one epoch. It answers once it `is_loaded`.

    While it `is_leaving`, because it is to be handed over, it gives no numbers and forgets nothing.
    It `is_paused` once none of its numbers is in use.
    """

    def __init__(
        self,
        partition: int,
        log: TopicLog,
        epoch: int,
        wall_ms: Callable[[], int],
        report: Callable[[object, Exception], None],
    ) -> None:
        self.epoch = epoch
        self.is_leaving = self.is_paused = self.has_ended = False
        self._partition = partition
        self._log = log
        self._wall_ms = wall_ms
        self._report = report
        self._machine: DecisionLeader | None = None
        self._asked: dict[str, set[int]] = {}
        log.on_commit(self._committed)
        log.on_failure(self._failed)

    @property
    def is_loaded(self) -> bool:
        """Whether it knows the decisions of earlier epochs."""
        return self._machine is not None

    @property
    def machine(self) -> DecisionLeader:
        """Machine of a partition that is loaded."""
        assert self._machine is not None, "it is loaded first"
        return self._machine

    async def load(self) -> None:
        """Read the decisions of earlier epochs, all of which are committed. Raises StorageError."""
        found = {}
        scan = LogScan(self._log, partial(self._report, self))
        while batches := await scan.read():
            for batch in batches:
                for offset, _, _, _, _, _, body in batch.records():
                    if offset not in self._log.settled:
                        transaction, participants = parse_decision(body)
                        found[transaction] = TransactionDecision(offset, participants)
        self._machine = DecisionLeader(self._partition, self.epoch, found)

    def draw(self) -> range:
        """Return numbers for new transactions; empty: there are none, or none now."""
        return range(0) if self.is_leaving else self.machine.draw()

    def decide(
        self,
        participants: Mapping[int, Collection[str]],
        told: Callable[[TransactionOutcome], None],
    ) -> None:
        """Commit transactions together; `told` is called with the outcome once it is certain.

        It is unknown where this node ceases to lead before that.
        """
        machine, log = self.machine, self._log
        if not machine.admits(participants):
            told(TransactionOutcome.ABORTED)
            return
        if not machine.is_known(participants) and not self._append(participants):
            told(TransactionOutcome.ABORTED)
            return
        machine.tell(list(participants)[-1], told)
        if log.committed == log.end:
            self._committed()

    def _append(self, participants: Mapping[int, Collection[str]]) -> bool:
        """Append records as one batch, or give the transactions up for good."""
        log, now_ms = self._log, self._wall_ms()
        for transaction, names in participants.items():
            body = pack_decision(transaction, names)
            log.builder.add(RecordFlag.PERSISTENT, now_ms, b"", b"", b"", body)
        try:
            first = log.append()
        except StorageError:
            log.builder.clear()
            for transaction in participants:
                self.machine.outcome(transaction)
            return False
        self.machine.appended(participants, first)
        return True

    def _committed(self) -> None:
        if self._machine is not None:
            call_each(self._machine.committed(self._log.committed), self._report)

    def _failed(self, _error: Exception) -> None:
        """Do nothing: the log follows from now on, and another leader knows what it has."""

    def end(self) -> None:
        """Lead no more: what waits must be asked of the next leader."""
        self.has_ended = True
        self._log.detach(self._committed, self._failed)
        if self._machine is not None:
            call_each(self._machine.end(), self._report)

    # -- forgetting

    def to_ask(self) -> dict[str, list[int]]:
        """Return what to ask participants for: what was there a while ago, too."""
        unheard = self.machine.unheard()
        before, self._asked = self._asked, {name: set(ids) for name, ids in unheard.items()}
        again = {
            name: [each for each in ids if each in before.get(name, ())]
            for name, ids in unheard.items()
        }
        return {name: ids for name, ids in again.items() if ids}

    def heard(self, participant: str, transactions: Iterable[int]) -> None:
        """Note that a participant needs the decisions about these no more."""
        free = self.machine.heard(participant, transactions)
        if free:
            self._log.settle([(offset, offset + 1) for offset in sorted(free)])
