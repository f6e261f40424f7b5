from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.records cimport RecordView


cdef const uint8_t* find_property(const RecordView* record, int wanted, uint32_t* size) noexcept nogil
cdef uint64_t expiration_ms(const RecordView* record) noexcept nogil
cdef int priority(const RecordView* record, int otherwise) noexcept nogil
