"""The compiled half of a log's segments: the write of each batch behind the one before."""

from libc.errno cimport EIO, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.unistd cimport fdatasync, pwrite

from leveret.ports.records cimport Batch

import os

UNLOCKED_BYTES_MIN = 65536      # less is copied within microseconds

# A flush takes half as long again if it must also record a new size of the file.
GROWTH_BYTES = 65536

cdef size_t _UNLOCKED_BYTES_MIN = UNLOCKED_BYTES_MIN
cdef int64_t _GROWTH_BYTES = GROWTH_BYTES


cdef class SegmentWriter:
    """Writes to the last segment: epoch, seal or checksum, one system call, notes for the index.

    Subclasses have `_prepare(end)`, which has a segment to be written to, `_write_whole(batch)`,
    which writes what one call did not, or takes it back and raises StorageError, and
    `_mark_dirty(segment)`.
    """

    def __init__(self, files, uint32_t epoch):
        self._files = files
        self._epoch = epoch
        self.items = []
        self.dirty = []
        self._is_direct = files.pwrite is os.pwrite
        self._flushes_directly = files.fdatasync is os.fdatasync

    def write(self, Batch batch not None, uint64_t end):
        """Write one batch and return its position; `end` is the log's end before it.

        Its epoch and checksum are set. Raises StorageError; the log is then as before.
        """
        return self._write(batch, end)

    cdef int64_t _write(self, Batch batch, uint64_t end) except -1:
        cdef int64_t position
        if self.position >= self._roll_at:
            self._prepare(end)
        batch.set_leader_epoch(self._epoch)
        if self._sealer is not None and not batch.is_control:
            batch = self._sealer.seal(batch)
        else:
            batch.set_checksum()
        active = self.items[len(self.items) - 1]
        if self._flushes and self.position + <int64_t>batch.size > self._file_bytes:
            self._grow(active.handle, batch.size)
        if not self._is_direct or not self._is_written(active.handle, batch):
            self._write_whole(batch)
        position = self.position
        self.position += batch.size
        active.size = self.position
        self.latest_ms = max(self.latest_ms, batch.last_ms())
        if batch.count and position >= <int64_t>self._index.due:
            self._index.note(batch.base_offset, position)
        if not active.dirty:
            self._mark_dirty(active)
        if self.sink is not None:
            self.sink.wrote()
        return position

    cdef int _grow(self, int handle, int64_t next_bytes) except -1:
        """Have the last segment's file end behind the bytes that are written next.

        Those who read the file from its start know the zeros for its end. Where that fails, the
        write grows the file as far as it needs, or says why it cannot.
        """
        cdef int64_t stop = self.position + next_bytes
        self._file_bytes = stop
        if next_bytes >= _GROWTH_BYTES:
            return 0    # there would be no second write to gain by it
        stop = min(stop + _GROWTH_BYTES, max(stop, self._roll_at))
        try:
            self._files.truncate(handle, stop)
        except OSError:
            return 0
        self._file_bytes = stop
        return 0

    cdef bint _is_written(self, int handle, Batch batch) noexcept:
        """Write a batch with one call; False unless all of it was written.

        A small one is written with the interpreter's lock held: to give it away would have the
        event loop wait for whoever takes it.
        """
        cdef ssize_t written
        if batch.size < _UNLOCKED_BYTES_MIN:
            written = pwrite(handle, batch.data, batch.size, self.position)
        else:
            with nogil:
                written = pwrite(handle, batch.data, batch.size, self.position)
        return written == <ssize_t>batch.size

    def take_dirty(self):
        """Return the dirty segments, oldest first, now marked clean; the caller unpins them."""
        cdef list taken = self.dirty
        self.dirty = []
        for segment in taken:
            segment.dirty = False
        return taken

    def unpin(self, segment):
        """Release a flush's pin; close the file if it was the last and the segment is retired."""
        segment.pins -= 1
        if segment.retired:
            segment.release(self._files)

    cdef int _flush_last(self) except -1:
        """Flush the last segment, which is the only dirty one, in the calling thread.

        Returns 0, or errno if that has failed: the segment is then as before.
        """
        cdef int failure = 0, handle
        segment = self.items[len(self.items) - 1]
        handle = segment.handle
        if self._flushes_directly:
            with nogil:
                if fdatasync(handle) != 0:
                    failure = errno
        else:
            try:
                self._files.fdatasync(handle)
            except OSError as error:
                failure = error.errno or EIO
        if not failure:
            for segment in self.take_dirty():
                self.unpin(segment)
        return failure
