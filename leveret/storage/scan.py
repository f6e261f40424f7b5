"""Iteration over the batches in a file, from the device: for recovery, index rebuild, dump."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from crc32c import crc32c

from leveret.errors import CorruptBatchError, NewerFormatError
from leveret.ports.records import HEADER_BYTES, MAGIC, Batch, BatchAttribute
from leveret.storage.files import content_end, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leveret.storage.files import FileSystem

__all__ = ["batch_bytes", "has_no_offsets", "refuse", "scan", "verify"]

SCAN_BYTES = 1 << 20  # one read of a scan
FRONT = struct.Struct("<II")  # magic and length, the first fields of a batch
NAME_BITS = 0xFFFFFF  # of the magic: "LVB"; the version follows
VERSION_SHIFT = 24
NEWER_VERSIONS = frozenset(b"23456789")


def batch_bytes(window: bytearray, at: int) -> int:
    """Return the length of the batch at `at`, from its header; 0 if too few bytes are there.

    Raises CorruptBatchError if no batch begins there, NewerFormatError if one of a newer version
    does.
    """
    if len(window) - at < FRONT.size:
        return 0
    magic, length = FRONT.unpack_from(window, at)
    if magic != MAGIC and _is_newer(window, at):
        version = chr(magic >> VERSION_SHIFT)
        raise NewerFormatError(f"a batch (format LVB{version})")
    if magic != MAGIC or length < HEADER_BYTES:
        raise CorruptBatchError("no batch begins here")
    return int(length)


def _is_newer(window: bytearray, at: int) -> bool:
    """Whether a batch of a newer version begins here, rather than one with a damaged magic.

    The magic is not under the checksum: a batch that is sound but for it is one of this version.
    """
    magic, length = FRONT.unpack_from(window, at)
    if magic & NAME_BITS != MAGIC & NAME_BITS or magic >> VERSION_SHIFT not in NEWER_VERSIONS:
        return False
    if not HEADER_BYTES <= length <= len(window) - at:
        return True
    with suppress(CorruptBatchError):
        repaired = bytearray(window[at : at + length])
        FRONT.pack_into(repaired, 0, MAGIC, length)
        verify(Batch.parse(repaired))
        return False
    return True


def refuse(reason: str) -> None:
    """Raise CorruptBatchError for a batch that is sound in itself but in the wrong place."""
    raise CorruptBatchError(reason)


def has_no_offsets(batch: Batch) -> bool:
    """Whether a batch says nothing about offsets: neither records nor a compacted segment's end."""
    return batch.is_control and not batch.attributes & BatchAttribute.COMPACTED


def verify(batch: Batch) -> None:
    """Raise CorruptBatchError unless the batch's bytes match its checksum."""
    if crc32c(batch.checked) != batch.checksum:
        raise CorruptBatchError(f"checksum of the batch at offset {batch.base_offset} is wrong")


def scan(
    files: FileSystem,
    handle: int,
    position: int,
    limit: int,
    check: Callable[[Batch], None] = verify,
) -> Iterator[tuple[int, Batch]]:
    """Yield (position, batch) for each batch in bytes [position, limit), checksums checked.

    Raises CorruptBatchError at the first place without a whole, sound batch; those yielded before
    are sound. Each batch keeps its read window alive, so do not hold on to it.
    """
    wanted = SCAN_BYTES
    while position < limit:
        asked = min(wanted, limit - position)
        window = read_exactly(files, handle, position, asked)
        at = 0
        while at < len(window):
            if not any(window[at : at + FRONT.size]) and (
                content_end(files, handle, position + at, limit) == position + at
            ):
                return  # the file was grown ahead of what was written
            length = batch_bytes(window, at)
            if length == 0 or at + length > len(window):
                break
            batch = Batch.parse(window, at)
            check(batch)
            yield position + at, batch
            at += length
        if at == 0:
            length = batch_bytes(window, 0)
            if length <= len(window) or position + length > limit or len(window) < asked:
                raise CorruptBatchError(f"the file ends within the batch at {position}")
        position += at
        wanted = max(SCAN_BYTES, batch_bytes(window, at) if at < len(window) else 0)
