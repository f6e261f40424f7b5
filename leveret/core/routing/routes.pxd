cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

from leveret.ports.counters cimport Counters


@cython.final
cdef class Route:
    cdef readonly tuple builders


@cython.final
cdef class RouteCache:
    cdef readonly object exchange
    cdef public bint cacheable
    cdef readonly uint64_t version      # changes whenever a route was dropped
    cdef readonly dict routes
    cdef object resolve
    cdef public Counters counters       # of the exchange

    cdef Route find(self, const uint8_t* key, size_t size)
