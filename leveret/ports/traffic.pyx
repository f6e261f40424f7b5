"""Traffic counters of one direction, incremented by compiled code."""


cdef class Traffic:
    """Number of messages and of their bytes as stored: content header, body and address."""
