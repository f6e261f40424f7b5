"""Reading a few of a message's headers, however many it has.

A table may have tens of thousands, and making objects of them all takes longer than whatever is done
with one. Here a name is compared only where its length and its first octet may be one that is asked
for; all others cost some instructions.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from leveret.ports.headers cimport HeadersPlace, field_end, find_headers
from leveret.ports.tables import MalformedFieldError, decode_value

cdef enum:
    OCTETS = 256
    FLAGS_AT = 12           # of a content header
    HEADERS_OCTET = 1 << 5  # in its upper octet: there is a headers table


cdef class HeaderNames:
    """The names of some headers, ready to be looked for in many messages."""

    cdef dict names                 # what they are called, by their octets
    cdef bint[OCTETS] sizes         # whether one has so many octets
    cdef bint[OCTETS] begins        # whether one begins so

    def __init__(self, names):
        self.names = {}
        memset(self.sizes, 0, sizeof(self.sizes))
        memset(self.begins, 0, sizeof(self.begins))
        for name in names:
            octets = name.encode("utf-8", "surrogateescape")
            if len(octets) < OCTETS:
                self.names[octets] = name
                self.sizes[len(octets)] = True
                self.begins[octets[0] if octets else 0] = True

    def pick(self, bytes header not None):
        """{name: value} of those that a content header has. Raises MalformedFieldError."""
        cdef dict found = {}
        cdef HeadersPlace place
        cdef const uint8_t* field
        cdef const uint8_t* after
        cdef const uint8_t* value
        if not self.names:
            return found
        if not find_headers(<const uint8_t*><const char*>header, <uint32_t>len(header), &place):
            raise MalformedFieldError("a content header is cut off")
        field = place.fields
        while field < place.stop:
            after = field_end(field, place.stop)
            if after == NULL:
                raise MalformedFieldError("a field does not end in its table")
            if self.sizes[field[0]] and (not field[0] or self.begins[field[1]]):
                name = self.names.get((<const char*>field + 1)[: field[0]])
                if name is not None:
                    value = field + 1 + field[0]
                    found[name] = decode_value((<const char*>value)[: after - value])
            field = after
        return found


def without_headers(bytes header not None):
    """A content header as it would be without its table. Raises MalformedFieldError."""
    cdef HeadersPlace place
    cdef const uint8_t* begin = <const uint8_t*><const char*>header
    cdef bytearray rest
    if not find_headers(begin, <uint32_t>len(header), &place):
        raise MalformedFieldError("a content header is cut off")
    if place.start == place.stop:
        return header
    rest = bytearray(header[: place.start - begin] + header[place.stop - begin :])
    rest[FLAGS_AT] &= ~HEADERS_OCTET & 0xFF
    return bytes(rest)
