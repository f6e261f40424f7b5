"""Bytes of one connection: splits received frames, sends bursts and acks.

A frame (specification 4.2.3), integers big-endian:

    0      1         3             7                7 + size  8 + size
    +------+---------+-------------+----------------+----------+
    | type | channel | size        | payload        | 0xCE     |
    +------+---------+-------------+----------------+----------+

Deliveries, confirms and bodies are handled here and in the endpoints without a Python object for
each; every other method is left in `Link.methods` as the bytes of its frame, for pamqp.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from leveret.errors import LeveretError

cdef extern from "sys/socket.h":
    enum:
        MSG_NOSIGNAL
    ssize_t c_recv "recv"(int fd, void* at, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void* at, size_t size, int flags)

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD_BYTES = 8
    RECEIVE_BYTES = 1 << 18  # one read: enough to amortise the call, small enough to stay cached
    OUTBOX_BYTES = 1 << 12  # acks of one read usually fit; it grows when they do not
    OUTBOX_BYTES_MAX = 1 << 26  # a broker that reads no acks at all is broken, say so


class WireError(LeveretError):
    """The broker sent something that is not AMQP 0-9-1, or was not asked for."""


cdef uint64_t monotonic_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef class WorkerCounters:
    """Counters of one worker, kept in `memory`, which other processes may read at any time."""

    def __init__(self, memory):
        cdef Py_buffer view
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        try:
            if <size_t>view.len < sizeof(Tallies):
                raise ValueError(f"{view.len} bytes are too few for the counters")
            self.tallies = <Tallies*>view.buf
            self.memory = memory  # shared memory never moves; the reference keeps it alive
        finally:
            PyBuffer_Release(&view)


cdef class Endpoint:
    """A publisher or a consumer on one channel of a link."""

    cdef int method(self, uint32_t name, const uint8_t* at, size_t size) except -1:
        """Handle a method's arguments; return 0 for a method that it does not handle."""
        return 0

    cdef int body_starts(self, uint64_t size) except -1:
        raise WireError(f"content on channel {self.channel}, which receives none")

    cdef int body_part(self, const uint8_t* at, size_t size) except -1:
        raise WireError(f"content on channel {self.channel}, which receives none")

    cdef int read_ends(self) except -1:
        return 0


