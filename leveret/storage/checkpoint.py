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

    the same in a log that is replicated
     0  u8   version and kind: 9, epochs of its records, and all there is to know
     1  u32  count of epochs
     5       for each: u32 epoch, u64 offset of its first record; then a payload of kind 2, 4 or 7

Records of a transaction stand in a batch with the attribute PENDING. Those of an aborted one are
settled, and told apart for whoever reads what is settled. What a committed one settles stands among
the ranges of kind 6.

Every segment begins with a control batch of kind 2, 4, 7 or 9, the checkpoint: the log's own files
are the one source of truth, recovery needs the last segment only, and an older segment can go
whatever control batches it holds (decision 0005).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, NewerFormatError
from leveret.ports.epochs import EpochIndex
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
    "concerns_transactions",
    "is_checkpoint",
    "is_part",
    "part_payload",
    "resolved_payload",
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
TOLD_ALL_EPOCHS = 9
WITHOUT_EPOCHS = (SETTLED_ALL, TOLD_ALL, TOLD_ALL_UNRESOLVED)
CHECKPOINTS = (*WITHOUT_EPOCHS, TOLD_ALL_EPOCHS)
COUNT = struct.Struct("<I")
TRANSACTION = struct.Struct("<Q")
UNRESOLVED = struct.Struct("<QQQ")
RETURNED = struct.Struct("<QQII")
EPOCH = struct.Struct("<IQ")
RANGE_BYTES = 16
COUNT_MAX = (1 << 32) - 1


@dataclass(slots=True)
class TransactionPart:
    """One log's part of a transaction: its records [first, stop), and the ranges it will settle."""

    first: int
    stop: int
    settles: RangeSet = field(default_factory=RangeSet)


@dataclass(slots=True)
class RecoveredState:
    """State of a log beside its records, as recovered from control batches."""

    settled: RangeSet = field(default_factory=RangeSet)
    returns: Returns = field(default_factory=Returns)
    undone: RangeSet = field(default_factory=RangeSet)  # records of aborted transactions
    unresolved: dict[int, TransactionPart] = field(
        default_factory=dict
    )  # by transaction, in their order
    epochs: EpochIndex = field(default_factory=EpochIndex)  # of the records, if it is replicated


def settlement_payload(ranges: RangeSet) -> bytes:
    """Encode the ranges settled since the last control batch."""
    return bytes([SETTLED_SINCE]) + ranges.to_bytes()


def return_payload(returns: Returns, changed: RangeSet) -> bytes:
    """Encode the delivery counts of the `changed` records."""
    return bytes([RETURNED_SINCE]) + _pack_returns(returns, changed)


def part_payload(transaction: int, settles: RangeSet) -> bytes:
    """Encode the ranges that a transaction settles if it commits."""
    return bytes([PART]) + TRANSACTION.pack(transaction) + settles.to_bytes()


def resolved_payload(transactions: Sequence[int], undone: RangeSet, settled: RangeSet) -> bytes:
    """Encode the transactions resolved and the ranges settled since the last control batch."""
    ids = COUNT.pack(len(transactions)) + b"".join(map(TRANSACTION.pack, transactions))
    return bytes([RESOLVED_SINCE]) + ids + _pack_ranges(undone) + settled.to_bytes()


def checkpoint_payload(told: RecoveredState) -> bytes:
    """Encode the whole state of a log: the first batch of a segment."""
    if not told.epochs:
        return _pack_state(told)
    epochs = b"".join(EPOCH.pack(*each) for each in told.epochs)
    return bytes([TOLD_ALL_EPOCHS]) + COUNT.pack(len(told.epochs)) + epochs + _pack_state(told)


def _pack_state(told: RecoveredState) -> bytes:
    if told.unresolved or told.undone:
        parts = _pack_parts(told.unresolved) + _pack_ranges(told.undone)
        rest = _pack_returns(told.returns) + told.settled.to_bytes()
        return bytes([TOLD_ALL_UNRESOLVED]) + parts + rest
    if told.returns.acquired:
        return bytes([TOLD_ALL]) + _pack_returns(told.returns) + told.settled.to_bytes()
    return bytes([SETTLED_ALL]) + told.settled.to_bytes()


