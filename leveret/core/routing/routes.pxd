cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.counters cimport Counters
from leveret.ports.partitioner cimport Partitioner
from leveret.ports.records cimport BatchBuilder


@cython.final
cdef class Route:
    cdef readonly tuple builders
    cdef Partitioner placed_by      # of the message that was placed last
    cdef uint64_t placed_layout
    cdef BatchBuilder placed_in

    cdef BatchBuilder place(
        self, Partitioner partitioner, uint32_t flags, const uint8_t* address,
        const uint8_t* header, uint32_t header_size,
    )


@cython.final
cdef class RouteCache:
    cdef readonly object exchange
    cdef public bint cacheable
    cdef readonly uint64_t version      # changes whenever a route was dropped
    cdef readonly dict routes
    cdef object resolve
    cdef public Counters counters       # of the exchange

    cdef Route find(self, const uint8_t* key, size_t size)
