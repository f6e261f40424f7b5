"""Decisions for the clients of one node: see ports.TransactionDecider.

Whatever fails after the leader was asked to decide, the outcome is asked for until it is certain:
so a client is told the truth, or nothing where its node ends before that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.cluster.transactions.decisions import TransactionOutcome
from leveret.cluster.transactions.numbers import TransactionNumber
from leveret.clustering.transactions.participants import Participant
from leveret.errors import LeveretError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from leveret.clustering.transactions.partitions import DecisionPartitions, TransactionServices

__all__ = ["ClusterDecider"]

logger = logging.getLogger(__name__)

DRAW_SECONDS_MAX: Final = 10.0  # an election included
USE_SECONDS_MAX: Final = 1.5  # of a number, while its leader waits
RETRY_SECONDS_MIN: Final = 0.02
RETRY_SECONDS_MAX: Final = 1.0


class ClusterDecider:
    """`TransactionDecider` of a node. `driving` are the transactions whose outcome it waits for."""

    def __init__(self, services: TransactionServices, partitions: DecisionPartitions) -> None:
        self.driving: set[int] = set()
        self._services = services
        self._partitions = partitions
        self._numbers = range(0)
        self._waiting: list[Callable[[], None]] = []
        self._drawing: asyncio.Task[None] | None = None
        self._has_failed = False  # to draw numbers, for long
        partitions.led_changes.append(self._led_changed)
        partitions.give_back = self.give_back

    @property
    def name(self) -> str:
        """Name of this node's process among the participants."""
        services = self._services
        return str(Participant(node=services.node, session=services.coordinator.session))

    # -- numbers

    def is_needed(self, logs: Collection[Any]) -> bool:
        """Whether a log has replicas, or another node has it (see TransactionDecider)."""
        return any(getattr(log, "is_replicated", False) for log in logs)

    def draw(self) -> int | None:
        """Return the number of a new transaction (see TransactionDecider)."""
        if self._numbers and self._is_current(self._numbers.start):
            transaction, self._numbers = self._numbers[0], self._numbers[1:]
            self.driving.add(transaction)
            return transaction
        self._numbers = range(0)
        for partition in self._partitions.with_leader:
            led = self._partitions.led(partition)
            if led is not None and (numbers := led.draw()):
                self._numbers = numbers
                return self.draw()
        if self._has_failed:
            self._has_failed = False
            raise StorageError("no node decides about transactions: too many of them are down")
        return None

    def _is_current(self, transaction: int) -> bool:
        number = TransactionNumber.of(transaction)
        return self._partitions.epoch_of(number.partition) == number.epoch

    def when_ready(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once there are numbers, or are none for long (see TransactionDecider)."""
        self._waiting.append(go_on)
        if self._drawing is None:
            self._drawing = self._services.spawn(self._draw())

    async def _draw(self) -> None:
        """Have a node that leads decisions give numbers."""
        loop = asyncio.get_running_loop()
        ends, delay = loop.time() + DRAW_SECONDS_MAX, RETRY_SECONDS_MIN
        while not self._numbers and loop.time() < ends:
            for partition in self._partitions.with_leader:
                try:
                    answer = await self._partitions.ask(partition, {"ask": "numbers"})
                    self._numbers = range(*answer["numbers"])
                except LeveretError as error:
                    logger.debug("decisions %d give no numbers: %s", partition, error)
                if self._numbers:
                    break
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_SECONDS_MAX)
        self._drawing = None
        self._has_failed = not self._numbers
        self._go_on()

    def _led_changed(self) -> None:
        if self._waiting and self._partitions.led(next(iter(self._partitions.with_leader), 0)):
            self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()
        self._has_failed = False

    def ended(self, transaction: int) -> None:
        """Note that a transaction was resolved here (see TransactionDecider)."""
        self.driving.discard(transaction)

    async def give_back(self, partition: int, epoch: int) -> bool:
        """Draw no more of the numbers of a leader that is to be replaced, as they are left.

        Returns whether no transaction has one any more, as soon as that is so.
        """
        of_leader = (partition, epoch)
        if self._numbers and TransactionNumber.of(self._numbers.start)[:2] == of_leader:
            self._numbers = range(0)
        loop = asyncio.get_running_loop()
        ends = loop.time() + USE_SECONDS_MAX
        while any(TransactionNumber.of(each)[:2] == of_leader for each in self.driving):
            if loop.time() >= ends:
                return False
            await asyncio.sleep(RETRY_SECONDS_MIN)
        return True

    # -- deciding

    def decide(
        self,
        transactions: Mapping[int, Collection[Any]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        """Have transactions decided as one (see TransactionDecider)."""
        partitions = {TransactionNumber.of(each)[:2] for each in transactions}
        if len(partitions) > 1:
            self._finish(TransactionOutcome.ABORTED, decided)
            return
        participants = {
            transaction: [self.name, *self._names(transaction, logs)]
            for transaction, logs in transactions.items()
        }
        ((number, epoch),) = partitions
        led = self._partitions.led(number)
        if led is None or led.epoch != epoch:
            self._services.spawn(self._decide(number, participants, decided))
            return

        def told(outcome: TransactionOutcome) -> None:
            if outcome is TransactionOutcome.UNKNOWN:
                self._services.spawn(self._find_out(participants, decided))
            else:
                self._finish(outcome, decided)

        led.decide(participants, told)

    def _names(self, transaction: int, logs: Collection[Any]) -> list[str]:
        """Return the names of logs that will have to know the outcome."""
        names = []
        for log in logs:
            name = self._name_of(transaction, log)
            if name:
                names.append(name)
        return names

    def _name_of(self, transaction: int, log: Any) -> str:
        participant = getattr(log, "participant", None)
        if participant is not None:  # it stands for one of another node
            return str(participant(transaction))
        log = getattr(log, "settlements_log", log)
        if not log.takes_part(transaction):
            return ""
        if log.is_replicated:
            return str(Participant(log.partition, log.epoch or log.epochs.last))
        return str(Participant(node=self._services.node, log=log.key.decode()))

    async def _decide(
        self,
        number: int,
        participants: Mapping[int, list[str]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        question = {"ask": "decide", "transactions": list(participants.items())}
        try:
            answer = await self._partitions.ask(number, question)
            outcome = TransactionOutcome(answer["outcome"])
        except LeveretError as error:
            logger.info("the outcome of a transaction is not known yet: %s", error)
            outcome = TransactionOutcome.UNKNOWN
        if outcome is TransactionOutcome.UNKNOWN:
            await self._find_out(participants, decided)
        else:
            self._finish(outcome, decided)

    async def _find_out(
        self, participants: Mapping[int, list[str]], decided: Callable[[Exception | None], None]
    ) -> None:
        """Ask for the outcome of transactions that are decided together, until it is known."""
        outcome, delay = TransactionOutcome.UNKNOWN, RETRY_SECONDS_MIN
        transaction = next(iter(participants))
        while outcome is TransactionOutcome.UNKNOWN:
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_SECONDS_MAX)
            try:
                outcome = await self._partitions.outcome(transaction, self.name)
            except LeveretError as error:
                logger.debug("the outcome of a transaction is not known yet: %s", error)
        self._finish(outcome, decided)

    @staticmethod
    def _finish(outcome: TransactionOutcome, decided: Callable[[Exception | None], None]) -> None:
        has_committed = outcome is TransactionOutcome.COMMITTED
        decided(None if has_committed else StorageError("the transaction was given up"))
