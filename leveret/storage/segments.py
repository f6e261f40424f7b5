"""The files of one log: append to the last one, roll, truncate, remove.

Called on the event loop only. Nothing here waits for a device: flushing, and the unlinking of
files, are handed out as work for other threads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.callbacks import do_nothing
from leveret.ports.records import Batch
from leveret.ports.replication import START, LogPlace
from leveret.storage.encryption import HEAD_BYTES, Sealer, key_id_of, leader_epoch_of
from leveret.storage.files import read_exactly, storage_error, write_all
from leveret.storage.index import SparseIndex
from leveret.storage.segment import OFFSET_MAX, Segment
from leveret.storage.segment_walk import ensure_index, last_epoch
from leveret.storage.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leveret.storage.encryption import DataKey
    from leveret.storage.files import FileSystem

__all__ = ["FILE", "Segments", "remove_files"]

FILE = attrgetter("file")  # of a segment: what a log's segments are ordered by
ROLL_FIRST = -1  # as `_roll_at`: the next write begins a new segment in any case
OPEN_FIRST = 0  # as `_roll_at`: the next write opens the last segment, if it still has room


class Segments(SegmentWriter):
    """Ordered segments; the last one is written to. Invariant: each stops where the next begins.

    A segment is full at `segment_bytes_max`. `position` is where the next batch goes, `dirty` the
    segments with unflushed bytes, oldest first, `latest_ms` the time of the youngest record.
    `checkpoint` returns the payload every segment begins with, None where nothing is kept;
    `on_roll` is called when a segment was sealed: it now waits for its last flush; `on_open` when a
    file was opened to be written to. `flushes`: confirms wait for flushes. `epoch` is that of all
    batches that are written; a node that is alone has none, and goes on in that of the last reign:
    should the log be copied again, no batch stands behind one of a higher epoch. `new_sealer`
    returns a sealer for a key; a segment has one key at most, so that its first bytes name the key
    it needs.
    """

    __slots__ = (
        "_checkpoint",
        "_contradicting",
        "_key",
        "_new_sealer",
        "_on_open",
        "_on_roll",
        "_wall_ms",
        "directory",
        "segment_bytes_max",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        *,
        segment_bytes_max: int,
        checkpoint: Callable[[], bytes] | None,
        wall_ms: Callable[[], int],
        on_roll: Callable[[], None],
        key: DataKey | None = None,
        new_sealer: Callable[[DataKey], Sealer] = Sealer,
        on_open: Callable[[Segments], None] = lambda _: None,
        flushes: bool = True,
        epoch: int = 0,
    ) -> None:
        super().__init__(files, epoch)
        self.directory = directory
        self.segment_bytes_max = segment_bytes_max
        self._checkpoint = checkpoint
        self._wall_ms = wall_ms
        self._on_roll = on_roll
        self._on_open = on_open
        self._flushes = flushes
        self._key = key
        self._new_sealer = new_sealer
        self._contradicting: list[Path] = []
        self._roll_at = OPEN_FIRST

    def adopt(self, items: list[Segment], *, begins_anew: bool = False) -> None:
        """Set the recovered segments. The last one is opened when it is first written to.

        `begins_anew`: it is not written to any more.
        """
        self.items = items
        self.position = self._file_bytes = items[-1].size if items else 0
        self.latest_ms = self._wall_ms()  # records of earlier runs are not looked at
        if begins_anew or (items and items[-1].suspect):
            self._roll_at = ROLL_FIRST

    @property
    def active(self) -> Segment:
        """Segment that is written to; there must be one."""
        return self.items[-1]

    @property
    def place(self) -> LogPlace:
        """End of the log in its files."""
        if not self.items:
            return START
        return LogPlace(self.active.base, self.active.revision, self.position)

    @property
    def sealed_dirty(self) -> bool:
        """Whether a sealed segment waits for its last flush."""
        return bool(self.dirty) and self.dirty[0] is not self.items[-1]

    @property
    def untrusted(self) -> bool:
        """Whether the next write begins a new segment: a flush failed, or the key changed."""
        return self._roll_at == ROLL_FIRST

    def use_key(self, key: DataKey | None) -> None:
        """Seal new batches with another key or none; the next write begins a new segment."""
        self._key = key
        if self.items:
            self._roll_at = ROLL_FIRST

    def overlapping(self, first: int, stop: int) -> list[Segment]:
        """Return the sealed segments with offsets in [first, stop)."""
        low = max(bisect_right(self.items, first, key=lambda segment: segment.base) - 1, 0)
        high = bisect_left(self.items, stop, key=lambda segment: segment.base)
        return self.items[low : min(high, len(self.items) - 1)]

    def holding(self, offset: int) -> Segment | None:
        """Return the segment whose range holds `offset`."""
        at = bisect_right(self.items, offset, key=lambda segment: segment.base)
        return self.items[at - 1] if at else None

    def find(self, base: int, revision: int) -> Segment | None:
        """Return the segment of a file's name."""
        at = bisect_left(self.items, (base, revision), key=FILE)
        found = self.items[at] if at < len(self.items) else None
        return found if found is not None and found.file == (base, revision) else None

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment behind a sealed one; None behind the last.

        The sealed one may have been removed, or replaced by one that was compacted from it.
        """
        at = bisect_right(self.items, segment.file, key=FILE)
        behind = (each for each in islice(self.items, at, None) if each.base >= segment.stop)
        return next(behind, None)

    def _mark_dirty(self, segment: Segment) -> None:
        """Mark a segment as dirty and pin it, so that its file stays open until it is flushed."""
        if self._checkpoint is None:
            return  # nothing is kept: nothing is ever flushed
        segment.dirty = True
        segment.pins += 1
        self.dirty.append(segment)

    def _write_whole(self, batch: Batch) -> None:
        """Write a batch of which one call has not written all. Raises StorageError.

        A short write is how a nearly full disk begins to say so: this one says why.
        """
        active = self.items[-1]
        assert active.handle is not None
        try:
            write_all(self._files.pwrite, active.handle, batch, self.position)
        except OSError as error:
            self._undo(active, self.position)
            raise storage_error("write to", active.path, error) from error

    def _undo(self, active: Segment, position: int) -> None:
        # Should even this fail, the next write goes over the remains, or recovery sets them aside.
        with suppress(OSError):
            if active.handle is not None:
                self._files.truncate(active.handle, position)
                self._file_bytes = position

    def shrink(self) -> bool:
        """Cut off the zeros by which the last segment's file was grown; return whether it was.

        Should that fail, recovery does it.
        """
        has_grown = self._file_bytes > self.position
        if has_grown:
            self._undo(self.items[-1], self.position)
        return has_grown

    def _shrink_copied(self) -> None:
        """Have a file that is copied end where its content does. Raises StorageError.

        With zeros behind, who opens it as a replica would take it for a file of which something was
        not flushed.
        """
        if self.sink is None or self._file_bytes <= self.position:
            return
        active = self.items[-1]
        assert active.handle is not None
        try:
            self._files.truncate(active.handle, self.position)
        except OSError as error:
            raise storage_error("truncate", active.path, error) from error
        self._file_bytes = self.position

    def finish(self) -> None:
        """Have the last segment's file end where its content does, once it is flushed."""
        if self.shrink() and not self.items[-1].dirty:
            self._mark_dirty(self.items[-1])

    def roll(self, end: int) -> None:
        """Begin a new segment at offset `end`. Raises StorageError; then nothing has changed."""
        if self.items and not self.items[-1].suspect:
            self._open(self.items[-1])  # to be flushed
            self._shrink_copied()
        if self._index is None:  # the first file of this run
            self._epoch = self._epoch or self._last_epoch()
        revision = 0
        if self.items and self.items[-1].base == end:
            revision = self.items[-1].revision + 1
        segment = Segment(self.directory, end, revision)
        segment.listed = False
        sealer = self._new_sealer(self._key) if self._key is not None else None
        self._remove_contradicting()
        try:
            self._create(segment)
        except OSError as error:
            raise storage_error("create", segment.path, error) from error
        rolled = bool(self.items)
        if rolled:
            self._seal(end)
        self.items.append(segment)
        self._sealer = sealer
        self._mark_dirty(segment)
        self.position = self._file_bytes = segment.size
        self._index = segment.index = SparseIndex()
        self._roll_at = segment.size + self.segment_bytes_max
        self._on_open(self)
        if self.sink is not None:
            self.sink.wrote()
        if rolled:
            self._on_roll()

    def _last_epoch(self) -> int:
        """Return the epoch of the last reign, 0 without any. Raises StorageError."""
        try:
            return last_epoch(self._files, self.items)
        except OSError as error:
            raise storage_error("read an epoch in", self.directory, error) from error

    def _remove_contradicting(self) -> None:
        """Unlink files that were cut off as a whole, before others hold the same offsets."""
        while self._contradicting:
            path = self._contradicting[-1]
            try:
                self._files.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise storage_error("remove", path, error) from error
            self._contradicting.pop()

    def _create(self, segment: Segment) -> None:
        """Create the segment's file and write its checkpoint."""
        self._files.make_directory(self.directory)
        segment.handle = self._files.open(segment.path, create=True)
        if self._checkpoint is None:
            return
        # Not before any record that is older, though the clock may have been set back.
        segment.began_ms = self.latest_ms = max(self._wall_ms(), self.latest_ms)
        key_id = self._key.id if self._key is not None else 0
        batch = Batch.control(
            segment.base, self._checkpoint(), segment.began_ms, self._epoch, key_id
        )
        batch.set_checksum()
        try:
            write_all(self._files.pwrite, segment.handle, batch, 0)
        except OSError:
            segment.release(self._files)
            with suppress(OSError):
                self._files.unlink(segment.path)
            raise
        segment.size = batch.size

    def _seal(self, end: int) -> None:
        sealed = self.items[-1]
        sealed.stop = end
        self.shrink()
        if not sealed.dirty and not sealed.suspect:
            # It is flushed already, perhaps, but its index is not in its file yet.
            self._mark_dirty(sealed)

    def _prepare(self, end: int) -> None:
        """Open the recovered segment, or begin a new one if that one cannot be written to."""
        reopen = self.items and self._roll_at == OPEN_FIRST
        if not reopen or self.items[-1].size >= self.segment_bytes_max:
            self.roll(end)
            return
        active = self.items[-1]
        self._open(active)
        if not self._goes_on(active):
            self.roll(end)
            return
        self._sealer = self._new_sealer(self._key) if self._key is not None else None
        assert active.index is not None
        self._index = active.index
        self._roll_at = self.segment_bytes_max
        self._on_open(self)

    def _goes_on(self, segment: Segment) -> bool:
        """Whether a recovered segment has the key for new batches, and was begun in this reign.

        Of segments of earlier reigns, nodes that follow have each to its end. Raises StorageError.
        """
        assert segment.handle is not None
        try:
            head = read_exactly(self._files, segment.handle, 0, HEAD_BYTES)
            key_id = self._key.id if self._key is not None else 0
            self._epoch = self._epoch or leader_epoch_of(head)
            return (key_id_of(head), leader_epoch_of(head)) == (key_id, self._epoch)
        except CorruptBatchError:
            return False
        except OSError as error:
            raise storage_error("read", segment.path, error) from error

    def _open(self, segment: Segment) -> None:
        """Open a segment's file and load its index. Raises StorageError."""
        try:
            if segment.handle is None:
                segment.handle = self._files.open(segment.path)
            if segment.index is None:
                segment.index = segment.load_index(self._files, segment.handle)
        except OSError as error:
            segment.release(self._files)
            raise storage_error("open", segment.path, error) from error

    def rest(self) -> bool:
        """Close the last segment's file until it is written to or read again.

        Returns False if it is in use: a confirm waits for its flush, or it is being read. A flush
        for which no confirm waits opens it by itself.
        """
        if not self.items:
            return True
        active = self.items[-1]
        if active.dirty and self._flushes:
            return False
        if active.pins > active.dirty:
            return False
        if active.handle is not None:
            self.shrink()
            self._files.close(active.handle)
            active.handle = None
        if self._roll_at != ROLL_FIRST:
            self._roll_at = OPEN_FIRST
        return True

    def cut(self, segment: Segment, position: int) -> None:
        """Truncate the log at `position` of `segment`, whose flush has failed.

        The next write begins a new segment: what the page cache says about the old one is not to be
        trusted any more (decision 0006).
        """
        self.mark_suspect()
        while self.items[-1] is not segment:
            dropped = self.items.pop()
            dropped.release(self._files)
            self._contradicting.append(dropped.path)
        segment.size = self.position = position
        segment.stop = OFFSET_MAX
        segment.mark_suspect(self._files)
        self._undo(segment, position)
        if segment.index is not None:
            segment.index.cut(position)

    def mark_suspect(self) -> None:
        """Mark all dirty segments as doubtful after a failed flush, and begin a new one."""
        for dirty in self.take_dirty():
            dirty.mark_suspect(self._files)
            self.unpin(dirty)
        self._roll_at = ROLL_FIRST

    def remove(self, segment: Segment) -> Callable[[], None]:
        """Remove a segment. Returns the work that removes its files, for a worker thread."""
        at = self.items.index(segment)
        assert segment is not self.items[-1]
        before = self.items[at - 1] if at and self.sink is not None else None
        if at:
            self.items[at - 1].stop = max(self.items[at - 1].stop, segment.stop)
        del self.items[at]
        if segment.dirty:
            self.dirty.remove(segment)
            self.unpin(segment)
        segment.release(self._files)
        if self.sink is not None:
            self.sink.removed(segment.base, segment.revision)
        return partial(remove_files, self._files, segment, before)

    def replace(self, old: Segment, new: Segment) -> None:
        """Put a segment with the same offsets in the place of a sealed one, which is clean."""
        at = self.items.index(old)
        assert old is not self.items[-1]
        assert not old.dirty
        new.stop, new.began_ms = old.stop, old.began_ms
        self.items[at] = new
        old.release(self._files)
        if self.sink is not None:
            self.sink.replaced(old.base, old.revision, new.revision)

    def release(self) -> None:
        """Close every file and drop references to the log, which writes no more."""
        self._checkpoint, self._on_roll, self.sink = None, do_nothing, None
        for dirty in self.take_dirty():
            self.unpin(dirty)
        for segment in self.items:
            segment.release(self._files)


def remove_files(files: FileSystem, segment: Segment, before: Segment | None = None) -> None:
    """Remove the files of a segment that is used no more. Raises OSError.

    Where the log is copied, the segment `before` it is known as whole first: whoever opens the
    files as a replica would take a gap behind another one for a loss (storage/replica_files.py).
    """
    if before is not None:
        ensure_index(files, before)
    files.unlink(segment.path)
    for beside in (segment.index_path, segment.suspect_path):
        with suppress(FileNotFoundError):
            files.unlink(beside)
