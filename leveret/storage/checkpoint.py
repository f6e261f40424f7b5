"""Which records are settled and how often others came back, as written down.

    payload of a control batch, little-endian
     0  u8   version and kind: 1 ranges settled since the last one, 2 all ranges settled so far
     1       RangeSet.to_bytes(): pairs of u64 (first, stop)

    the same where messages came back (in quorum queues)
     0  u8   version and kind: 3 what has come back since the last one, 4 all there is to know
     1  u32  count of ranges that came back
     5       for each: u64 first, u64 stop, u32 times returned, u32 times of failure; both so far
             RangeSet.to_bytes(): of kind 3 nothing, of kind 4 all ranges settled so far

Every segment begins with a control batch of kind 2 or 4, the checkpoint: the log's own files are
the one source of truth, recovery needs the last segment only, and an older segment can go whatever
control batches it holds (docs/decisions/0010-checkpoint-in-the-segment.md).

    close mark, in the state store under b"closed/" + the log's directory
     0  u8   version, 2 or 3
     1  u64  base offset of the last segment
     9  u32  generation of the last segment
    13  u64  size of the last segment in bytes
    21  u64  the log's end
    29  u64  end of what may have been delivered before
    37       version 2: RangeSet.to_bytes() of what is settled
             version 3, where messages came back: a checkpoint's payload of kind 4
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet
from leveret.ports.returns import RUN_OFFSETS_MAX

if TYPE_CHECKING:
    from leveret.ports.records import Batch
    from leveret.ports.returns import Returns

__all__ = [
    "CloseMark",
    "apply_payload",
    "checkpoint_payload",
    "return_payload",
    "settlement_payload",
]

SETTLED_SINCE = 1
SETTLED_ALL = 2
RETURNED_SINCE = 3
TOLD_ALL = 4
RETURNED_COUNT = struct.Struct("<I")
RETURNED = struct.Struct("<QQII")
COUNT_MAX = (1 << 32) - 1
MARK_VERSION = 2  # a mark of version 1 is not believed: the log is recovered as after a crash
MARK_VERSION_TOLD = 3
MARK = struct.Struct("<BQIQQQ")


def settlement_payload(ranges: RangeSet) -> bytes:
    """What was settled since the last control batch."""
    return bytes([SETTLED_SINCE]) + ranges.to_bytes()


def return_payload(returns: Returns, changed: RangeSet) -> bytes:
    """How often these records came back so far."""
    return bytes([RETURNED_SINCE]) + _pack(returns, changed)


def checkpoint_payload(settled: RangeSet, returns: Returns) -> bytes:
    """Everything settled so far, and every return: the first batch of a segment."""
    if not returns.acquired:
        return bytes([SETTLED_ALL]) + settled.to_bytes()
    return bytes([TOLD_ALL]) + _pack(returns) + settled.to_bytes()


def _pack(returns: Returns, changed: RangeSet | None = None) -> bytes:
    runs = [
        RETURNED.pack(first, stop, min(acquired, COUNT_MAX), min(failures, COUNT_MAX))
        for first, stop, acquired, failures in returns.runs(changed)
    ]
    return RETURNED_COUNT.pack(len(runs)) + b"".join(runs)


def _unpack(data: memoryview, returns: Returns) -> memoryview:
    """Take over what `_pack` made; what is behind it comes back. Raises ValueError."""
    if len(data) < RETURNED_COUNT.size:
        raise ValueError("a count of returns is cut off")
    (count,) = RETURNED_COUNT.unpack_from(data)
    end = RETURNED_COUNT.size + count * RETURNED.size
    if len(data) < end:
        raise ValueError("returns are cut off")
    for first, stop, acquired, failures in RETURNED.iter_unpack(data[RETURNED_COUNT.size : end]):
        if not 0 < stop - first <= RUN_OFFSETS_MAX:
            raise ValueError("a range of returns is too long, or none")
        returns.put(first, stop, acquired, failures)
    return data[end:]


def is_checkpoint(batch: Batch) -> bool:
    """Whether a batch is the complete state that a segment begins with."""
    kinds = (SETTLED_ALL, TOLD_ALL)
    return batch.is_control and len(batch.payload) > 0 and batch.payload[0] in kinds


def apply_payload(data: bytes | memoryview, settled: RangeSet, returns: Returns) -> None:
    """Add what a control batch says to `settled` and `returns`. Raises CorruptBatchError."""
    payload = memoryview(data)
    if len(payload) == 0 or not SETTLED_SINCE <= payload[0] <= TOLD_ALL:
        raise CorruptBatchError("control batch of an unknown version")
    try:
        rest = payload[1:]
        if payload[0] >= RETURNED_SINCE:
            rest = _unpack(rest, returns)
        told = RangeSet.from_bytes(rest)
    except ValueError as error:
        raise CorruptBatchError(f"control batch: {error}") from error
    for first, stop in told:
        settled.add(first, stop)


@dataclass(frozen=True, slots=True)
class CloseMark:
    """What a cleanly closed log looked like; believed only where its last segment still fits."""

    base: int
    generation: int
    segment_bytes: int
    end: int
    redelivered_stop: int
    checkpoint: bytes  # its payload

    def to_bytes(self) -> bytes:
        """The value in the state store."""
        numbers = (self.base, self.generation, self.segment_bytes, self.end, self.redelivered_stop)
        if self.checkpoint[0] == SETTLED_ALL:
            return MARK.pack(MARK_VERSION, *numbers) + self.checkpoint[1:]
        return MARK.pack(MARK_VERSION_TOLD, *numbers) + self.checkpoint

    @staticmethod
    def from_bytes(value: bytes) -> CloseMark | None:
        """The mark, or None where it is no mark of a known version."""
        if len(value) < MARK.size or value[0] not in (MARK_VERSION, MARK_VERSION_TOLD):
            return None
        version, base, generation, segment_bytes, end, redelivered_stop = MARK.unpack_from(value)
        checkpoint = value[MARK.size :]
        if version == MARK_VERSION:
            checkpoint = bytes([SETTLED_ALL]) + checkpoint
        return CloseMark(base, generation, segment_bytes, end, redelivered_stop, checkpoint)
