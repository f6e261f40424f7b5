"""Batches of changes: what one znode of the sequence holds."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.metadata.encoding import FieldReader, MalformedError, open_envelope, seal
from leveret.ports.coordination import (
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
    KeyChange,
    KeyCheck,
    WriteTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BATCH_BYTES_MAX", "ChangeBatch", "PendingWrite", "decode_batch", "encode_batch"]

# Body of a batch:
#
#   writer u64 │ counter u64 │ sequence u64 │ changes u32
#   each change: key bytes u16 │ value bytes u32, 0xffffffff: deleted │ key │ value
_KIND = 1
_HEADER = struct.Struct("<QQQI")
_CHANGE = struct.Struct("<HI")
_DELETED = 0xFFFFFFFF
_OVERHEAD = 64  # of a batch, more than envelope and header have
BATCH_BYTES_MAX = WRITE_BYTES_MAX + _OVERHEAD


class ChangeBatch(NamedTuple):
    """Changes with one sequence number; no key occurs twice.

    `writer` is random, one for each process, and counts its batches. So a writer that lost its
    connection finds out what became of the last one.
    """

    writer: int
    counter: int
    sequence: int
    changes: tuple[KeyChange, ...]


class PendingWrite(NamedTuple):
    """Write that waits for its turn; `size` is what it takes in a batch."""

    changes: tuple[KeyChange, ...]
    checks: tuple[KeyCheck, ...]
    size: int

    @classmethod
    def of(cls, wanted: Sequence[KeyChange | KeyCheck]) -> PendingWrite:
        """Sort changes from checks. Raises WriteTooLargeError, or ValueError for a bad key."""
        changes = tuple(each for each in wanted if isinstance(each, KeyChange))
        checks = tuple(each for each in wanted if isinstance(each, KeyCheck))
        if len({change.key for change in changes}) < len(changes):
            raise ValueError("a write changes a key twice")
        size = sum(map(_size_of, changes))
        if size > WRITE_BYTES_MAX:
            raise WriteTooLargeError(f"a write has {size} bytes, at most {WRITE_BYTES_MAX} can be")
        return cls(changes, checks, size)


def _size_of(change: KeyChange) -> int:
    key, value = len(change.key.encode()), 0 if change.value is None else len(change.value)
    if not key:
        raise ValueError("a key is empty")
    if key > KEY_BYTES_MAX:
        raise WriteTooLargeError(f"a key has {key} bytes, at most {KEY_BYTES_MAX} can be")
    if value > VALUE_BYTES_MAX:
        raise WriteTooLargeError(
            f"the value of {change.key} has {value} bytes, at most {VALUE_BYTES_MAX} can be"
        )
    return _CHANGE.size + key + value


def encode_batch(batch: ChangeBatch) -> bytes:
    """Return the bytes of a batch."""
    parts = [_HEADER.pack(batch.writer, batch.counter, batch.sequence, len(batch.changes))]
    for key, value, _ in batch.changes:
        text = key.encode()
        parts += (_CHANGE.pack(len(text), _DELETED if value is None else len(value)), text)
        if value is not None:
            parts.append(value)
    return seal(_KIND, b"".join(parts))


def decode_batch(data: bytes, sequence: int, place: str) -> ChangeBatch:
    """Return the batch that should have number `sequence`.

    Raises MalformedError, or NewerFormatError that names `place`.
    """
    if len(data) > BATCH_BYTES_MAX:
        raise MalformedError(f"it has {len(data)} bytes, more than {BATCH_BYTES_MAX}")
    reader = FieldReader(open_envelope(_KIND, data, place))
    writer, counter, number, count = reader.unpack(_HEADER)
    if number != sequence:
        raise MalformedError(f"it is number {number} of the sequence")
    changes: dict[str, KeyChange] = {}
    for _ in range(count):
        key_size, value_size = reader.unpack(_CHANGE)
        if not 0 < key_size <= KEY_BYTES_MAX:
            raise MalformedError(f"a key in it has {key_size} bytes")
        key = reader.text(key_size)
        if value_size != _DELETED and value_size > VALUE_BYTES_MAX:
            raise MalformedError(f"a value in it has {value_size} bytes")
        if key in changes:
            raise MalformedError(f"it changes the key {key} twice")
        value = None if value_size == _DELETED else reader.take(value_size)
        changes[key] = KeyChange(key, value)
    reader.end()
    return ChangeBatch(writer, counter, number, tuple(changes.values()))
