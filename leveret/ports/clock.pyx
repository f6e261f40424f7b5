"""The machine's time; compiled because each read asks for it."""

from libc.stdint cimport int64_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec


cdef uint64_t now_ms() noexcept:
    """Return ms since 1970 by the machine's clock."""
    cdef timespec time
    clock_gettime(CLOCK_REALTIME, &time)
    return since_1970_ms(time.tv_sec, time.tv_nsec)


cpdef uint64_t since_1970_ms(int64_t seconds, int64_t nanoseconds) noexcept:
    """Return a time as ms since 1970, and 0 for a clock that says an earlier year.

    Records store their times as unsigned numbers.
    """
    return 0 if seconds < 0 else <uint64_t>seconds * 1000 + <uint64_t>nanoseconds // 1000000


cdef class SystemClock:
    """The machine's time (ports.Clock)."""

    def wall_ms(self):
        """Return ms since 1970, and 0 while the clock says an earlier year."""
        return now_ms()

    def monotonic_ms(self):
        """Return ms since some fixed moment."""
        cdef timespec time
        clock_gettime(CLOCK_MONOTONIC, &time)
        return <uint64_t>time.tv_sec * 1000 + <uint64_t>time.tv_nsec // 1000000
