"""Pieces of a replay: which records one commit publishes.

Records are in one order: that of the batches of the archive, in a batch by partition, there by
offset. A commit's number is how many records lie before its end. So the last number that the
broker has committed says where to go on, however large the pieces of this run and of the one
before are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["OffsetBucket", "ReplayPiece", "cut_pieces", "needs_cutting", "skip_rows"]

RANGES_MAX = 1000  # of a piece: they are one condition of a query


class OffsetBucket(NamedTuple):
    """Records of a partition with offsets [first, end): how many, and the bytes they have."""

    partition: int
    first: int
    end: int
    rows: int
    bytes: int


class ReplayPiece(NamedTuple):
    """Records that one commit publishes, in their order, and the commit's number."""

    number: int
    ranges: tuple[OffsetBucket, ...]

    @property
    def rows(self) -> int:
        """Number of records."""
        return sum(each.rows for each in self.ranges)


def needs_cutting(
    buckets: Sequence[OffsetBucket], before: int, done: int, piece_bytes: int
) -> list[int]:
    """Return the indexes of buckets that are too large for a piece, or in which a run has ended.

    `before` is the number of records before the first bucket, `done` that of committed ones.
    """
    found = []
    for index, each in enumerate(buckets):
        is_cut = before < done < before + each.rows
        if each.rows > 1 and (is_cut or each.bytes > piece_bytes):
            found.append(index)
        before += each.rows
    return found


def skip_rows(
    buckets: Sequence[OffsetBucket], before: int, done: int
) -> tuple[int, Sequence[OffsetBucket]]:
    """Return the number of records before what is left to do, and what is left.

    Raises ValueError where the committed ones end within a bucket: it has to be cut.
    """
    for index, each in enumerate(buckets):
        if before >= done:
            return before, buckets[index:]
        before += each.rows
        if before > done:
            raise ValueError(f"{done} records end within offsets {each.first} to {each.end}")
    return before, ()


def cut_pieces(
    buckets: Sequence[OffsetBucket], before: int, piece_bytes: int
) -> Iterator[ReplayPiece]:
    """Yield pieces of about these bytes at most, or of one bucket that has more."""
    ranges: list[OffsetBucket] = []
    size = 0
    for each in buckets:
        if not each.rows:
            continue
        if ranges and (size + each.bytes > piece_bytes or len(ranges) == RANGES_MAX):
            yield ReplayPiece(before, tuple(ranges))
            ranges, size = [], 0
        if ranges and ranges[-1].partition == each.partition:
            ranges[-1] = _joined(ranges[-1], each)
        else:
            ranges.append(each)
        size += each.bytes
        before += each.rows
    if ranges:
        yield ReplayPiece(before, tuple(ranges))


def _joined(one: OffsetBucket, two: OffsetBucket) -> OffsetBucket:
    """Return neighbours as one; there may be a gap of offsets without records between them."""
    return OffsetBucket(
        one.partition, one.first, two.end, one.rows + two.rows, one.bytes + two.bytes
    )
