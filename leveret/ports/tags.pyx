"""Tags of a message: the header `x-tags`, one string or an array of strings, and their mask.

    x-tags      u8 6 | "x-tags" | item                      one tag
                u8 6 | "x-tags" | "A" | u32 size | item …   several
    item        "S" | u32 size | bytes

Each record is stored with a mask of 64 bits, one set for each of its tags by a hash, so that a
consumer's filter skips most records without reading their headers. A record has tags exactly if
its mask is not 0. The hash is part of the storage format and does not change.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from leveret.errors import ChannelError
from leveret.ports.contents cimport HeadersPlace, be32, field_end, field_is, find_headers

TAGS = "x-tags"
# More would be data, not labels; and a filter that looks for one tag compares all of them.
TAGS_MAX = 32
TAG_BYTES_MAX = 128

cdef enum:
    _TAGS_MAX = 32
    _TAG_BYTES_MAX = 128
    NAME_BYTES = 6

cdef const uint8_t* NAME = <const uint8_t*>b"x-tags"


cdef uint64_t tag_bit(const uint8_t* tag, uint32_t size) noexcept nogil:
    """Return the mask bit of one tag: the upper six bits of FNV-1a, mixed once more."""
    cdef uint64_t h = <uint64_t>0xCBF29CE484222325
    cdef uint32_t i
    for i in range(size):
        h = (h ^ tag[i]) * <uint64_t>0x100000001B3
    h = (h ^ (h >> 32)) * <uint64_t>0x9E3779B97F4A7C15
    return <uint64_t>1 << (h >> 58)


cdef int items_of(const uint8_t* field, TagItems* items) noexcept nogil:
    """Set `items` to the items of a field `x-tags`. -1 if it is neither a string nor an array."""
    cdef const uint8_t* value = field + 1 + NAME_BYTES
    if value[0] != c"S" and value[0] != c"A":
        return -1
    items.stop = value + 5 + be32(value + 1)
    items.next = value if value[0] == c"S" else value + 5
    return 0


cdef bint next_tag(TagItems* items, const uint8_t** tag, uint32_t* size) noexcept nogil:
    """Return the next tag in `tag` and `size`.

    False at the end, or at an item that is no string.
    """
    cdef const uint8_t* item = items.next
    if items.stop - item < 5 or item[0] != c"S" or be32(item + 1) > <size_t>(items.stop - item - 5):
        return False
    tag[0] = item + 5
    size[0] = be32(item + 1)
    items.next = item + 5 + size[0]
    return True


cdef const uint8_t* tags_field(const uint8_t* fields, const uint8_t* stop) noexcept nogil:
    """Return the field `x-tags` of a table; NULL if it is absent or the table is malformed."""
    cdef const uint8_t* field = fields
    cdef const uint8_t* after
    while field < stop:
        after = field_end(field, stop)
        if after == NULL:
            return NULL
        if field_is(field, NAME, NAME_BYTES):
            return field
        field = after
    return NULL


cdef bint find_tags(const uint8_t* header, uint32_t size, TagItems* items) noexcept nogil:
    """Find the tags of a content header. False if it has none or is malformed."""
    cdef HeadersPlace place
    cdef const uint8_t* field
    if not find_headers(header, size, &place):
        return False
    field = tags_field(place.fields, place.stop)
    return field != NULL and items_of(field, items) == 0


cdef uint64_t mask_of(const uint8_t* header, uint32_t size) noexcept nogil:
    """Return the tag mask of a content header; 0 if it has no tags."""
    cdef TagItems items
    cdef const uint8_t* tag
    cdef uint32_t tag_size
    cdef uint64_t mask = 0
    if find_tags(header, size, &items):
        while next_tag(&items, &tag, &tag_size):
            mask |= tag_bit(tag, tag_size)
    return mask


cdef uint64_t checked_mask(const uint8_t* fields, const uint8_t* stop) except? 0:
    """Return the tag mask of a table's fields. Raises ChannelError 406 if the tags are invalid."""
    cdef const uint8_t* field = tags_field(fields, stop)
    cdef TagItems items
    cdef const uint8_t* tag
    cdef uint32_t size
    cdef uint64_t mask = 0
    cdef int count = 0
    if field == NULL:
        return 0
    if items_of(field, &items) < 0:
        raise refused("expected a string or an array of strings")
    while next_tag(&items, &tag, &size):
        count += 1
        if size > _TAG_BYTES_MAX:
            raise refused(f"a tag of {size} bytes is longer than {TAG_BYTES_MAX}")
        if count > _TAGS_MAX:
            raise refused(f"more than {TAGS_MAX} tags")
        mask |= tag_bit(tag, size)
    if items.next != items.stop:
        raise refused("expected an array of strings only")
    return mask


cdef object refused(str reason):
    return ChannelError(406, f"invalid header '{TAGS}': {reason}")


def tag_mask_of(bytes header not None):
    """Return the tag mask of a content header; `mask_of` for callers in Python."""
    return mask_of(<const uint8_t*><const char*>header, <uint32_t>len(header))


def tag_bit_of(bytes tag not None):
    """Return the mask bit of one tag; `tag_bit` for callers in Python."""
    return tag_bit(<const uint8_t*><const char*>tag, <uint32_t>len(tag))
