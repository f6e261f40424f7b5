from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.records cimport RecordView


cdef uint64_t expiration_ms(const RecordView* record) noexcept nogil
cdef int priority(const RecordView* record, int otherwise) noexcept nogil
