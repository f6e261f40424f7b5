"""One log's parts of transactions, from their preparation until nobody need remember the outcome.

A part is prepared (written, and with durability FSYNC flushed), then resolved by the transaction's
outcome, then the outcome is written down with the settlements, then that is flushed. Only then may
the decision about the transaction be forgotten (leveret.storage.decisions). Called by the log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leveret.ports.callbacks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.storage.checkpoint import Part

    Prepared = Callable[[Exception | None], None]

__all__ = ["TransactionParticipants"]


class TransactionParticipants:
    """The parts of one log. `remembered(transaction)` is called when its outcome is safe here.

    `report(callback, error)` is told of whoever was told of a part, and raised.
    """

    __slots__ = (
        "_flushing",
        "_preparing",
        "_remembered",
        "_report",
        "_undone",
        "_written",
        "resolved",
        "unresolved",
    )

    def __init__(
        self,
        unresolved: dict[int, Part],
        remembered: Callable[[int], None],
        report: Callable[[object, Exception], None],
    ) -> None:
        self.unresolved = unresolved
        self.resolved: list[int] = []  # the outcome is to be written down
        self._remembered = remembered
        self._report = report
        self._preparing: dict[int, Prepared] = {}  # they wait for a flush, in the order of writing
        self._undone: frozenset[int] = frozenset()  # aborted before they were flushed
        self._written: list[int] = []  # the outcome is written down, and waits for a flush
        self._flushing = (0, 0)  # how many of the two the flush under way covers

    def limit(self, durable: int) -> int:
        """How far records may be shown of those before `durable`."""
        firsts = [part.first for part in self.unresolved.values() if part.first < part.stop]
        return min([durable, *firsts])

    @property
    def waits(self) -> bool:
        """Whether something wants to be flushed, whatever else does."""
        return bool(self._preparing)

    def await_flush(self, transaction: int, prepared: Prepared) -> None:
        """Call `prepared` once what was written so far is flushed, or lost."""
        self._preparing[transaction] = prepared

    def undo(self, transaction: int) -> bool:
        """A part is aborted. False while it waits for its flush: it may yet be lost altogether."""
        if transaction in self._preparing:
            self._undone |= {transaction}
            return False
        return True

    def resolve(self, transaction: int) -> None:
        """The outcome of a part was applied, in memory."""
        del self.unresolved[transaction]
        self.resolved.append(transaction)

    # -- writing and flushing

    def outcomes_written(self, *, flushes: bool) -> None:
        """What was resolved is written down; that must be flushed, too, where the log `flushes`."""
        written, self.resolved = self.resolved, []
        if flushes:
            self._written += written
        else:
            self._remember(written)

    def flush_begins(self) -> None:
        """All that was written so far is being flushed."""
        self._flushing = (len(self._preparing), len(self._written))

    def flushed(self) -> list[int]:
        """It is on the disk. Returns the transactions that were aborted meanwhile."""
        prepared_count, written_count = self._flushing
        self._remember(self._written[:written_count])
        del self._written[:written_count]
        undone = []
        for transaction in list(self._preparing)[:prepared_count]:
            prepared = self._preparing.pop(transaction)
            if transaction in self._undone:
                self._undone -= {transaction}
                undone.append(transaction)
            else:
                self._tell([prepared], None)
        return undone

    def lose(self, failure: Exception) -> None:
        """What waits for a flush is lost."""
        preparing, self._preparing = self._preparing, {}
        self._undone = frozenset()
        for transaction in preparing:
            del self.unresolved[transaction]
        self._tell(preparing.values(), failure)

    def close(self) -> None:
        """The log is deleted: its part never matters again, whatever becomes of the others."""
        known = [*self.unresolved, *self.resolved, *self._written]
        self.unresolved.clear()
        self.resolved, self._written = [], []
        self._remember(known)
        preparing, self._preparing = self._preparing, {}
        self._tell(preparing.values(), None)

    def _tell(self, waiting: Iterable[Prepared], failure: Exception | None) -> None:
        call_each((partial(prepared, failure) for prepared in waiting), self._report)

    def _remember(self, transactions: list[int]) -> None:
        for transaction in transactions:
            self._remembered(transaction)
