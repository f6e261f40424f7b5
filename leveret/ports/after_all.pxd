cdef class AfterAll:
    cdef readonly Py_ssize_t pending
    cdef readonly bint failed
    cdef object then

    cdef int note(self, bint failed) except -1
    cdef int end(self) except -1


cdef int notify(list waiters, report, bint failed) except -1
