from libc.stdint cimport int64_t, uint32_t, uint64_t

from leveret.ports.records cimport Batch


cdef class SegmentWriter:
    cdef public object _files           # a FileSystem
    cdef public uint32_t _epoch       # of all batches that are written
    cdef public object sink             # LogSink of a log that is copied, else None
    cdef public list items              # segments; the last one is written to
    cdef public list dirty              # segments with unflushed bytes, oldest first
    cdef public int64_t position        # in it, where the next batch goes
    cdef public int64_t _file_bytes     # size of the last segment's file, zeros at its end included
    cdef public bint _flushes           # whether confirms wait for flushes: files grow ahead then
    cdef public uint64_t latest_ms      # time of the youngest record
    cdef public int64_t _roll_at        # from this position on a write first prepares a segment
    cdef public object _index           # of the last segment, once it is written to
    cdef public object _sealer          # the same, None where it is not encrypted
    cdef bint _is_direct                # whether the system's own call writes
    cdef bint _flushes_directly         # the same of flushes

    cdef int64_t _write(self, Batch batch, uint64_t end) except -1
    cdef int _grow(self, int handle, int64_t next_bytes) except -1
    cdef bint _is_written(self, int handle, Batch batch) noexcept
    cdef int _flush_last(self) except -1
