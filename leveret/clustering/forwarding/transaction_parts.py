"""Parts of transactions in a partition that is led here, prepared for clients of other nodes.

Each is resolved by the node whose client commits, or by whoever has asked for the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.clustering.forwarding.wire import PrepareOutcome
from leveret.errors import StorageError
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.clustering.forwarding.wire import PrepareTransaction
    from leveret.core.queues.open_queue import OpenQueue

    Ranges = Sequence[tuple[int, int]]

__all__ = ["ForwardedPart", "LeaseKeeper", "TransactionParts"]


class LeaseKeeper(Protocol):
    """Holder of the leases of what a transaction settles."""

    def take_back(self, ranges: Ranges) -> bool:
        """Hold leases again. False: it has ended, and they return to the queue."""
        ...


@dataclass(eq=False)
class ForwardedPart:
    """A part of a transaction (see Waiter: for its records). `first` … `stop` are its records."""

    settles: Ranges
    keeper: LeaseKeeper
    answer: Callable[[PrepareOutcome, str], None]
    since: float
    is_abandoned: bool = False  # by the node that has it prepared
    is_answered: bool = False
    first: int = 0
    stop: int = 0
    resolved: Callable[[], None] | None = None

    def tell(self, outcome: PrepareOutcome, text: str = "") -> None:
        """Answer who has it prepared, once."""
        if not self.is_answered:
            self.is_answered = True
            self.answer(outcome, text)

    def done(self, *, failed: bool) -> None:  # noqa: ARG002  # its outcome holds, whoever leads
        """Tell that the part is applied, once its outcome is known."""
        resolved, self.resolved = self.resolved, None
        if resolved is not None:
            resolved()


class TransactionParts:
    """Parts in `part`, the queue of the partition. `changed` is called when there is one more."""

    def __init__(
        self, part: OpenQueue, seconds: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        self._part = part
        self._seconds = seconds
        self._changed = changed
        self._parts: dict[int, ForwardedPart] = {}

    def __contains__(self, transaction: object) -> bool:
        return transaction in self._parts

    def __bool__(self) -> bool:
        return bool(self._parts)

    def to_ask(self, patience: float) -> list[int]:
        """Return transactions whose outcome nobody has told for so many seconds, or will tell."""
        since = self._seconds() - patience
        return [
            each for each, part in self._parts.items() if part.is_abandoned or part.since <= since
        ]

    # -- preparing

    def prepare(
        self,
        asked: PrepareTransaction,
        leased: Ranges,
        keeper: LeaseKeeper,
        answer: Callable[[PrepareOutcome, str], None],
    ) -> None:
        """Prepare a part, and answer once it is, or cannot be. `keeper` has held `leased`."""
        transaction, part = asked.transaction, self._part
        if transaction in self._parts:
            answer(PrepareOutcome.FAILED, "the transaction has a part here already")
            return
        if part.held and not part.deleted:
            part.when_released(partial(self.prepare, asked, leased, keeper, answer))
            return
        own = self._parts[transaction] = ForwardedPart(leased, keeper, answer, self._seconds())
        self._changed()
        records = BatchBuilder()
        if asked.batch is not None:
            records.add_batch(asked.batch)
        part.flush()  # publishes of others go first
        if part.deleted:
            self._give_up(transaction, PrepareOutcome.FAILED, "another node leads, or nobody does")
        elif records.count and not part.has_room(records):
            self._give_up(transaction, PrepareOutcome.NO_ROOM, "")
        else:
            self._write(transaction, own, records)

    def _write(self, transaction: int, own: ForwardedPart, records: BatchBuilder) -> None:
        part = self._part
        part.take_in(records)
        settles = list(own.settles) if part.settles_in_log else []
        own.first = part.log.end
        own.stop = own.first + records.count
        if not records.count and not settles:
            own.tell(PrepareOutcome.PREPARED)
            return
        try:
            part.prepare(transaction, records, settles, partial(self._prepared, transaction), own)
        except StorageError as error:
            self._prepared(transaction, error)

    def _prepared(self, transaction: int, error: Exception | None) -> None:
        own = self._parts.get(transaction)
        if own is None:
            return  # it was resolved meanwhile
        if error is None:
            own.tell(PrepareOutcome.PREPARED)
        else:
            self._give_up(transaction, PrepareOutcome.FAILED, str(error))

    def _give_up(self, transaction: int, outcome: PrepareOutcome, text: str) -> None:
        own = self._parts.pop(transaction)
        self._return(own)
        own.tell(outcome, text)

    def _return(self, own: ForwardedPart) -> None:
        """Return leases to who has held them, or to the queue."""
        if own.settles and not own.keeper.take_back(own.settles) and not self._part.deleted:
            self._part.return_(own.settles, failed=False)

    # -- resolving

    def resolve(
        self, transaction: int, *, committed: bool, resolved: Callable[[], None] | None = None
    ) -> None:
        """Apply or undo a part; `resolved` is called once that is visible, at once without one."""
        own = self._parts.pop(transaction, None)
        part = self._part
        if own is None or part.deleted:
            if resolved is not None:
                resolved()
        elif not committed:
            part.undo(transaction, own.first, own.stop)
            self._return(own)
            own.tell(PrepareOutcome.FAILED, "the transaction was given up")
            if resolved is not None:
                resolved()
        else:
            own.resolved = resolved
            has_records = own.first < own.stop
            part.carry_out(transaction, list(own.settles), None if has_records else own)

    def abandoned(self, keeper: LeaseKeeper) -> None:
        """Note that a node is gone, which will not tell outcomes."""
        for own in self._parts.values():
            if own.keeper is keeper:
                own.is_abandoned = True
        if self._parts:
            self._changed()
