from libc.stdint cimport int64_t, uint64_t


cdef uint64_t now_ms() noexcept
cpdef uint64_t since_1970_ms(int64_t seconds, int64_t nanoseconds) noexcept
