"""Which records are settled, as written down: in control batches and at a clean close.

    payload of a control batch, little-endian
     0  u8   version and kind: 1 ranges settled since the last one, 2 all ranges settled so far
     1       RangeSet.to_bytes(): pairs of u64 (first, stop)

Every segment begins with a control batch of kind 2, the checkpoint: the log's own files are the one
source of truth, recovery needs the last segment only, and an older segment can go whatever control
batches it holds (docs/decisions/0010-checkpoint-in-the-segment.md).

    close mark, in the state store under b"closed/" + the log's directory
     0  u8   version, 2
     1  u64  base offset of the last segment
     9  u32  generation of the last segment
    13  u64  size of the last segment in bytes
    21  u64  the log's end
    29  u64  end of what may have been delivered before
    37       RangeSet.to_bytes() of what is settled
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.ports.records import Batch

__all__ = ["CloseMark", "apply_settlement", "checkpoint_payload", "settlement_payload"]

SETTLED_SINCE = 1
SETTLED_ALL = 2
MARK_VERSION = 2  # a mark of version 1 is not believed: the log is recovered as after a crash
MARK = struct.Struct("<BQIQQQ")


def settlement_payload(ranges: RangeSet) -> bytes:
    """What was settled since the last control batch."""
    return bytes([SETTLED_SINCE]) + ranges.to_bytes()


def checkpoint_payload(settled: RangeSet) -> bytes:
    """Everything settled so far: the first batch of a segment."""
    return bytes([SETTLED_ALL]) + settled.to_bytes()


def is_checkpoint(batch: Batch) -> bool:
    """Whether a batch is the complete state that a segment begins with."""
    return batch.is_control and len(batch.payload) > 0 and batch.payload[0] == SETTLED_ALL


def apply_settlement(batch: Batch, settled: RangeSet) -> None:
    """Add a control batch's ranges to `settled`. Raises CorruptBatchError."""
    payload = batch.payload
    if len(payload) == 0 or payload[0] not in (SETTLED_SINCE, SETTLED_ALL):
        raise CorruptBatchError("control batch of an unknown version")
    try:
        told = RangeSet.from_bytes(payload[1:])
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
    settled: bytes

    def to_bytes(self) -> bytes:
        """The value in the state store."""
        numbers = (self.base, self.generation, self.segment_bytes, self.end, self.redelivered_stop)
        return MARK.pack(MARK_VERSION, *numbers) + self.settled

    @staticmethod
    def from_bytes(value: bytes) -> CloseMark | None:
        """The mark, or None where it is no mark of a known version."""
        if len(value) < MARK.size or value[0] != MARK_VERSION or (len(value) - MARK.size) % 16:
            return None
        _, base, generation, segment_bytes, end, redelivered_stop = MARK.unpack_from(value)
        settled = value[MARK.size :]
        return CloseMark(base, generation, segment_bytes, end, redelivered_stop, settled)
