cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.records cimport BatchBuilder


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
