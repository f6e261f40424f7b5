"""Lookup of a few headers of a message, at a cost independent of how many it has.

A table may have tens of thousands of fields, and decoding them all takes longer than anything done
with one. Here a name is compared only if its length and first octet match one of the wanted names;
all other fields cost a few instructions.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from leveret.ports.contents cimport HeadersPlace, field_end, find_headers
from leveret.ports.tables import MalformedFieldError, decode_value

cdef enum:
    OCTETS = 256
    FLAGS_AT = 12           # of a content header
    HEADERS_OCTET = 1 << 5  # in its upper octet: there is a headers table


cdef class HeaderNames:
    """Set of header names, prepared for lookup in many messages."""

    cdef dict names                 # names by their encoded octets
    cdef bint[OCTETS] sizes         # whether a name has this many octets
    cdef bint[OCTETS] begins        # whether a name begins with this octet

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
        """Return {name: value} of those present in a content header. Raises MalformedFieldError."""
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
    """Return a content header without its headers table. Raises MalformedFieldError."""
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
