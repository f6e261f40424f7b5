from libc.stdint cimport uint64_t


cdef class LogWindow:
    cdef object log             # a SharedLog
    cdef Py_ssize_t read_bytes_max
    cdef list batches

    cdef list _find(self, uint64_t offset)
    cdef int _hold(self, list batches, uint64_t offset) except -1
    cpdef list at_hand(self, uint64_t offset)
    cpdef clear(self)


cdef class WindowReader:
    cdef public LogWindow _window
    cdef public object _last            # Batch of the last single-record lookup
    cdef public bint fetching

    cpdef list read(self, uint64_t offset)
    cpdef batch_at_hand(self, uint64_t offset)
    cpdef clear(self)
