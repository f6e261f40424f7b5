"""Epochs of a log: at which offset the records of each leader's reign begin."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["NO_EPOCH", "EpochEnd", "EpochIndex"]

NO_EPOCH = 0  # of a log without records; leaders begin with 1


class EpochEnd(NamedTuple):
    """An epoch that has records in a log, and the offset at which these end."""

    epoch: int
    end: int


class EpochIndex:
    """Epochs that have records in a log, ascending; each batch has its own in its header.

    The index can be rebuilt from the log at any time. An epoch without records is not in it; nor
    are those of which no record is left, and what was written before the log had replicas.
    """

    def __init__(self, epochs: Iterable[tuple[int, int]] = ()) -> None:
        """Note `epochs`: each with the offset of its first record. Raises ValueError."""
        self._epochs: list[int] = []
        self._firsts: list[int] = []
        for epoch, first in epochs:
            if self._firsts and first <= self._firsts[-1]:
                raise ValueError(f"epoch {epoch} begins at {first}, before an earlier one ends")
            self.add(epoch, first)

    def __repr__(self) -> str:
        return f"EpochIndex({list(self)})"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over (epoch, offset of its first record)."""
        return iter(list(zip(self._epochs, self._firsts, strict=True)))

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def last(self) -> int:
        """Epoch of the last record; NO_EPOCH in an empty log."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def add(self, epoch: int, offset: int) -> None:
        """Note a batch of `epoch` at `offset`, the end of the log so far.

        Raises ValueError for an epoch older than the last one: no leader writes such a batch.
        """
        if epoch < self.last:
            raise ValueError(f"epoch {epoch} at offset {offset} comes after epoch {self.last}")
        if epoch > self.last:
            self._epochs.append(epoch)
            self._firsts.append(offset)

    def truncate(self, end: int) -> None:
        """Forget epochs whose records begin at `end` or later."""
        while self._firsts and self._firsts[-1] >= end:
            self._firsts.pop()
            self._epochs.pop()

    def forget(self, first: int) -> None:
        """Forget epochs whose records all stand before offset `first`, where the log begins."""
        gone = max(bisect_right(self._firsts, first) - 1, 0)
        del self._epochs[:gone]
        del self._firsts[:gone]

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the last epoch up to `epoch` that has records, and where these end.

        Another log agrees with this one at most up to there, if `epoch` is its last one. Where all
        epochs here are later, what stands before them may be of any: `epoch` itself is returned,
        and where they begin.
        """
        at = bisect_right(self._epochs, epoch)
        end = self._firsts[at] if at < len(self._firsts) else log_end
        return EpochEnd(self._epochs[at - 1] if at else epoch, end)
