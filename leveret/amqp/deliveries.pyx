"""The compiled half of the wire's writing side: stored records out as basic.deliver and basic.get-ok.

The bytes that a record keeps (exchange and routing key, content header, body) are copied as they lie,
but for a header field that may be added; the method frame around them is made here:

    basic.deliver   u16 60 | u16 60 | short consumer tag | u64 delivery tag | bit redelivered |
                    short exchange | short routing key
    basic.get-ok    u16 60 | u16 71 | u64 delivery tag | bit redelivered |
                    short exchange | short routing key | u32 message count
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, _PyBytes_Resize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from leveret.amqp.added cimport AddedField
from leveret.amqp.frames cimport ChannelSlot
from leveret.ports.contents cimport open_header_of, store_be32
from leveret.ports.counters cimport Counters, DeliveryStatistics, _CONFIRM, _SEND_CNT, _SEND_OCT
from leveret.ports.records cimport BLIND_COPIED, Batch, RecordView
from leveret.ports.traffic cimport Traffic

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    ssize_t send(int descriptor, const void* data, size_t size, int flags)

cdef enum:
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    FRAME_HEADER_BYTES = 7
    DELIVER_FIXED_BYTES = 4 + 1 + 8 + 1     # class, method, tag length, delivery tag, redelivered
    GET_OK_FIXED_BYTES = 4 + 8 + 1 + 4

OUTBOX_BYTES_MAX = 512 * 1024   # what deliveries may fill in a turn; they go on when the socket has it
cdef enum:
    # Bodies from this size on are not copied but sent from where the batch lies: the extra entry in
    # the socket's list of buffers costs about as much as copying this many bytes.
    REFERENCE_BYTES_MIN = 16384
    _OUTBOX_BYTES_MIN = 512     # an idle connection's answers fit; a busy one's buffer doubles
    SENT_BYTES_MAX = 16384      # beyond this a socket may well take a part, and the rest would be moved

OUTBOX_BYTES_MIN = _OUTBOX_BYTES_MIN


cdef inline void store_be16(uint8_t* p, uint16_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 8)
    p[1] = <uint8_t>v


cdef inline void store_be64(uint8_t* p, uint64_t v) noexcept nogil:
    store_be32(p, <uint32_t>(v >> 32))
    store_be32(p + 4, <uint32_t>v)


cdef inline uint8_t* frame_head(uint8_t* p, uint8_t frame_type, uint16_t channel, uint32_t size) noexcept nogil:
    p[0] = frame_type
    store_be16(p + 1, channel)
    store_be32(p + 3, size)
    return p + 7


cdef class Outbox:
    """Output of one connection, in bytes; handed to the transport once a turn.

    It gathers in a bytes object that is cut to size when it is taken, so that nothing is copied
    twice; large bodies stand between such blocks as views of their batches. `size` counts all of
    it, `sent` the messages that were ever written. `frame_size_max` is the largest payload of a
    frame, negotiated. With `size_max` bytes it is full: that is one connection's share of a turn,
    and deliveries stop.

    Where memory or a batch fails within a frame it `is_torn`: nobody could read what comes after that, so
    nothing is handed out any more, and the connection must end.
    """

    def __cinit__(self):
        self.block = NULL
        self.capacity = 0
        self.filled = 0
        self.earlier = 0
        self.parts = []
        self.frame_size_max = 4096 - FRAME_OVERHEAD
        self.size_max = OUTBOX_BYTES_MAX
        self.sent = Traffic()
        self.counters = Counters()
        self.vhost = Counters()

    def __dealloc__(self):
        Py_XDECREF(self.block)

    def __len__(self):
        return self.earlier + self.filled

    @property
    def size(self):
        """Number of bytes that wait to be taken."""
        return self.earlier + self.filled

    @property
    def is_full(self):
        """Whether deliveries must stop until the output is taken."""
        return self.earlier + self.filled >= self.size_max

    cdef int reserve(self, size_t extra) except -1:
        cdef size_t wanted = self.filled + extra
        if wanted <= self.capacity:
            return 0
        return self.grow(max(wanted, self.capacity * 2, <size_t>_OUTBOX_BYTES_MIN))

    cdef int grow(self, size_t capacity) except -1:
        cdef object fresh
        try:
            if self.block == NULL:
                fresh = PyBytes_FromStringAndSize(NULL, capacity)
                self.block = <PyObject*>fresh
                Py_INCREF(fresh)
            else:
                _PyBytes_Resize(&self.block, capacity)
        except MemoryError:
            self.tear()
            raise
        self.data = <uint8_t*>PyBytes_AS_STRING(<object>self.block)
        self.capacity = capacity
        return 0

    cdef void tear(self) noexcept:
        """Mark the outbox as torn. A block that could not be resized is gone, its pointer NULL."""
        self.is_torn = True
        Py_XDECREF(self.block)
        self.block = NULL
        self.data = NULL
        self.capacity = 0
        self.filled = 0

    cdef void tear_after(self, ChannelSlot slot, uint64_t given_out) noexcept:
        """Tear the outbox if a failed run has assigned delivery tags, which no caller learns of."""
        if slot.delivery_tag != given_out:
            self.tear()

    def write(self, const unsigned char[::1] data):
        """Append encoded bytes."""
        cdef size_t n = data.shape[0]
        if n:
            self.reserve(n)
            memcpy(self.data + self.filled, &data[0], n)
            self.filled += n

    cdef bytes take_block(self):
        """Return the current block, cut to its used size; the next write begins a new one."""
        cdef bytes taken
        if self.filled == 0:
            return b""
        if self.filled != self.capacity:
            try:
                _PyBytes_Resize(&self.block, self.filled)
            except MemoryError:
                self.tear()
                raise
        taken = <bytes>self.block
        Py_XDECREF(self.block)
        self.block = NULL
        self.capacity = 0
        self.filled = 0
        return taken

    cdef bint send(self, int descriptor) except -1:
        """Send all output to a socket from where it lies, if it is little; False if some is left.

        What is left has to be taken: the socket has no room, or is broken.
        """
        cdef ssize_t sent
        if self.is_torn or self.earlier or self.filled > SENT_BYTES_MAX:
            return False
        sent = send(descriptor, self.data, self.filled, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent <= 0:
            return False
        self.count_sent(sent)
        self.filled -= sent
        if self.filled:
            memmove(self.data, self.data + sent, self.filled)
            return False
        if self.capacity > _OUTBOX_BYTES_MIN:
            Py_XDECREF(self.block)
            self.block = NULL
            self.capacity = 0
        return True

    cdef void count_sent(self, size_t size) noexcept:
        """Count a write of `size` bytes."""
        self.counters.add(_SEND_OCT, size)
        self.counters.add(_SEND_CNT, 1)
        self.vhost.add(_SEND_OCT, size)

    cpdef list take(self):
        """Return all output as a list of buffers to be sent in order, and empty the outbox.

        The list is empty if the outbox is torn.
        """
        cdef list parts = self.parts
        cdef size_t size = self.earlier + self.filled
        if self.is_torn:
            self.tear()
            self.parts = []
            self.earlier = 0
            return []
        if size:
            self.count_sent(size)
        if self.filled:
            parts.append(self.take_block())
        if parts:
            self.parts = []
            self.earlier = 0
        return parts

    cdef int refer(self, Batch batch, const uint8_t* start, size_t size) except -1:
        """Append `size` bytes of a batch without copying them; the view keeps the batch alive."""
        cdef size_t position = start - batch.data
        if self.filled:
            self.earlier += self.filled
            self.parts.append(self.take_block())
        self.parts.append(memoryview(batch)[position : position + size])
        self.earlier += size
        return 0

    cdef int header(
        self, uint16_t channel, RecordView* record, AddedField added, uint64_t offset
    ) except -1:
        """Append a record's content header with the added fields; room must be reserved."""
        cdef uint32_t size = record.header_size
        cdef uint8_t* frame = self.data + self.filled
        cdef uint8_t* payload = frame + FRAME_HEADER_BYTES
        if added is None:
            memcpy(payload, record.header, size)
        else:
            size = added.copy(record.header, size, offset, self.frame_size_max, payload)
        frame_head(frame, 2, channel, size)
        payload[size] = FRAME_END
        self.filled += size + FRAME_OVERHEAD
        return 0

    cdef int content(
        self, Batch batch, uint16_t channel, RecordView* record, AddedField added, uint64_t offset
    ) except -1:
        """Append a record's content header and body frames."""
        cdef const uint8_t* body = record.body
        cdef size_t rest = record.body_size
        cdef uint32_t piece
        cdef uint8_t* o
        cdef bytes shown
        if record.flags & BLIND_COPIED:
            shown = open_header_of(record.header, record.header_size)
            record.header, record.header_size = <const uint8_t*><const char*>shown, <uint32_t>len(shown)
        self.reserve(
            record.header_size + (0 if added is None else added.room) + FRAME_OVERHEAD
            + self.copied_size(record)
        )
        self.header(channel, record, added, offset)
        while rest:
            piece = self.frame_size_max if rest > self.frame_size_max else <uint32_t>rest
            if piece >= REFERENCE_BYTES_MIN:
                self.reserve(FRAME_HEADER_BYTES)
                frame_head(self.data + self.filled, 3, channel, piece)
                self.filled += FRAME_HEADER_BYTES
                self.refer(batch, body, piece)
                self.reserve(1)
                self.data[self.filled] = FRAME_END
                self.filled += 1
            else:
                self.reserve(piece + FRAME_OVERHEAD)
                o = frame_head(self.data + self.filled, 3, channel, piece)
                memcpy(o, body, piece)
                o[piece] = FRAME_END
                self.filled += piece + FRAME_OVERHEAD
            body += piece
            rest -= piece
        return 0

    cdef size_t copied_size(self, RecordView* record) noexcept:
        """Return the bytes to reserve for a body: its frame, if it is small enough to be copied."""
        if record.body_size >= REFERENCE_BYTES_MIN or record.body_size > self.frame_size_max:
            return FRAME_OVERHEAD
        return record.body_size + FRAME_OVERHEAD

    cpdef uint64_t deliver(
        self, ChannelSlot slot, bytes consumer_tag, list batches, uint64_t first, uint64_t stop,
        bint redelivered, AddedField added=None, DeliveryStatistics counted=None,
    ) except? 0:
        """Append basic.deliver for the records [first, stop), numbered on from the slot's delivery tag.

        Each gets the header field `added`, where that has a value for its offset, and is `counted`.

        Goes on until the outbox is full (one record at least is written) or the batches end. Returns
        the offset behind the last record written.
        """
        cdef Batch batch
        cdef uint64_t given_out = slot.delivery_tag
        try:
            for batch in batches:
                if first >= batch.base_offset + batch.count:
                    continue
                if first < batch.base_offset:
                    break
                first = self._deliver_from(
                    batch, slot, consumer_tag, first, min(stop, batch.base_offset + batch.count),
                    redelivered, added, counted,
                )
                if first == stop or first != batch.base_offset + batch.count \
                        or self.earlier + self.filled >= self.size_max:
                    break
        except BaseException:
            self.tear_after(slot, given_out)
            raise
        return first

    cpdef uint64_t deliver_runs(
        self, ChannelSlot slot, bytes consumer_tag, list batches, list runs, bint redelivered,
        AddedField added=None, DeliveryStatistics counted=None,
    ) except? 0:
        """Append basic.deliver for several runs [(first, stop)] of records, as `deliver` does."""
        cdef Py_ssize_t at = 0, i
        cdef uint64_t first, stop, reached = 0
        cdef uint64_t given_out = slot.delivery_tag
        cdef Batch batch
        try:
            for i in range(len(runs)):
                first, stop = runs[i]
                while at < len(batches):
                    batch = batches[at]
                    if first < batch.base_offset + batch.count:
                        break
                    at += 1
                else:
                    raise IndexError(f"no batch holds the record {first}")
                if stop <= batch.base_offset + batch.count:
                    reached = self._deliver_from(
                        batch, slot, consumer_tag, first, stop, redelivered, added, counted
                    )
                else:
                    reached = self.deliver(
                        slot, consumer_tag, batches, first, stop, redelivered, added, counted
                    )
                if reached != stop or self.earlier + self.filled >= self.size_max:
                    break
        except BaseException:
            self.tear_after(slot, given_out)
            raise
        return reached

    cdef uint64_t _deliver_from(
        self, Batch batch, ChannelSlot slot, bytes consumer_tag, uint64_t first, uint64_t stop,
        bint redelivered, AddedField added, DeliveryStatistics counted,
    ) except? 0:
        cdef size_t position = batch.locate(first)
        cdef uint8_t tag_size = <uint8_t>len(consumer_tag)
        cdef const char* tag = consumer_tag
        cdef uint16_t channel = slot.number
        cdef uint64_t delivery_tag = slot.delivery_tag
        cdef uint64_t offset = first
        cdef uint64_t stored = 0, since
        cdef uint32_t method_size
        cdef RecordView record
        cdef uint8_t* o
        batch.view(position, &record)
        since = batch.time_of(&record)
        try:
            while offset < stop:
                position = batch.view(position, &record)
                stored += record.size
                method_size = DELIVER_FIXED_BYTES + tag_size + record.address_size
                self.reserve(
                    method_size + record.header_size + 2 * FRAME_OVERHEAD + self.copied_size(&record)
                )
                delivery_tag += 1
                o = frame_head(self.data + self.filled, 1, channel, method_size)
                store_be32(o, (60 << 16) | 60)
                o[4] = tag_size
                memcpy(o + 5, tag, tag_size)
                o += 5 + tag_size
                store_be64(o, delivery_tag)
                o[8] = redelivered
                memcpy(o + 9, record.address, record.address_size)
                o += 9 + record.address_size
                o[0] = FRAME_END
                self.filled += method_size + FRAME_OVERHEAD
                self.content(batch, channel, &record, added, offset)
                offset += 1
                if self.earlier + self.filled >= self.size_max:
                    break
        except BaseException:
            self.tear()
            raise
        self.count(counted, offset - first, stored, redelivered, since)
        slot.delivery_tag = delivery_tag
        batch.cursor_offset = offset
        batch.cursor_position = position
        return offset

    def get_ok(
        self, ChannelSlot slot, Batch batch, uint64_t offset, bint redelivered, uint32_t message_count,
        AddedField added=None, DeliveryStatistics counted=None,
    ):
        """Append basic.get-ok for one record, with the slot's next delivery tag."""
        cdef RecordView record
        cdef uint32_t method_size
        cdef uint8_t* o
        batch.view(batch.locate(offset), &record)
        method_size = GET_OK_FIXED_BYTES + record.address_size
        self.reserve(method_size + FRAME_OVERHEAD)
        slot.delivery_tag += 1
        o = frame_head(self.data + self.filled, 1, slot.number, method_size)
        store_be32(o, (60 << 16) | 71)
        store_be64(o + 4, slot.delivery_tag)
        o[12] = redelivered
        memcpy(o + 13, record.address, record.address_size)
        o += 13 + record.address_size
        store_be32(o, message_count)
        o[4] = FRAME_END
        self.filled += method_size + FRAME_OVERHEAD
        try:
            self.content(batch, slot.number, &record, added, offset)
        except BaseException:
            self.tear()
            raise
        self.count(counted, 1, record.size, redelivered, batch.time_of(&record))

    cdef void count(
        self, DeliveryStatistics counted, uint64_t messages, uint64_t stored, bint redelivered, uint64_t since
    ) noexcept:
        self.sent.add(messages, stored)
        if counted is not None:
            counted.handed_out(messages, stored, redelivered, since)

    cpdef int confirm(self, ChannelSlot slot, uint64_t tag, bint multiple, bint nack) except -1:
        """Append basic.ack or basic.nack for the publish `tag` and, if `multiple`, earlier ones."""
        cdef uint8_t* o
        if not nack:
            slot.counters.add(_CONFIRM, tag - slot.confirmed)
            self.vhost.add(_CONFIRM, tag - slot.confirmed)
        slot.confirmed = tag
        self.reserve(FRAME_OVERHEAD + 13)
        o = frame_head(self.data + self.filled, 1, slot.number, 13)
        store_be32(o, (60 << 16) | (120 if nack else 80))
        store_be64(o + 4, tag)
        o[12] = multiple | (2 if nack else 0)      # a nack's bit `requeue` is set unless it is cleared
        o[13] = FRAME_END
        self.filled += FRAME_OVERHEAD + 13
        return 0
