"""Writing one segment anew without superseded records: what compaction does in its thread.

    compacted segment
      checkpoint       what is settled below the segment; control batches behind it are left out
      batch …          each with the offsets, times and epoch that it had; split where records
                       of it are missing, and has the attribute COMPACTED if offsets in front are
      end              control batch (storage/checkpoint.py) whose offset is where the segment ends

A segment that is written anew has a larger number than other files with its first offset, which no
other leader gives (`next_revision`), and is complete, flushed and indexed before it gets that name.
So the old file counts until then, the new one from then on, and it does not matter when the old one
goes.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchAttribute
from leveret.storage.checkpoint import compacted_payload, is_checkpoint
from leveret.storage.encryption import ATTRIBUTES, ATTRIBUTES_AT, HEAD_BYTES, key_id_of
from leveret.storage.files import read_exactly, write_all
from leveret.storage.index import Compacted, SparseIndex
from leveret.storage.key_map import KeyMap, Sieve, parts_of
from leveret.storage.scan import refuse, scan
from leveret.storage.segment import REVISION_MAX, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leveret.storage.encryption import Sealer
    from leveret.storage.files import FileSystem
    from leveret.storage.keyring import Keyring

__all__ = [
    "Rewrite",
    "Rewritten",
    "SegmentSource",
    "StoppedError",
    "Throttle",
    "next_revision",
    "note_keys",
]

WRITE_BYTES = 256 * 1024  # gathered for one write
WAIT_SECONDS_MIN = 0.01  # shorter waits are put together
REVISION_BITS = 12  # of the number of a file in one reign: the rest is the reign's epoch


def next_revision(revision: int, epoch: int) -> int | None:
    """Return the number of the file that is compacted from one, by the leader of an epoch.

    Leaders that compact the same file, each from what it has, give different numbers, since nodes
    that follow know a file by its name. None: this leader has used up its own.
    """
    following = max(revision + 1, epoch << REVISION_BITS)
    is_ours = not epoch or following >> REVISION_BITS == epoch
    return following if is_ours and following <= REVISION_MAX else None


class StoppedError(OSError):
    """The node is stopping: what compaction was writing is left."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment that was written anew: of the `live` records the `superseded` ones went."""

    segment: Segment
    live: RangeSet
    superseded: RangeSet
    freed_bytes: int
    is_empty: bool


