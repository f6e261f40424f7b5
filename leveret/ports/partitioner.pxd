cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.contents cimport Piece
from leveret.ports.records cimport BatchBuilder


cdef enum:
    KEY_TEXT_BYTES = 24     # a 64-bit number with its sign, and the end


cdef bint find_key(
    uint32_t flags, const uint8_t* header, uint32_t header_size,
    const uint8_t* name, uint8_t name_size, char* text, Piece* key,
) noexcept nogil


@cython.final
cdef class Partitioner:
    cdef public object owner        # the partitioned queue
    cdef readonly tuple builders    # of the partitions that publishes go to, by number
    cdef readonly uint64_t layout   # changes whenever `builders` does
    cdef readonly str by
    cdef bytes field                # name of the header that has the key
    cdef bint by_key
    cdef bint in_turn
    cdef uint64_t counted
    cdef uint64_t random_state

    cdef BatchBuilder choose(
        self, uint32_t flags, const uint8_t* address, const uint8_t* header, uint32_t header_size
    )
    cdef BatchBuilder choose_again(
        self, uint64_t number, uint32_t flags, const uint8_t* address,
        const uint8_t* header, uint32_t header_size,
    )
    cdef uint32_t hash_of(
        self, uint32_t flags, const uint8_t* address, const uint8_t* header, uint32_t header_size
    ) noexcept
