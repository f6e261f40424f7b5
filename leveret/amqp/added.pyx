"""Header fields that the broker adds to messages on their way out: an offset, delivery counts.

The stored content header stays as the publisher sent it; the fields are put in while the header frame
is written (see deliveries). They stand first in the table, and fields of the same names that the
publisher sent are left out. Where a table makes no sense from some field on, the rest of it is copied
as it lies.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from leveret.ports.contents cimport HEADERS_BIT, HeadersPlace, field_end, field_is, find_headers

cdef enum:
    LENGTH_BYTES = 4        # of a table
    VALUE_BYTES = 9         # letter and number

NAME_BYTES_MAX = 128        # what RabbitMQ allows its clients, and more than we call anything


cdef uint8_t* store_be(uint8_t* p, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        p[i] = <uint8_t>(value >> (8 * (size - 1 - i)))
    return p + size


cdef uint8_t* write_field(bytes name, int64_t value, uint8_t* out) noexcept:
    cdef uint8_t name_size = <uint8_t>len(name)
    out[0] = name_size
    memcpy(out + 1, <const char*>name, name_size)
    out += 1 + name_size
    out[0] = c"l"
    return store_be(out + 1, <uint64_t>value, 8)


cdef class AddedField:
    """A header field `name`, a signed 64-bit number: the record's offset."""

    def __init__(self, *names):
        self.names = tuple([name.encode() for name in names])
        if max(map(len, self.names)) > NAME_BYTES_MAX:
            raise ValueError(f"a field's name has at most {NAME_BYTES_MAX} bytes")
        self.room = LENGTH_BYTES + <uint32_t>sum([1 + len(name) + VALUE_BYTES for name in self.names])

    cdef uint8_t* write_fields(self, uint64_t offset, uint8_t* out) except NULL:
        """Write the fields of a record to `out`. Returns the end of what was written."""
        return write_field(self.names[0], <int64_t>offset, out)

    cdef uint32_t copy(
        self, const uint8_t* header, uint32_t size, uint64_t offset, uint32_t size_max, uint8_t* out
    ) except? 0:
        """Copy a content header to `out` (`size + self.room` bytes), the field added. Returns its size.

        A header that would grow beyond `size_max`, the client's largest frame, is copied as it is:
        the client cannot take the frame, and would not get past this message ever again.
        """
        cdef HeadersPlace place
        cdef uint8_t* o
        cdef uint8_t* fields
        if find_headers(header, size, &place):
            fields = out + (place.start - header) + LENGTH_BYTES
            o = self.write_fields(offset, fields)
            if o != fields:
                memcpy(out, header, place.start - header)
                out[12] |= 1 << HEADERS_BIT - 8
                o = self.copy_others(&place, o)
                store_be(fields - LENGTH_BYTES, o - fields, LENGTH_BYTES)
                memcpy(o, place.stop, header + size - place.stop)
                o += header + size - place.stop
                if o - out <= max(size, size_max):
                    return <uint32_t>(o - out)
        memcpy(out, header, size)
        return size

    cdef uint8_t* copy_others(self, HeadersPlace* place, uint8_t* out) noexcept:
        """Copy the table's fields except those whose names are added."""
        cdef const uint8_t* kept = place.fields     # not copied yet, from here on
        cdef const uint8_t* field = place.fields
        cdef const uint8_t* after
        while field < place.stop:
            after = field_end(field, place.stop)
            if after == NULL:
                break
            if self.is_ours(field):
                memcpy(out, kept, field - kept)
                out += field - kept
                kept = after
            field = after
        memcpy(out, kept, place.stop - kept)
        return out + (place.stop - kept)

    cdef bint is_ours(self, const uint8_t* field) noexcept:
        cdef bytes name
        for name in self.names:
            if field_is(field, <const uint8_t*><const char*>name, <uint8_t>len(name)):
                return True
        return False


cdef class CountedFields(AddedField):
    """Header fields whose numbers `counts` gives by field name and offset."""

    def __init__(self, dict counts not None):
        super().__init__(*counts)
        self.counts = list(counts.values())

    cdef uint8_t* write_fields(self, uint64_t offset, uint8_t* out) except NULL:
        cdef Py_ssize_t i
        for i in range(len(self.counts)):
            count = (<dict>self.counts[i]).get(offset)
            if count is not None:
                out = write_field(self.names[i], count, out)
        return out


cdef class PlacedFields(AddedField):
    """Header fields of a record's place, x-partition and `offset_name`, and of its `counts` as above."""

    def __init__(self, int64_t partition, str offset_name not None, dict counts not None):
        super().__init__("x-partition", offset_name, *counts)
        self.partition = partition
        self.counts = list(counts.values())

    cdef uint8_t* write_fields(self, uint64_t offset, uint8_t* out) except NULL:
        cdef Py_ssize_t i
        out = write_field(self.names[0], self.partition, out)
        out = write_field(self.names[1], <int64_t>offset, out)
        for i in range(len(self.counts)):
            count = (<dict>self.counts[i]).get(offset)
            if count is not None:
                out = write_field(self.names[2 + i], count, out)
        return out
