"""Walks over batches as they stand in a segment's file, each checked: for copies of a log.

Nothing is unsealed, and records are not looked at: what is copied stays as it is.
"""

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from leveret.ports.records cimport BATCH_HEADER_BYTES, COMPACTED, CONTROL, load16, load32, load64

from crc32c import crc32c

from leveret.ports.records import CHECKSUM_FROM, MAGIC
from leveret.storage.index import INDEX_INTERVAL_BYTES

cdef uint32_t _MAGIC = MAGIC
cdef Py_ssize_t _CHECKSUM_FROM = CHECKSUM_FROM
cdef uint64_t _INDEX_INTERVAL_BYTES = INDEX_INTERVAL_BYTES
cdef object _crc32c = crc32c


@cython.final
cdef class BatchWalk:
    """Walk over bytes of a segment, which must be whole and sound batches in a row.

    `size` bytes are; the next batch begins with `offset`, and its epoch is at least `epoch`. The
    last batch of them begins at `last` and has the `checksum`. `reason` says why the bytes behind
    are no such batch, None where nothing is behind; `wanted` is the length of the batch that they
    end within, 0 if none begins there. `entries` are pairs (offset, position) for the segment's
    index, one for each of its intervals from position `due` on. `gaps` are ranges of offsets in
    front of batches that compaction has written.
    """

    cdef readonly size_t size
    cdef readonly size_t last
    cdef readonly size_t wanted
    cdef readonly uint64_t offset
    cdef readonly uint32_t epoch
    cdef readonly uint32_t checksum
    cdef readonly str reason
    cdef readonly list entries
    cdef readonly list gaps

    def __init__(self, const uint8_t[::1] data, uint64_t offset, uint32_t epoch, uint64_t due=0):
        cdef size_t stop = data.shape[0], at = 0
        cdef size_t length
        cdef const uint8_t* p
        self.offset, self.epoch = offset, epoch
        self.entries = []
        self.gaps = []
        while at < stop and self.reason is None:
            p = &data[at]
            length = batch_bytes(p, stop - at)
            if not length:
                self.wanted = wanted_bytes(p, stop - at)
                self.reason = "they end within a batch" if self.wanted else "no batch begins there"
            else:
                self._take(data, p, at, length, &due)
                at += length

    cdef int _take(
        self, const uint8_t[::1] data, const uint8_t* p, size_t at, size_t length, uint64_t* due
    ) except -1:
        """Take the batch at `at`, or give the reason why it is not taken."""
        cdef uint32_t checksum = load32(p + 16), count = load32(p + 24), epoch = load32(p + 28)
        cdef uint16_t attributes = load16(p + 20)
        cdef uint64_t base = load64(p + 8)
        if _crc32c(data[at + _CHECKSUM_FROM : at + length]) != checksum:
            self.reason = "the checksum is wrong"
        elif base != self.offset and not (attributes & COMPACTED and base > self.offset):
            self.reason = f"offset {base} stands where {self.offset} follows"
        elif attributes & CONTROL and count:
            self.reason = "a control batch has records"
        elif epoch < self.epoch:
            self.reason = f"epoch {epoch} stands behind {self.epoch}"
        else:
            if count and at >= due[0]:
                self.entries.append((base, at))
                due[0] = at + _INDEX_INTERVAL_BYTES
            if base != self.offset:
                self.gaps.append((self.offset, base))
            self.size, self.last = at + length, at
            self.offset, self.epoch, self.checksum = base + count, epoch, checksum
        return 0


cdef size_t wanted_bytes(const uint8_t* p, size_t available) noexcept nogil:
    """Return the length of the batch that begins at `p`, of which there are too few bytes."""
    if available >= 8 and load32(p) == _MAGIC and load32(p + 4) > available:
        return load32(p + 4)
    return BATCH_HEADER_BYTES if available < 8 else 0


cdef size_t batch_bytes(const uint8_t* p, size_t available) noexcept nogil:
    """Return the length of the whole batch that begins at `p`; 0 where none does."""
    cdef size_t length
    if available < BATCH_HEADER_BYTES or load32(p) != _MAGIC:
        return 0
    length = load32(p + 4)
    return length if BATCH_HEADER_BYTES <= length <= available else 0


def whole_batches(const uint8_t[::1] data, uint64_t offset):
    """Return how many bytes of `data` are whole batches, and the offset behind them.

    It begins with a batch, whose offset is `offset`.
    """
    cdef size_t stop = data.shape[0], at = 0, length
    while at < stop:
        length = batch_bytes(&data[at], stop - at)
        if not length:
            break
        offset = load64(&data[at] + 8) + load32(&data[at] + 24)
        at += length
    return at, offset
