"""Busy polling for the next request of a single client, instead of sleeping.

Compiled because it looks hundreds of times a millisecond.
"""

cimport cython
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "<poll.h>" nogil:
    short POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* descriptors, unsigned long count, int timeout_ms)

cdef enum:
    SCORE_MAX = 8           # four requests in a row may be in vain
    SCORE_MIN = -8          # then one request in 256 is tried


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


def backend_descriptor(loop):
    """Return the epoll descriptor of an event loop, uvloop's or asyncio's; None if it has none."""
    if hasattr(loop, "_get_backend_id"):
        return loop._get_backend_id()
    selector = getattr(loop, "_selector", None)
    return selector.fileno() if hasattr(selector, "fileno") else None


@cython.final
cdef class BusyPoller:
    """Keeps the loop awake for a moment after a request whose client waits for the answer.

    The client's next request comes as soon as it has the answer. A processor that went to sleep
    meanwhile takes longer to wake than the broker takes to answer, several times as long on virtual
    machines. Where polling is mostly in vain, as where requests come later or answers wait for the
    disk, it is tried after fewer and fewer requests.
    """

    cdef object loop
    cdef object spin
    cdef pollfd polled
    cdef int64_t window_ns
    cdef int64_t since_ns       # when the last request was handled
    cdef int score              # falls by two where polling was in vain, rises by one where not
    cdef int skips              # requests until polling is tried again
    cdef bint is_scheduled

    def __init__(self, loop, int64_t microseconds):
        """`microseconds` is how long to poll after a request; 0 turns polling off."""
        descriptor = backend_descriptor(loop) if microseconds else None
        self.loop = loop
        self.spin = self._spin
        self.window_ns = 0 if descriptor is None else microseconds * 1000
        if descriptor is not None:
            self.polled.fd = descriptor
            self.polled.events = POLLIN

    def expect_more(self):
        """Poll before the loop sleeps, unless that has lately been in vain."""
        if not self.window_ns:
            return
        if self.skips:
            self.skips -= 1
            return
        self.since_ns = monotonic_ns()
        if not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call_soon(self.spin)

    def _spin(self):
        """Return as soon as the loop has something to do, or when the window is over."""
        self.is_scheduled = False
        while poll(&self.polled, 1, 0) == 0:
            if monotonic_ns() >= self.since_ns + self.window_ns:
                break
        else:
            self.score = min(self.score + 1, SCORE_MAX)
            return
        self.score = max(self.score - 2, SCORE_MIN)
        if self.score < 0:
            self.skips = 1 << -self.score
