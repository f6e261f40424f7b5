"""State of a log beside its records, in control batches: settled, returned, undecided.

    payload of a control batch, little-endian
     0  u8   version and kind: 1 ranges settled since the last one, 2 all ranges settled so far
     1       RangeSet.to_bytes(): pairs of u64 (first, stop)

    the same where messages came back (in quorum queues)
     0  u8   version and kind: 3 what has come back since the last one, 4 all there is to know
     1  u32  count of ranges that came back
     5       for each: u64 first, u64 stop, u32 times returned, u32 times of failure; both so far
             RangeSet.to_bytes(): of kind 3 nothing, of kind 4 all ranges settled so far

    the same where the log takes part in transactions
     0  u8   version and kind: 5 what a transaction will settle if it commits, 6 transactions whose
             outcome has been applied, 7 all there is to know while some are not resolved
     1       kind 5: u64 transaction, RangeSet.to_bytes()
             kind 6: u32 count, so many u64 transactions; u32 count of the ranges of all records
             of aborted ones, these; the ranges settled since the last one
             kind 7: u32 count, for each: u64 transaction, u64 first and u64 stop of its records,
             u32 count of the ranges it will settle, these; then the ranges of aborted records as
             in kind 6, then what follows in kind 4

    the end of a segment that was compacted
     0  u8   version and kind: 8; the batch's offset is where the segment ends

    the same where records were erased, or where the log is compacted
     0  u8   version and kind: 9 what a transaction will erase if it commits, 10 all there is to
             know, 11 the first offset that retention keeps, 12 what was erased since the last one
     1       kind 9: as kind 5
             kind 10: u64 offset as in kind 11, 2**64 - 1 for none; u32 count of the ranges of all
             erased records, these; then as kind 7, with a u8 in front of the count of each
             transaction's ranges: 1, they will be erased, or 0
             kind 11: u64 offset: whatever is missing from it on was superseded
             kind 12: RangeSet.to_bytes()

Records of a transaction stand in a batch with the attribute PENDING. Those of an aborted one are
settled, and told apart for whoever reads what is settled. What a committed one settles stands among
the ranges of kind 6. Erased records are settled, too, by the batch that follows, and nobody reads
them any more.

Every segment begins with a control batch of kind 2, 4, 7 or 10, the checkpoint: the log's own files
are the one source of truth, recovery needs the last segment only, and an older segment can go
whatever control batches it holds (decision 0005).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, NewerFormatError
from leveret.ports.ranges import RangeSet
from leveret.ports.returns import RUN_OFFSETS_MAX, Returns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports.records import Batch

__all__ = [
    "RecoveredState",
    "TransactionPart",
    "apply_payload",
    "checkpoint_payload",
    "compacted_payload",
    "erased_payload",
    "is_checkpoint",
    "is_part",
    "part_payload",
    "resolved_payload",
    "retained_payload",
    "return_payload",
    "settlement_payload",
]

SETTLED_SINCE = 1
SETTLED_ALL = 2
RETURNED_SINCE = 3
TOLD_ALL = 4
PART = 5
RESOLVED_SINCE = 6
TOLD_ALL_UNRESOLVED = 7
COMPACTED = 8
ERASING_PART = 9
TOLD_EVERYTHING = 10
RETAINED_FROM = 11
ERASED_SINCE = 12
CHECKPOINTS = (SETTLED_ALL, TOLD_ALL, TOLD_ALL_UNRESOLVED, TOLD_EVERYTHING)
PARTS = (PART, ERASING_PART)
TELL_PARTS = (TOLD_ALL_UNRESOLVED, TOLD_EVERYTHING)
COUNT = struct.Struct("<I")
TRANSACTION = struct.Struct("<Q")
OFFSET = struct.Struct("<Q")
NO_OFFSET = (1 << 64) - 1
UNRESOLVED = struct.Struct("<QQQ")
RETURNED = struct.Struct("<QQII")
RANGE_BYTES = 16
COUNT_MAX = (1 << 32) - 1


@dataclass(slots=True)
class TransactionPart:
    """One log's part of a transaction: its records [first, stop), and the ranges it will settle.

    `erases`: these ranges will be erased.
    """

    first: int
    stop: int
    settles: RangeSet = field(default_factory=RangeSet)
    erases: bool = False


@dataclass(slots=True)
class RecoveredState:
    """State of a log beside its records, as recovered from control batches."""

    settled: RangeSet = field(default_factory=RangeSet)
    returns: Returns = field(default_factory=Returns)
    undone: RangeSet = field(default_factory=RangeSet)  # records of aborted transactions
    unresolved: dict[int, TransactionPart] = field(
        default_factory=dict
    )  # by transaction, in their order
    erased: RangeSet = field(default_factory=RangeSet)  # deleted records: nobody may read them
    retained_from: int | None = None  # see ports.SharedLog


def settlement_payload(ranges: RangeSet) -> bytes:
    """Encode the ranges settled since the last control batch."""
    return bytes([SETTLED_SINCE]) + ranges.to_bytes()


def return_payload(returns: Returns, changed: RangeSet) -> bytes:
    """Encode the delivery counts of the `changed` records."""
    return bytes([RETURNED_SINCE]) + _pack_returns(returns, changed)


def part_payload(transaction: int, part: TransactionPart) -> bytes:
    """Encode the ranges that a transaction settles, or erases, if it commits."""
    kind = ERASING_PART if part.erases else PART
    return bytes([kind]) + TRANSACTION.pack(transaction) + part.settles.to_bytes()


def resolved_payload(transactions: Sequence[int], undone: RangeSet, settled: RangeSet) -> bytes:
    """Encode the transactions resolved and the ranges settled since the last control batch."""
    ids = COUNT.pack(len(transactions)) + b"".join(map(TRANSACTION.pack, transactions))
    return bytes([RESOLVED_SINCE]) + ids + _pack_ranges(undone) + settled.to_bytes()


def checkpoint_payload(told: RecoveredState) -> bytes:
    """Encode the whole state of a log: the first batch of a segment."""
    erases = bool(told.erased) or any(part.erases for part in told.unresolved.values())
    if erases or told.retained_from is not None:
        retained_from = NO_OFFSET if told.retained_from is None else told.retained_from
        front = bytes([TOLD_EVERYTHING]) + OFFSET.pack(retained_from) + _pack_ranges(told.erased)
        return front + _pack_transactions(told, tells_erasing=True)
    if told.unresolved or told.undone:
        return bytes([TOLD_ALL_UNRESOLVED]) + _pack_transactions(told, tells_erasing=False)
    if told.returns.acquired:
        return bytes([TOLD_ALL]) + _pack_returns(told.returns) + told.settled.to_bytes()
    return bytes([SETTLED_ALL]) + told.settled.to_bytes()


def _pack_transactions(told: RecoveredState, *, tells_erasing: bool) -> bytes:
    """Pack the parts of transactions, and what follows them in a checkpoint."""
    packed = [COUNT.pack(len(told.unresolved))]
    for transaction, part in told.unresolved.items():
        packed.append(UNRESOLVED.pack(transaction, part.first, part.stop))
        if tells_erasing:
            packed.append(bytes([part.erases]))
        packed.append(_pack_ranges(part.settles))
    packed += (_pack_ranges(told.undone), _pack_returns(told.returns), told.settled.to_bytes())
    return b"".join(packed)


def _pack_ranges(ranges: RangeSet) -> bytes:
    return COUNT.pack(len(ranges)) + ranges.to_bytes()


def _pack_returns(returns: Returns, changed: RangeSet | None = None) -> bytes:
    runs = [
        RETURNED.pack(first, stop, min(acquired, COUNT_MAX), min(failures, COUNT_MAX))
        for first, stop, acquired, failures in returns.runs(changed)
    ]
    return COUNT.pack(len(runs)) + b"".join(runs)


def compacted_payload() -> bytes:
    """Encode the end of a compacted segment: its base offset is where the segment ends."""
    return bytes([COMPACTED])


def erased_payload(ranges: RangeSet) -> bytes:
    """Encode the ranges erased since the last control batch."""
    return bytes([ERASED_SINCE]) + ranges.to_bytes()


def retained_payload(offset: int) -> bytes:
    """Encode the first offset that retention keeps."""
    return bytes([RETAINED_FROM]) + OFFSET.pack(offset)


def is_checkpoint(batch: Batch) -> bool:
    """Whether a control batch is a checkpoint, the complete state that begins a segment."""
    return batch.is_control and len(batch.payload) > 0 and batch.payload[0] in CHECKPOINTS


def is_part(batch: Batch) -> bool:
    """Whether a control batch holds what a transaction settles if it commits."""
    return batch.is_control and len(batch.payload) > 0 and batch.payload[0] in PARTS


class _Cursor:
    """Reads a payload from its front. Raises ValueError where it is too short."""

    def __init__(self, payload: memoryview) -> None:
        self.rest = payload

    def take(self, size: int) -> memoryview:
        if len(self.rest) < size:
            raise ValueError(f"{size} bytes are wanted where {len(self.rest)} are left")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))


def apply_payload(data: bytes | memoryview, told: RecoveredState) -> None:
    """Apply a control batch, whose checksum was verified, to the state `told`.

    Raises CorruptBatchError, and NewerFormatError where the kind is not known here.
    """
    payload = memoryview(data)
    if len(payload) == 0 or payload[0] < SETTLED_SINCE:
        raise CorruptBatchError("control batch that says nothing")
    if payload[0] > ERASED_SINCE:
        raise NewerFormatError(f"a control batch (kind {payload[0]})")
    if payload[0] == COMPACTED:
        return  # its offset says where its segment ends
    try:
        _apply(payload[0], _Cursor(payload[1:]), told)
    except ValueError as error:
        raise CorruptBatchError(f"control batch: {error}") from error


def _apply(kind: int, cursor: _Cursor, told: RecoveredState) -> None:
    if kind in PARTS:
        (transaction,) = cursor.unpack(TRANSACTION)
        settles = RangeSet.from_bytes(cursor.rest)
        told.unresolved[transaction] = TransactionPart(0, 0, settles, kind == ERASING_PART)
    elif kind == RETAINED_FROM:
        (told.retained_from,) = cursor.unpack(OFFSET)
    elif kind == ERASED_SINCE:
        told.erased.add_all(list(RangeSet.from_bytes(cursor.rest)))
    else:
        _apply_settlements(kind, cursor, told)


def _apply_settlements(kind: int, cursor: _Cursor, told: RecoveredState) -> None:
    """Apply what was settled and returned, with all that stands in front of it."""
    if kind in CHECKPOINTS:
        told.unresolved.clear()  # it has all that still matter
    if kind == TOLD_EVERYTHING:
        (offset,) = cursor.unpack(OFFSET)
        told.retained_from = None if offset == NO_OFFSET else offset
        told.erased.add_all(list(_unpack_ranges(cursor)))
    if kind in TELL_PARTS:
        _unpack_parts(cursor, told.unresolved, tells_erasing=kind == TOLD_EVERYTHING)
    if kind == RESOLVED_SINCE:
        (count,) = cursor.unpack(COUNT)
        for (transaction,) in TRANSACTION.iter_unpack(cursor.take(count * TRANSACTION.size)):
            told.unresolved.pop(transaction, None)
    if kind == RESOLVED_SINCE or kind in TELL_PARTS:
        told.undone.add_all(list(_unpack_ranges(cursor)))
    if kind in (RETURNED_SINCE, TOLD_ALL) or kind in TELL_PARTS:
        _unpack_returns(cursor, told.returns)
    told.settled.add_all(list(RangeSet.from_bytes(cursor.rest)))


def _unpack_parts(
    cursor: _Cursor, unresolved: dict[int, TransactionPart], *, tells_erasing: bool
) -> None:
    (count,) = cursor.unpack(COUNT)
    for _ in range(count):
        transaction, first, stop = cursor.unpack(UNRESOLVED)
        erases = tells_erasing and bool(cursor.take(1)[0])
        unresolved[transaction] = TransactionPart(first, stop, _unpack_ranges(cursor), erases)


def _unpack_ranges(cursor: _Cursor) -> RangeSet:
    (count,) = cursor.unpack(COUNT)
    return RangeSet.from_bytes(cursor.take(count * RANGE_BYTES))


def _unpack_returns(cursor: _Cursor, returns: Returns) -> None:
    (count,) = cursor.unpack(COUNT)
    for first, stop, acquired, failures in RETURNED.iter_unpack(cursor.take(count * RETURNED.size)):
        if not 0 < stop - first <= RUN_OFFSETS_MAX:
            raise ValueError("a range of returns is too long, or none")
        returns.put(first, stop, acquired, failures)
