"""Producer sequence numbers, by which repeated messages of a publisher are recognized.

Headers: `x-producer-id` names the publisher, `x-producer-seq` numbers its messages 0, 1, 2, …
within one `x-producer-epoch`. A publisher that lost its count begins a newer epoch, and messages of
older ones are then refused. A sequence begins with 0: if its first number were free, a lost first
message could not be detected.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Position", "SequenceHeaders", "Verdict", "expected", "judge", "read_sequence_headers"]

PRODUCER_ID: Final = "x-producer-id"
EPOCH: Final = "x-producer-epoch"
SEQUENCE: Final = "x-producer-seq"
ID_BYTES_MAX: Final = 255


class SequenceHeaders(NamedTuple):
    """Producer id, epoch and sequence number of a message."""

    producer: str
    epoch: int
    sequence: int


class Position(NamedTuple):
    """Last accepted epoch and sequence number of a publisher."""

    epoch: int
    sequence: int


class Verdict(Enum):
    """Decision about a numbered message."""

    NEXT = "next"
    SEEN = "seen"  # confirmed, and not stored again
    GAP = "gap"  # an earlier message is missing
    FENCED = "fenced"  # a newer epoch has begun


def read_sequence_headers(headers: Mapping[str, Any]) -> SequenceHeaders:
    """Parse the three headers. Raises ValueError that says which is wrong, and why."""
    producer = headers.get(PRODUCER_ID)
    if not isinstance(producer, str) or not producer:
        raise ValueError(f"'{PRODUCER_ID}' is not a text")
    if len(producer.encode(errors="surrogateescape")) > ID_BYTES_MAX:
        raise ValueError(f"'{PRODUCER_ID}' is longer than {ID_BYTES_MAX} bytes")
    return SequenceHeaders(producer, _number(headers, EPOCH), _number(headers, SEQUENCE))


def _number(headers: Mapping[str, Any], name: str) -> int:
    value = headers.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"'{name}' is not a number of 0 or more")
    return value


def judge(known: Position | None, stated: SequenceHeaders) -> Verdict:
    """Decide about a message of a publisher whose last accepted position is `known`."""
    if known is not None and stated.epoch < known.epoch:
        return Verdict.FENCED
    last = known.sequence if known is not None and stated.epoch == known.epoch else -1
    if stated.sequence <= last:
        return Verdict.SEEN
    return Verdict.NEXT if stated.sequence == last + 1 else Verdict.GAP


def expected(known: Position | None, epoch: int) -> int:
    """Return the next expected sequence number in an epoch."""
    return known.sequence + 1 if known is not None and known.epoch == epoch else 0