cdef class Link:
    """Bytes of one connection. `fd` is a non-blocking socket, or -1 when tests carry the bytes."""

    def __cinit__(self, int fd, size_t frame_bytes_max):
        self.fd = fd
        self.frame_bytes_max = frame_bytes_max
        self.methods = []
        self.endpoints = []
        self.inbox_capacity = RECEIVE_BYTES + frame_bytes_max + FRAME_OVERHEAD_BYTES
        self.inbox = <uint8_t*>malloc(self.inbox_capacity)
        self.outbox_capacity = OUTBOX_BYTES
        self.outbox = <uint8_t*>malloc(self.outbox_capacity)
        if self.inbox == NULL or self.outbox == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.inbox)
        free(self.outbox)

    # Receiving

    def receive(self):
        """Read what has come and handle it; returns the number of bytes, 0 when there were none.

        Raises ConnectionResetError at the end of the stream and WireError for nonsense.
        """
        cdef uint8_t* at = self.inbox + self.inbox_bytes
        cdef size_t space = self.inbox_capacity - self.inbox_bytes
        cdef ssize_t got
        got = c_recv(self.fd, at, space, 0)
        if got < 0:
            if errno in (EAGAIN, EINTR):
                return 0
            raise ConnectionResetError(errno, "the broker's connection failed")
        if got == 0:
            raise ConnectionResetError("the broker closed the connection")
        self.inbox_bytes += got
        self.take()
        return got

    def feed(self, const unsigned char[::1] data not None):
        """Handle bytes that were received elsewhere."""
        cdef size_t done = 0, part, size = data.shape[0]
        while done < size:
            part = min(size - done, self.inbox_capacity - self.inbox_bytes)
            memcpy(self.inbox + self.inbox_bytes, &data[done], part)
            self.inbox_bytes += part
            done += part
            self.take()

    cdef int take(self) except -1:
        cdef size_t used
        cdef Endpoint endpoint
        self.now_ns = monotonic_ns()
        used = self.split(self.inbox, self.inbox_bytes)
        if used < self.inbox_bytes:
            memmove(self.inbox, self.inbox + used, self.inbox_bytes - used)
        self.inbox_bytes -= used
        for endpoint in self.endpoints:
            if endpoint is not None:
                endpoint.read_ends()
        return 0

    cdef Py_ssize_t split(self, const uint8_t* data, size_t size) except -1:
        """Handle the whole frames at the start of `data`; return their size in bytes."""
        cdef size_t at = 0, payload_bytes
        cdef const uint8_t* payload
        cdef uint16_t channel
        cdef int known = -1
        cdef Endpoint endpoint = None
        while size - at >= FRAME_OVERHEAD_BYTES:
            payload_bytes = load32(data + at + 3)
            if payload_bytes + FRAME_OVERHEAD_BYTES > self.frame_bytes_max:
                raise WireError(f"a frame of {payload_bytes} bytes is longer than agreed")
            if size - at < payload_bytes + FRAME_OVERHEAD_BYTES:
                break
            payload = data + at + 7
            if payload[payload_bytes] != FRAME_END:
                raise WireError("a frame does not end in 0xCE")
            channel = load16(data + at + 1)
            if channel != known:
                known = channel
                endpoint = self.endpoints[channel] if channel < len(self.endpoints) else None
            if data[at] == FRAME_METHOD:
                if payload_bytes < 4:
                    raise WireError("a method frame without a method")
                if endpoint is None or not endpoint.method(
                    load32(payload), payload + 4, payload_bytes - 4
                ):
                    self.methods.append(
                        PyBytes_FromStringAndSize(
                            <char*>data + at, payload_bytes + FRAME_OVERHEAD_BYTES
                        )
                    )
            elif data[at] == FRAME_HEADER:
                if payload_bytes < 14 or endpoint is None or endpoint.in_content:
                    raise WireError("a content header that nobody waits for")
                endpoint.body_left = load64(payload + 4)
                endpoint.in_content = endpoint.body_left > 0
                endpoint.body_starts(endpoint.body_left)
            elif data[at] == FRAME_BODY:
                if endpoint is None or payload_bytes > endpoint.body_left:
                    raise WireError("body bytes that nobody waits for")
                endpoint.body_left -= payload_bytes
                endpoint.in_content = endpoint.body_left > 0
                endpoint.body_part(payload, payload_bytes)
            elif data[at] != FRAME_HEARTBEAT:
                raise WireError(f"frame type {data[at]}")
            at += payload_bytes + FRAME_OVERHEAD_BYTES
        return at

    # Sending: a burst under way goes first, then the outbox; a new burst waits for both

    cdef bint has_unsent(self) noexcept:
        return self.burst_bytes > 0 or self.outbox_bytes > self.outbox_sent

    @property
    def unsent(self):
        return self.has_unsent()

    cdef uint8_t* room(self, size_t size) except NULL:
        """Reserve `size` bytes at the outbox's end, counted as written."""
        cdef uint8_t* moved
        cdef size_t wanted = self.outbox_capacity
        if self.outbox_bytes + size > self.outbox_capacity:
            while self.outbox_bytes + size > wanted:
                wanted *= 2
            if wanted > OUTBOX_BYTES_MAX:
                raise WireError("the broker does not read what it is sent")
            moved = <uint8_t*>realloc(self.outbox, wanted)
            if moved == NULL:
                raise MemoryError
            self.outbox, self.outbox_capacity = moved, wanted
        self.outbox_bytes += size
        return self.outbox + self.outbox_bytes - size

    cdef int start_burst(self, const uint8_t* at, size_t size) except -1:
        """Send `size` bytes, which must not change until `has_unsent` is false."""
        self.burst, self.burst_bytes = at, size
        return self.flush()

    cpdef bint flush(self) except -1:
        """Write what the socket takes; return whether nothing is left."""
        cdef ssize_t sent
        if self.fd < 0:
            return not self.has_unsent()
        while self.burst_bytes:
            sent = self._write(self.burst, self.burst_bytes)
            if sent == 0:
                return False
            self.burst += sent
            self.burst_bytes -= sent
        while self.outbox_sent < self.outbox_bytes:
            sent = self._write(self.outbox + self.outbox_sent, self.outbox_bytes - self.outbox_sent)
            if sent == 0:
                return False
            self.outbox_sent += sent
        self.outbox_sent = self.outbox_bytes = 0
        return True

    cdef ssize_t _write(self, const uint8_t* at, size_t size) except -1:
        cdef ssize_t sent
        sent = c_send(self.fd, at, size, MSG_NOSIGNAL)
        if sent < 0:
            if errno in (EAGAIN, EINTR):
                return 0
            raise ConnectionResetError(errno, "the broker's connection failed")
        return sent

    def send(self, const unsigned char[::1] data not None):
        """Queue bytes behind what is unsent and write what the socket takes."""
        memcpy(self.room(data.shape[0]), &data[0], data.shape[0])
        self.flush()

    def take_unsent(self):
        """Return what `flush` would write, and remove it from the link."""
        cdef bytes unsent = PyBytes_FromStringAndSize(<char*>self.burst, self.burst_bytes)
        unsent += PyBytes_FromStringAndSize(
            <char*>self.outbox + self.outbox_sent, self.outbox_bytes - self.outbox_sent
        )
        self.burst_bytes = self.outbox_bytes = self.outbox_sent = 0
        return unsent
