from libc.stdint cimport uint64_t

from leveret.ports.contents cimport Piece, Properties
from leveret.ports.records cimport HAS_EXPIRATION, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID

cdef enum:
    # Flags of properties that are looked into before a message is stored.
    LOOKED_INTO = HAS_HEADERS | HAS_REPLY_TO | HAS_USER_ID | HAS_EXPIRATION


cdef int check_content(int flags, Properties* properties, bytes user, uint64_t* tag_mask) except -1
cdef bint is_reply_name(Piece* reply_to) noexcept nogil
