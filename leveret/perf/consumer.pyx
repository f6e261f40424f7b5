"""Consuming: receives deliveries, sends acknowledgements or the next basic.get."""

from libc.string cimport memcpy

from leveret.perf.wire cimport load64, store32, store64

from leveret.perf.wire import WireError

ACK_EACH = 0
ACK_EVERY = 1
ACK_READ = 2

cdef enum:
    EVERY = 1
    READ = 2
    BASIC_DELIVER = (60 << 16) | 60
    BASIC_GET_OK = (60 << 16) | 71
    BASIC_GET_EMPTY = (60 << 16) | 72
    BASIC_ACK = (60 << 16) | 80
    BASIC_NACK = (60 << 16) | 120  # laid out like an ack; its bit for requeue stays 0 here
    ACK_FRAME_BYTES = 21
    STAMP_BYTES = 16


cdef class LoadConsumer(Endpoint):
    """Consumes on one channel: counts, times, verifies and settles (see the .pyi)."""

    def __cinit__(
        self,
        Link link not None,
        channel,
        WorkerCounters counters not None,
        uint64_t ack_every,
        int ack_frames,
        *,
        bint stamped=True,
        Verifier verifier=None,
        bint slot_from_tag=False,
        list gets=None,
        uint64_t quota=<uint64_t>-1,
        bint reject=False,
    ):
        self.link, self.channel, self.counters = link, channel, counters
        self.ack_every, self.ack_frames = ack_every, ack_frames
        self.stamped, self.verifier, self.slot_from_tag = stamped, verifier, slot_from_tag
        self.gets, self.quota = gets, quota
        self.settlement = BASIC_NACK if reject else BASIC_ACK
        self.idle = True
        self.latency = LatencyHistogram()
        link.endpoints.extend([None] * (channel + 1 - len(link.endpoints)))
        link.endpoints[channel] = self

    cdef int method(self, uint32_t name, const uint8_t* at, size_t size) except -1:
        if name == BASIC_DELIVER:
            return self._delivered(at, size)
        if name == BASIC_GET_OK:
            return self._got(at, size)
        if name == BASIC_GET_EMPTY:
            self.counters.tallies.empty += 1
            self.idle = True
            return 1
        return 0

    cdef int _delivered(self, const uint8_t* at, size_t size) except -1:
        """Handle basic.deliver: consumer tag, delivery tag, redelivered, exchange, routing key."""
        cdef size_t tag_bytes, i
        if size < 1 or size < <size_t>at[0] + 12:
            raise WireError("a basic.deliver that is cut short")
        tag_bytes = at[0]
        if self.slot_from_tag:
            self.slot = 0
            for i in range(1, tag_bytes + 1):
                self.slot = self.slot * 10 + (at[i] - 48)
        self.tag = load64(at + 1 + tag_bytes)
        self.counters.tallies.redelivered += at[9 + tag_bytes] & 1
        return 1

    cdef int _got(self, const uint8_t* at, size_t size) except -1:
        """Handle basic.get-ok: delivery tag, redelivered, exchange, routing key, message count."""
        if size < 15:
            raise WireError("a basic.get-ok that is cut short")
        self.slot = self.latest_get if self.slot_from_tag else 0
        self.tag = load64(at)
        self.counters.tallies.redelivered += at[8] & 1
        return 1

    cdef int body_starts(self, uint64_t size) except -1:
        self.first_part = True
        if size == 0:
            self._complete()
        return 0

    cdef int body_part(self, const uint8_t* at, size_t size) except -1:
        cdef uint64_t stamp[2]
        if self.first_part:
            self.first_part = False
            if self.stamped and size >= STAMP_BYTES:
                memcpy(stamp, at, STAMP_BYTES)
                if self.link.now_ns > stamp[0]:
                    self.latency.put(self.link.now_ns - stamp[0])
                else:
                    self.latency.put(0)
                if self.verifier is not None:
                    self.verifier.note(self.slot, stamp[1])
        if self.body_left == 0:
            self._complete()
        return 0

    cdef int _complete(self) except -1:
        """Count a whole message, and acknowledge it if it is time to."""
        self.consumed += 1
        self.counters.tallies.consumed += 1
        self.counters.tallies.consumed_at_ns = self.link.now_ns
        if self.ack_every:
            self.unacked += 1
            if self.unacked >= self.ack_every and self.ack_frames != READ:
                self._ack(self.ack_frames == EVERY)
        if self.gets is not None:
            self.idle = True
            if self.consumed < self.quota:
                self._ask()
        return 0

    cdef int read_ends(self) except -1:
        if self.ack_frames == READ and self.ack_every and self.unacked >= self.ack_every:
            self._ack(True)
        return 0

    cdef int _ack(self, bint multiple) except -1:
        """Acknowledge (or reject) what is unsettled, in one frame or in one for each message."""
        cdef uint64_t count = 1 if multiple else self.unacked
        cdef uint64_t tag
        cdef uint8_t* at
        # Tags of one channel are consecutive, so the unacknowledged are the latest ones.
        for tag in range(self.tag - count + 1, self.tag + 1):
            at = self.link.room(ACK_FRAME_BYTES)
            at[0] = 1
            at[1], at[2] = self.channel >> 8, self.channel & 255
            store32(at + 3, ACK_FRAME_BYTES - 8)
            store32(at + 7, self.settlement)
            store64(at + 11, tag)
            at[19] = multiple
            at[20] = 0xCE
        self.unacked = 0
        return 0

    cdef int _ask(self) except -1:
        cdef bytes frame
        cdef const uint8_t* at
        self.latest_get = (self.latest_get + 1) % <size_t>len(self.gets)
        frame = self.gets[self.latest_get]
        at = frame
        memcpy(self.link.room(len(frame)), at, len(frame))
        self.idle = False
        return 0

    def ask(self):
        """Send a basic.get, unless one is unanswered or the quota is reached."""
        if self.idle and self.consumed < self.quota:
            self._ask()
            self.link.flush()

    def settle(self):
        """Acknowledge what is still unacknowledged, before closing."""
        if self.unacked:
            self._ack(True)
            self.link.flush()