class Throttle:
    """Lets so many bytes a second pass, in the worker thread."""

    def __init__(self, bytes_per_s: int, stop: threading.Event) -> None:
        self._bytes_per_s = bytes_per_s
        self._stop = stop
        self._free_at = 0.0  # by when what has passed so far may have passed

    def passed(self, size: int) -> None:
        """Wait as long as `size` bytes may take. Raises StoppedError when the node stops."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        ahead = self._free_at - now
        if self._stop.wait(ahead) if ahead >= WAIT_SECONDS_MIN else self._stop.is_set():
            raise StoppedError


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """A sealed segment to be read: `live` are its offsets that are not settled."""

    files: FileSystem
    keyring: Keyring
    throttle: Throttle
    segment: Segment
    stop: int  # of the segment, when the step began
    live: RangeSet

    def batches(self, handle: int) -> Iterator[tuple[Batch, Batch]]:
        """Yield the batches with records: as they stand in the file, and opened.

        Raises CorruptBatchError where one is missing or damaged, MissingKeyError, OSError.
        """
        segment, unseal = self.segment, self.keyring.unsealer.open
        expected, unseen = segment.base, self.live.count
        for _, batch in scan(self.files, handle, 0, segment.size):
            self.throttle.passed(batch.size)
            if batch.is_control:
                continue
            if batch.base_offset >= self.stop:
                break
            if batch.base_offset < expected:
                refuse(f"offset {batch.base_offset} where {expected} follows")
            expected = batch.stop_offset
            unseen -= self.live.overlap(batch.base_offset, batch.stop_offset)
            yield batch, unseal(batch)
        if unseen:
            refuse(f"{unseen} records are missing in {segment.path}")


def note_keys(source: SegmentSource, keys: KeyMap, first: int) -> int:
    """Note the keys of a segment's records from `first` on.

    Returns the offset at which the map was full, or where the segment ends. For a worker thread:
    waits for the device. Raises StorageError, OSError.
    """
    handle = source.files.open(source.segment.path)
    try:
        for _, batch in source.batches(handle):
            full_at = keys.note(batch, source.live, first)
            if full_at < batch.stop_offset:
                return full_at
    finally:
        source.files.close(handle)
    return source.stop


class Rewrite:
    """Writing one segment anew, in a worker thread.

    `covered` and `keys` are as in Sieve. Tombstones that are found for the first time may go at
    `due_ms`. `settled` is the payload of the new file's checkpoint, `revision` its number.
    """

    def __init__(
        self,
        source: SegmentSource,
        keys: KeyMap,
        *,
        covered: int,
        now_ms: int,
        due_ms: int,
        settled: bytes,
        revision: int,
    ) -> None:
        self._source = source
        self._files = source.files
        self._keys = keys
        self._covered = covered
        self._now_ms = now_ms
        self._due_ms = due_ms
        self._settled = settled
        self._revision = revision
        self._sealer: Sealer | None = None

    def run(self) -> Rewritten | None:
        """Write the segment anew; None if it may stay as it is. Raises StorageError, OSError.

        A file that was written is durable under its name when this returns.
        """
        source = self._source
        handle = self._files.open(source.segment.path)
        try:
            sieve = Sieve(self._keys, source.live, self._covered, self._now_ms)
            for _, batch in source.batches(handle):
                sieve.look(batch)
            if not sieve.removed and not sieve.undated:
                self._note_unchanged(sieve)
                return None
            return self._replace(handle, sieve)
        finally:
            self._files.close(handle)

    def _compacted(self, sieve: Sieve) -> Compacted:
        """Return what the index file says about the segment afterwards."""
        source = self._source
        removed = source.live.gaps(source.segment.base, source.stop)
        removed.add_all(sieve.superseded)
        due_ms = sieve.due_ms
        if sieve.undated:
            due_ms = min(due_ms, self._due_ms) if due_ms else self._due_ms
        return Compacted(min(self._covered, source.stop), due_ms, removed)

    def _note_unchanged(self, sieve: Sieve) -> None:
        """Note in the index file that the segment was compacted, so that the next run knows it."""
        segment, told = self._source.segment, self._compacted(sieve)
        indexed = segment.read_index(self._files)
        if indexed is not None and told != (indexed.compacted or Compacted()):
            kept = Segment(segment.directory, segment.base, segment.revision, segment.size)
            kept.index = indexed.index
            kept.write_index(self._files, indexed.stop, told, flush=True)
        segment.compacted_stop, segment.due_ms = told.stop, told.due_ms

    def _replace(self, handle: int, sieve: Sieve) -> Rewritten:
        old, told = self._source.segment, self._compacted(sieve)
        new = Segment(old.directory, old.base, self._revision)
        new.compacted_stop, new.due_ms = told.stop, told.due_ms
        draft = new.draft_path
        try:
            self._write(handle, draft, new, told.removed)
            new.write_index(self._files, self._source.stop, told, flush=True)
            self._files.rename(draft, new.path)
            self._files.sync_directory(new.directory)
        except (OSError, StorageError):
            for path in (draft, new.path, new.index_path):
                with suppress(OSError):
                    self._files.unlink(path)
            raise
        new.index = None  # it is read when it is needed
        freed_bytes = old.size - new.size
        live = self._source.live
        return Rewritten(new, live, sieve.superseded, freed_bytes, is_empty=not sieve.kept)

    def _write(self, handle: int, draft: Path, new: Segment, removed: RangeSet) -> None:
        """Write and flush the file, and make its index."""
        if self._files.exists(draft):
            self._files.unlink(draft)
        writer = _FileWriter(self._files, draft, self._source.throttle, new)
        try:
            checkpoint = self._checkpoint(handle)
            writer.add(checkpoint)
            expected, epoch = new.base, checkpoint.leader_epoch
            for stored, batch in self._source.batches(handle):
                follows = batch.base_offset == expected
                for part in parts_of(batch, removed, follows, self._covered, self._due_ms):
                    writer.add(stored if part is batch else self._stored(handle, stored, part))
                    expected = part.stop_offset
                epoch = stored.leader_epoch
            writer.add(_end(self._source.stop, self._now_ms, epoch))
            writer.finish()
        finally:
            writer.close()

    def _checkpoint(self, handle: int) -> Batch:
        """Return the new checkpoint, with time, epoch and key of the old one."""
        head = read_exactly(self._files, handle, 0, HEAD_BYTES)
        _, first = next(scan(self._files, handle, 0, self._source.segment.size))
        if not is_checkpoint(first):
            refuse(f"{self._source.segment.path} does not begin with a checkpoint")
        made = Batch.control(
            *(self._source.segment.base, self._settled, first.first_time),
            *(first.leader_epoch, key_id_of(head)),
        )
        made.set_checksum()
        return made

    def _stored(self, handle: int, stored: Batch, part: Batch) -> Batch:
        """Return a part of a batch as it is to be written: sealed if the batch was."""
        if stored.attributes & BatchAttribute.ENCRYPTED:
            if self._sealer is None:
                keyring = self._source.keyring
                head = read_exactly(self._files, handle, 0, HEAD_BYTES)
                self._sealer = keyring.sealer(keyring.key(key_id_of(head)))
            return self._sealer.seal(part)
        part.set_checksum()
        return part


def _end(stop: int, now_ms: int, epoch: int) -> Batch:
    """Return the last batch of a compacted segment, in the epoch of the one before."""
    raw = bytearray(Batch.control(stop, compacted_payload(), now_ms, epoch))
    attributes = BatchAttribute.CONTROL | BatchAttribute.COMPACTED
    ATTRIBUTES.pack_into(raw, ATTRIBUTES_AT, attributes)
    batch = Batch.parse(raw)
    batch.set_checksum()
    return batch


class _FileWriter:
    """Writes the batches of a new file one after the other; `new` gets its size and index."""

    def __init__(self, files: FileSystem, path: Path, throttle: Throttle, new: Segment) -> None:
        self._files = files
        self._throttle = throttle
        self._new = new
        self._index = new.index = SparseIndex()
        self._gathered = bytearray()
        self._written = 0
        self._handle = files.open(path, create=True)

    def add(self, batch: Batch) -> None:
        """Add a batch. Raises OSError."""
        position = self._written + len(self._gathered)
        if batch.count and position >= self._index.due:
            self._index.note(batch.base_offset, position)
        self._gathered += batch
        if len(self._gathered) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        write_all(self._files.pwrite, self._handle, self._gathered, self._written)
        self._written += len(self._gathered)
        self._throttle.passed(len(self._gathered))
        self._gathered = bytearray()

    def finish(self) -> None:
        """Write the rest, and flush. Raises OSError."""
        if self._gathered:
            self._write()
        self._files.fdatasync(self._handle)
        self._new.size = self._written

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._handle)
