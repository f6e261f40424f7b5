"""Numbers of transactions. Each says who decides, so that any part of it can be asked for.

    u64    8 bits   0: the node itself; else the partition of the decisions, plus one
          24 bits   epoch of that partition's leader
          32 bits   number of the transaction in that epoch

Another leader of the partition has another epoch, and knows all decisions of earlier ones. So what
it does not know of them has aborted for good, though nobody has written that down.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["EPOCH_MAX", "HOME_MAX", "NUMBER_MAX", "TransactionNumber", "is_of_cluster"]

HOME_MAX: Final = (1 << 56) - 1  # numbers up to it are decided by the node itself
EPOCH_MAX: Final = (1 << 24) - 1
NUMBER_MAX: Final = (1 << 32) - 1


def is_of_cluster(transaction: int) -> bool:
    """Whether a partition of the decisions decides, not a node by itself."""
    return transaction > HOME_MAX


class TransactionNumber(NamedTuple):
    """Parts of a transaction's number."""

    partition: int
    epoch: int
    number: int

    @classmethod
    def of(cls, transaction: int) -> TransactionNumber:
        """Return the parts of a number, which must be one `is_of_cluster`."""
        assert is_of_cluster(transaction), "the node itself decides"
        high = transaction >> 32
        return cls((high >> 24) - 1, high & EPOCH_MAX, transaction & NUMBER_MAX)

    def pack(self) -> int:
        """Return the number."""
        return (self.partition + 1) << 56 | self.epoch << 32 | self.number
