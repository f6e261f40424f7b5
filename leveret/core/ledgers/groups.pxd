from libc.stdint cimport uint8_t


cdef int check_group(const uint8_t* fields, const uint8_t* stop) except -1
