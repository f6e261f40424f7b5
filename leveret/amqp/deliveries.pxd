cimport cython
from cpython.object cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from leveret.amqp.added cimport AddedField
from leveret.amqp.frames cimport ChannelSlot
from leveret.ports.counters cimport Counters, DeliveryStatistics
from leveret.ports.records cimport Batch, RecordView
from leveret.ports.traffic cimport Traffic


@cython.final
cdef class Outbox:
    cdef PyObject* block
    cdef uint8_t* data
    cdef size_t capacity
    cdef size_t filled          # bytes of the block in use
    cdef size_t earlier         # bytes in `parts`
    cdef list parts             # finished blocks and views, in order
    cdef public uint32_t frame_size_max
    cdef public size_t size_max
    cdef readonly bint is_torn
    cdef readonly Traffic sent
    cdef public Counters counters   # the connection's
    cdef public Counters vhost      # what counts for the virtual host

    cdef int reserve(self, size_t extra) except -1
    cdef int grow(self, size_t capacity) except -1
    cdef void tear(self) noexcept
    cdef void tear_after(self, ChannelSlot slot, uint64_t given_out) noexcept
    cdef bytes take_block(self)
    cdef bint send(self, int descriptor) except -1
    cdef void count_sent(self, size_t size) noexcept
    cpdef list take(self)
    cdef int refer(self, Batch batch, const uint8_t* start, size_t size) except -1
    cdef int header(
        self, uint16_t channel, RecordView* record, AddedField added, uint64_t offset
    ) except -1
    cdef int content(
        self, Batch batch, uint16_t channel, RecordView* record, AddedField added, uint64_t offset
    ) except -1
    cdef size_t copied_size(self, RecordView* record) noexcept
    cpdef uint64_t deliver(
        self, ChannelSlot slot, bytes consumer_tag, list batches, uint64_t first, uint64_t stop,
        bint redelivered, AddedField added=*, DeliveryStatistics counted=*,
    ) except? 0
    cpdef uint64_t deliver_runs(
        self, ChannelSlot slot, bytes consumer_tag, list batches, list runs, bint redelivered,
        AddedField added=*, DeliveryStatistics counted=*,
    ) except? 0
    cdef uint64_t _deliver_from(
        self, Batch batch, ChannelSlot slot, bytes consumer_tag, uint64_t first, uint64_t stop,
        bint redelivered, AddedField added, DeliveryStatistics counted,
    ) except? 0
    cdef void count(
        self, DeliveryStatistics counted, uint64_t messages, uint64_t stored, bint redelivered, uint64_t since
    ) noexcept
    cpdef int confirm(self, ChannelSlot slot, uint64_t tag, bint multiple, bint nack) except -1
