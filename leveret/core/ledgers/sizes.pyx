"""Body sizes of a queue's records, four bytes each, for limits in bytes.

Kept in chunks that are freed when the last of their records is settled, so that one message that is
never acknowledged does not keep the sizes of all later ones.
"""

from libc.stdint cimport uint32_t, uint64_t

from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, RecordView

cdef enum:
    CHUNK_RECORDS = 1024


cdef class Chunk:
    cdef uint32_t sizes[CHUNK_RECORDS]      # size plus one; 0: unknown
    cdef uint32_t known


cdef class BodySizes:
    """Body sizes by offset; unknown ones count as 0."""

    cdef dict chunks

    def __init__(self):
        self.chunks = {}

    def __len__(self):
        """Number of known records."""
        cdef Chunk chunk
        cdef Py_ssize_t known = 0
        for chunk in self.chunks.values():
            known += chunk.known
        return known

    @property
    def held_bytes(self):
        """Memory of the chunks, in bytes."""
        return len(self.chunks) * CHUNK_RECORDS * sizeof(uint32_t)

    def index(self, Batch batch not None):
        """Add the sizes of a batch's records."""
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = batch.base_offset
        cdef Chunk chunk = None
        cdef uint32_t i
        for i in range(batch.count):
            if chunk is None or offset % CHUNK_RECORDS == 0:
                chunk = self._chunk(offset)
            position = batch.view(position, &record)
            if not chunk.sizes[offset % CHUNK_RECORDS]:
                chunk.known += 1
            chunk.sizes[offset % CHUNK_RECORDS] = <uint32_t>record.body_size + 1
            offset += 1

    cdef Chunk _chunk(self, uint64_t offset):
        cdef Chunk chunk = self.chunks.get(offset // CHUNK_RECORDS)
        if chunk is None:
            chunk = self.chunks[offset // CHUNK_RECORDS] = Chunk()
        return chunk

    def total(self, uint64_t first, uint64_t stop):
        """Return the total bytes of the records [first, stop)."""
        cdef uint64_t found = 0
        self._reach(first, stop, <uint64_t>-1, &found)
        return found

    def reach(self, uint64_t first, uint64_t stop, uint64_t size):
        """Return (offset, bytes): how far records from `first` on must go to have `size` bytes.

        At most to `stop`; the bytes are those of the records passed.
        """
        cdef uint64_t found = 0
        return self._reach(first, stop, size, &found), found

    cdef uint64_t _reach(self, uint64_t first, uint64_t stop, uint64_t size, uint64_t* found) except? 0:
        cdef Chunk chunk = None
        cdef uint64_t offset = first
        while offset < stop and found[0] < size:
            if offset == first or offset % CHUNK_RECORDS == 0:
                chunk = self.chunks.get(offset // CHUNK_RECORDS)
            if chunk is not None and chunk.sizes[offset % CHUNK_RECORDS]:
                found[0] += chunk.sizes[offset % CHUNK_RECORDS] - 1
            offset += 1
        return offset

    def truncate(self, uint64_t offset):
        """Drop the records from `offset` on, which are lost."""
        cdef uint64_t number
        for number in list(self.chunks):
            if (number + 1) * CHUNK_RECORDS > offset:
                self.forget(max(offset, number * CHUNK_RECORDS), (number + 1) * CHUNK_RECORDS)

    def forget(self, uint64_t first, uint64_t stop):
        """Drop the records [first, stop), which are settled."""
        cdef Chunk chunk = None
        cdef uint64_t offset
        for offset in range(first, stop):
            if offset == first or offset % CHUNK_RECORDS == 0:
                chunk = self.chunks.get(offset // CHUNK_RECORDS)
            if chunk is not None and chunk.sizes[offset % CHUNK_RECORDS]:
                chunk.sizes[offset % CHUNK_RECORDS] = 0
                chunk.known -= 1
                if chunk.known == 0:
                    del self.chunks[offset // CHUNK_RECORDS]
                    chunk = None