def _pack_parts(unresolved: dict[int, TransactionPart]) -> bytes:
    packed = [COUNT.pack(len(unresolved))]
    for transaction, part in unresolved.items():
        packed.append(UNRESOLVED.pack(transaction, part.first, part.stop))
        packed.append(_pack_ranges(part.settles))
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


def is_checkpoint(batch: Batch) -> bool:
    """Whether a control batch is a checkpoint, the complete state that begins a segment."""
    return batch.is_control and len(batch.payload) > 0 and batch.payload[0] in CHECKPOINTS


def is_part(batch: Batch) -> bool:
    """Whether a control batch holds what a transaction settles if it commits."""
    return batch.is_control and len(batch.payload) > 0 and batch.payload[0] == PART


def concerns_transactions(batch: Batch) -> bool:
    """Whether a control batch holds a part of a transaction, or outcomes."""
    return len(batch.payload) > 0 and batch.payload[0] in (PART, RESOLVED_SINCE)


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
    if payload[0] > TOLD_ALL_EPOCHS:
        raise NewerFormatError(f"a control batch (kind {payload[0]})")
    if payload[0] == COMPACTED:
        return  # its offset says where its segment ends
    try:
        _apply(payload[0], _Cursor(payload[1:]), told)
    except ValueError as error:
        raise CorruptBatchError(f"control batch: {error}") from error


def _apply(kind: int, cursor: _Cursor, told: RecoveredState) -> None:
    if kind == PART:
        _unpack_part(cursor, told.unresolved)
        return
    if kind == TOLD_ALL_EPOCHS:
        kind = _unpack_epochs(cursor, told)
    if kind in WITHOUT_EPOCHS:
        told.unresolved.clear()  # it has all that still matter
    if kind == TOLD_ALL_UNRESOLVED:
        _unpack_parts(cursor, told.unresolved)
    if kind == RESOLVED_SINCE:
        _unpack_resolved(cursor, told.unresolved)
    if kind in (RESOLVED_SINCE, TOLD_ALL_UNRESOLVED):
        for first, stop in _unpack_ranges(cursor):
            told.undone.add(first, stop)
    if kind in (RETURNED_SINCE, TOLD_ALL, TOLD_ALL_UNRESOLVED):
        _unpack_returns(cursor, told.returns)
    for first, stop in RangeSet.from_bytes(cursor.rest):
        told.settled.add(first, stop)


def _unpack_part(cursor: _Cursor, unresolved: dict[int, TransactionPart]) -> None:
    (transaction,) = cursor.unpack(TRANSACTION)
    part = unresolved.setdefault(transaction, TransactionPart(0, 0))
    part.settles = RangeSet.from_bytes(cursor.rest)


def _unpack_resolved(cursor: _Cursor, unresolved: dict[int, TransactionPart]) -> None:
    (count,) = cursor.unpack(COUNT)
    for (transaction,) in TRANSACTION.iter_unpack(cursor.take(count * TRANSACTION.size)):
        unresolved.pop(transaction, None)


def _unpack_epochs(cursor: _Cursor, told: RecoveredState) -> int:
    """Return the kind of what stands behind the epochs."""
    (count,) = cursor.unpack(COUNT)
    told.epochs = EpochIndex(EPOCH.iter_unpack(cursor.take(count * EPOCH.size)))
    kind = cursor.take(1)[0]
    if kind not in WITHOUT_EPOCHS:
        raise ValueError(f"kind {kind} behind the epochs")
    return kind


def _unpack_parts(cursor: _Cursor, unresolved: dict[int, TransactionPart]) -> None:
    (count,) = cursor.unpack(COUNT)
    for _ in range(count):
        transaction, first, stop = cursor.unpack(UNRESOLVED)
        unresolved[transaction] = TransactionPart(first, stop, _unpack_ranges(cursor))


def _unpack_ranges(cursor: _Cursor) -> RangeSet:
    (count,) = cursor.unpack(COUNT)
    return RangeSet.from_bytes(cursor.take(count * RANGE_BYTES))


def _unpack_returns(cursor: _Cursor, returns: Returns) -> None:
    (count,) = cursor.unpack(COUNT)
    for first, stop, acquired, failures in RETURNED.iter_unpack(cursor.take(count * RETURNED.size)):
        if not 0 < stop - first <= RUN_OFFSETS_MAX:
            raise ValueError("a range of returns is too long, or none")
        returns.put(first, stop, acquired, failures)
