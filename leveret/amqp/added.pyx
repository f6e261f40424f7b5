"""A header field that the broker adds to messages on their way out: an offset, a delivery count.

The stored content header stays as the publisher sent it; the field is put in while the header frame
is written (see deliveries). It stands first in the table, and a field of the same name that the
publisher sent is left out. Where a table makes no sense from some field on, the rest of it is copied
as it lies.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from leveret.ports.headers cimport HEADERS_BIT, HeadersPlace, field_end, field_is, find_headers

cdef enum:
    LENGTH_BYTES = 4        # of a table
    VALUE_BYTES = 9         # letter and number

NAME_BYTES_MAX = 128        # what RabbitMQ allows its clients, and more than we call anything


cdef uint8_t* store_be(uint8_t* p, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        p[i] = <uint8_t>(value >> (8 * (size - 1 - i)))
    return p + size


cdef class AddedField:
    """The field `name`, a signed 64-bit number: the record's offset."""

    def __init__(self, str name not None):
        self.name = name.encode()
        if len(self.name) > NAME_BYTES_MAX:
            raise ValueError(f"a field's name has at most {NAME_BYTES_MAX} bytes")
        self.room = LENGTH_BYTES + 1 + <uint32_t>len(self.name) + VALUE_BYTES

    cdef bint value_of(self, uint64_t offset, int64_t* value) except -1:
        """Set the record's value; False where it gets none."""
        value[0] = <int64_t>offset
        return True

    cdef uint32_t copy(
        self, const uint8_t* header, uint32_t size, uint64_t offset, uint32_t size_max, uint8_t* out
    ) except? 0:
        """Copy a content header to `out` (`size + self.room` bytes), the field added. Returns its size.

        A header that would grow beyond `size_max`, the client's largest frame, is copied as it is:
        the client cannot take the frame, and would not get past this message ever again.
        """
        cdef HeadersPlace place
        cdef int64_t value
        cdef uint8_t* o = out
        cdef uint8_t* fields
        if self.value_of(offset, &value) and find_headers(header, size, &place):
            memcpy(o, header, place.start - header)
            o[12] |= HEADERS_BIT >> 8
            o += place.start - header
            fields = o + LENGTH_BYTES
            o = self.copy_others(&place, self.write_field(value, fields))
            store_be(fields - LENGTH_BYTES, o - fields, LENGTH_BYTES)
            memcpy(o, place.stop, header + size - place.stop)
            o += header + size - place.stop
            if o - out <= max(size, size_max):
                return <uint32_t>(o - out)
        memcpy(out, header, size)
        return size

    cdef uint8_t* write_field(self, int64_t value, uint8_t* out) noexcept:
        cdef uint8_t name_size = <uint8_t>len(self.name)
        out[0] = name_size
        memcpy(out + 1, <const char*>self.name, name_size)
        out += 1 + name_size
        out[0] = c"l"
        return store_be(out + 1, <uint64_t>value, 8)

    cdef uint8_t* copy_others(self, HeadersPlace* place, uint8_t* out) noexcept:
        """Copy the table's fields but those of our name."""
        cdef const uint8_t* name = <const uint8_t*><const char*>self.name
        cdef uint8_t name_size = <uint8_t>len(self.name)
        cdef const uint8_t* kept = place.fields     # not copied yet, from here on
        cdef const uint8_t* field = place.fields
        cdef const uint8_t* after
        while field < place.stop:
            after = field_end(field, place.stop)
            if after == NULL:
                break
            if field_is(field, name, name_size):
                memcpy(out, kept, field - kept)
                out += field - kept
                kept = after
            field = after
        memcpy(out, kept, place.stop - kept)
        return out + (place.stop - kept)


cdef class CountedField(AddedField):
    """The field `name` with a number that `counts` has for some offsets; others get no field."""

    def __init__(self, str name not None, dict counts not None):
        super().__init__(name)
        self.counts = counts

    cdef bint value_of(self, uint64_t offset, int64_t* value) except -1:
        count = self.counts.get(offset)
        if count is None:
            return False
        value[0] = count
        return True
