"""One log's parts of transactions, from prepare until the outcome need not be remembered.

A part is prepared (written, and with durability FSYNC flushed), then resolved by the transaction's
outcome, then the outcome is written with the settlements, then that is flushed. Only then may the
decision about the transaction be dropped (leveret.storage.decisions). Called by the log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leveret.ports.callbacks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.storage.checkpoint import TransactionPart

    Prepared = Callable[[Exception | None], None]

__all__ = ["TransactionParticipants"]


class TransactionParticipants:
    """Parts of one log in transactions. `remembered(id)` is called once its outcome is safe here.

    Parts that are `preparing` wait for a flush, in the order of writing, and so do outcomes that
    were `written`. `report(callback, error)` is called for callbacks that raise.
    """

    __slots__ = (
        "_ended",
        "_remembered",
        "_report",
        "_undone",
        "preparing",
        "resolved",
        "unresolved",
        "written",
    )

    def __init__(
        self,
        unresolved: dict[int, TransactionPart],
        remembered: Callable[[int], None],
        report: Callable[[object, Exception], None],
    ) -> None:
        self.unresolved = unresolved
        self.resolved: list[int] = []  # the outcome is to be written down
        self._remembered = remembered
        self._report = report
        self.preparing: dict[int, Prepared] = {}
        self._undone: frozenset[int] = frozenset()  # aborted before they were flushed
        self.written: list[int] = []
        self._ended = (0, 0)  # of both, ever

    def limit(self, durable: int) -> int:
        """Return the end of the records that may be delivered, at most `durable`."""
        firsts = [part.first for part in self.unresolved.values() if part.first < part.stop]
        return min([durable, *firsts])

    def await_flush(self, transaction: int, prepared: Prepared) -> None:
        """Call `prepared` once what was written so far is flushed, or has failed."""
        self.preparing[transaction] = prepared

    def undo(self, transaction: int) -> bool:
        """Abort a part; return False while it waits for its flush, since it may yet be lost."""
        if transaction in self.preparing:
            self._undone |= {transaction}
            return False
        return True

    def resolve(self, transaction: int) -> None:
        """Note that the outcome of a part was applied, in memory."""
        del self.unresolved[transaction]
        self.resolved.append(transaction)

    # -- writing and flushing

    def outcomes_written(self, *, flushes: bool) -> None:
        """Note that outcomes are written; they wait for a flush where the log `flushes`."""
        written, self.resolved = self.resolved, []
        if flushes:
            self.written += written
        else:
            self._remember(written)

    @property
    def waiting(self) -> tuple[int, int]:
        """Parts and outcomes that have ever waited: a flush that begins now covers so many."""
        return self._ended[0] + len(self.preparing), self._ended[1] + len(self.written)

    def flushed(self, waiting: tuple[int, int]) -> list[int]:
        """Handle the success of a flush, which began when so many were `waiting`.

        Returns the transactions that were aborted meanwhile.
        """
        prepared_count, written_count = waiting[0] - self._ended[0], waiting[1] - self._ended[1]
        self._ended = waiting
        self._remember(self.written[:written_count])
        del self.written[:written_count]
        undone = []
        for transaction in list(self.preparing)[:prepared_count]:
            prepared = self.preparing.pop(transaction)
            if transaction in self._undone:
                self._undone -= {transaction}
                undone.append(transaction)
            else:
                self._tell([prepared], None)
        return undone

    def refuse(self, failure: Exception) -> None:
        """Fail the parts that wait for a flush, which others have to copy: that may take long.

        They stand in the log, and are to be undone.
        """
        preparing = self.preparing
        self.preparing = dict.fromkeys(preparing, tell_nobody)
        self._tell(preparing.values(), failure)

    def lose(self, failure: Exception) -> None:
        """Fail the parts that wait for a flush."""
        preparing, self.preparing = self.preparing, {}
        self._ended = self._ended[0] + len(preparing), self._ended[1]
        self._undone = frozenset()
        for transaction in preparing:
            del self.unresolved[transaction]
        self._tell(preparing.values(), failure)

    def close(self) -> None:
        """Release all transactions, because the log is deleted and its part does not matter."""
        known = [*self.unresolved, *self.resolved, *self.written]
        self.unresolved.clear()
        self.resolved, self.written = [], []
        self._remember(known)
        preparing, self.preparing = self.preparing, {}
        self._tell(preparing.values(), None)

    def _tell(self, waiting: Iterable[Prepared], failure: Exception | None) -> None:
        call_each((partial(prepared, failure) for prepared in waiting), self._report)

    def _remember(self, transactions: list[int]) -> None:
        for transaction in transactions:
            self._remembered(transaction)


def tell_nobody(failure: Exception | None) -> None:
    """Do nothing: the part has failed before."""
