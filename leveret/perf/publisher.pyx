"""Publishing: bursts of ready-made frames out, confirms in.

Where a body has room for it, its first sixteen bytes say when it was sent, or is to be delivered, and which
message it is:

    0                   8         12 bits     20 bits          32 bits
    +-------------------+---------------------------------------------+
    | CLOCK_MONOTONIC ns| publisher | number in key | sequence         |
    +-------------------+---------------------------------------------+

both in the machine's byte order, for only this machine's clock makes sense of them. The sequence
counts the messages of one publisher with one number, so that the verifier sees a gap at once.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from leveret.perf.wire cimport load64, monotonic_ns

from leveret.perf.wire import WireError

cdef enum:
    BASIC_RETURN = (60 << 16) | 50
    BASIC_ACK = (60 << 16) | 80
    BASIC_NACK = (60 << 16) | 120
    ROUNDS_PER_PUMP = 4  # bursts before the loop looks at its other sockets again
    RING_PER_WINDOW = 16  # confirms may overtake one another this many windows far
    STAMP_BYTES = 16
    NUMBER_DIGITS = 8


cdef inline void put_digits(uint8_t* at, uint32_t number) noexcept:
    cdef int i
    for i in range(NUMBER_DIGITS - 1, -1, -1):
        at[i] = 48 + number % 10
        number //= 10


cdef class Burst:
    """Copies of one publish in one buffer; `_build` changes only what differs between messages."""

    def __cinit__(
        self,
        const unsigned char[::1] template not None,
        size_t slots,
        *,
        number_at=-1,
        priority_at=-1,
        stamp_at=-1,
        delay_ns=0,
    ):
        cdef size_t i
        self.slot_bytes, self.slots = template.shape[0], slots
        self.number_at, self.priority_at, self.stamp_at = number_at, priority_at, stamp_at
        self.delay_ns = delay_ns
        if number_at > <Py_ssize_t>self.slot_bytes - NUMBER_DIGITS:
            raise ValueError("the number does not fit into the template")
        if priority_at >= <Py_ssize_t>self.slot_bytes:
            raise ValueError("the priority does not fit into the template")
        if stamp_at > <Py_ssize_t>self.slot_bytes - STAMP_BYTES:
            raise ValueError("the stamp does not fit into the template")
        self.data = <uint8_t*>malloc(self.slot_bytes * slots)
        if self.data == NULL:
            raise MemoryError
        for i in range(slots):
            memcpy(self.data + i * self.slot_bytes, &template[0], self.slot_bytes)

    def __dealloc__(self):
        free(self.data)


cdef class Numbers:
    """The number of each message's routing key, or its priority: in turn, or any at random."""

    def __cinit__(self, uint32_t first, uint32_t step, uint32_t count, seed):
        if not (first < count and 0 < step):
            raise ValueError("numbers start below their count and go forward")
        self.first = self.latest = first
        self.step, self.count = step, count
        self.random = seed is not None
        # An xorshift generator must not start at zero, and near seeds should soon differ.
        self.state = (<uint64_t>(seed or 0) + 1) * 0x9E3779B97F4A7C15ULL

    cdef uint32_t draw(self) noexcept:
        cdef uint32_t number = self.latest
        if self.random:
            self.state ^= self.state >> 12
            self.state ^= self.state << 25
            self.state ^= self.state >> 27
            return <uint32_t>((((self.state * 0x2545F4914F6CDD1DULL) >> 32) * self.count) >> 32)
        self.latest = number + self.step if number + self.step < self.count else self.first
        return number

    def next(self):
        """Return the next message's number, below `count`."""
        return self.draw()


cdef class LoadPublisher(Endpoint):
    """Publishes on one channel: at most `quota` messages, `window` unconfirmed (0: no confirms)."""

    def __cinit__(
        self,
        Link link not None,
        channel,
        uint64_t identity,
        Burst burst not None,
        Numbers numbers not None,
        WorkerCounters counters not None,
        uint64_t quota,
        uint64_t window,
        Numbers priorities=None,
    ):
        cdef uint64_t ring = 1
        self.link, self.channel, self.mark = link, channel, identity << 52
        self.burst, self.numbers, self.counters = burst, numbers, counters
        self.quota, self.window = quota, window
        if priorities is None and burst.priority_at >= 0:
            raise ValueError("priorities are needed to fill the burst's place for them")
        self.priorities = priorities
        self.latency = LatencyHistogram()
        self.sequences = <uint32_t*>calloc(numbers.count, sizeof(uint32_t))
        while window and ring < window * RING_PER_WINDOW:
            ring *= 2
        self.ring_mask = ring - 1
        self.sent_at_ns = <uint64_t*>calloc(ring, sizeof(uint64_t))
        self.waiting = <uint8_t*>calloc(ring, 1)
        if self.sequences == NULL or self.sent_at_ns == NULL or self.waiting == NULL:
            raise MemoryError
        link.endpoints.extend([None] * (channel + 1 - len(link.endpoints)))
        link.endpoints[channel] = self

    def __dealloc__(self):
        free(self.sequences)
        free(self.sent_at_ns)
        free(self.waiting)

    cdef uint64_t _allowed(self) noexcept:
        """Return the number of messages that quota and confirm window allow."""
        cdef uint64_t allowed = self.quota - self.published
        cdef uint64_t ring_room
        if self.window:
            allowed = min(allowed, self.window - (self.published - self.settled))
            ring_room = self.ring_mask + 1 - (self.published - self.floor)
            allowed = min(allowed, ring_room)
        return allowed

    @property
    def identity(self):
        return self.mark >> 52

    def sent(self):
        """Return the number of stamped messages sent, by number."""
        cdef uint32_t number
        return {
            number: self.sequences[number]
            for number in range(self.numbers.count)
            if self.sequences[number]
        }

    @property
    def eager(self):
        """Whether another `pump` would send something now."""
        return not self.link.has_unsent() and self._allowed() > 0

    def pump(self, uint64_t allowance):
        """Send up to `allowance` messages, as window and socket allow; return their number."""
        cdef uint64_t done = 0, count
        cdef int turn
        for turn in range(ROUNDS_PER_PUMP):
            if self.link.has_unsent():
                break
            count = min(min(allowance - done, self._allowed()), <uint64_t>self.burst.slots)
            if count == 0:
                break
            self._build(count)
            done += count
            self.link.start_burst(self.burst.data, count * self.burst.slot_bytes)
        return done

    cdef int _build(self, size_t count) noexcept:
        """Write keys, priorities and stamps of the next `count` messages into the burst."""
        cdef uint64_t now_ns = monotonic_ns()
        cdef uint64_t stamp[2]
        cdef uint64_t tag
        cdef uint32_t number
        cdef size_t i
        cdef Burst burst = self.burst
        cdef uint8_t* slot = burst.data
        stamp[0] = now_ns + burst.delay_ns
        for i in range(count):
            number = self.numbers.draw()
            if burst.number_at >= 0:
                put_digits(slot + burst.number_at, number)
            if burst.priority_at >= 0:
                slot[burst.priority_at] = <uint8_t>self.priorities.draw()
            if burst.stamp_at >= 0:
                stamp[1] = self.mark | (<uint64_t>number << 32) | self.sequences[number]
                self.sequences[number] += 1
                memcpy(slot + burst.stamp_at, stamp, STAMP_BYTES)
            slot += burst.slot_bytes
        if self.window:
            for tag in range(self.published + 1, self.published + 1 + count):
                self.sent_at_ns[tag & self.ring_mask] = now_ns
                self.waiting[tag & self.ring_mask] = 1
        self.published += count
        self.counters.tallies.published += count
        self.counters.tallies.published_at_ns = now_ns
        return 0

    cdef int method(self, uint32_t name, const uint8_t* at, size_t size) except -1:
        if name == BASIC_ACK or name == BASIC_NACK:
            if size != 9:
                raise WireError("a confirm of the wrong length")
            self._settle(load64(at), at[8] & 1, name == BASIC_NACK)
            return 1
        if name == BASIC_RETURN:
            self.counters.tallies.returned += 1
            return 1
        return 0

    cdef int body_starts(self, uint64_t size) except -1:
        return 0  # of a returned message; its count is all that is asked for

    cdef int body_part(self, const uint8_t* at, size_t size) except -1:
        return 0

    cdef int _settle(self, uint64_t tag, bint multiple, bint refused) except -1:
        """Note the confirm of `tag`, or of all up to it (0: of all there are)."""
        cdef uint64_t each
        if multiple and tag == 0:
            tag = self.published
        if tag > self.published:
            raise WireError(f"a confirm of {tag}, but only {self.published} were published")
        if multiple:
            for each in range(self.floor + 1, tag + 1):
                if self.waiting[each & self.ring_mask]:
                    self._settle_one(each, refused)
            self.floor = max(self.floor, tag)
        elif tag <= self.floor or not self.waiting[tag & self.ring_mask]:
            raise WireError(f"a second confirm of {tag}")
        else:
            self._settle_one(tag, refused)
        while self.floor < self.published and not self.waiting[(self.floor + 1) & self.ring_mask]:
            self.floor += 1
        self.counters.tallies.confirmed_at_ns = self.link.now_ns
        return 0

    cdef int _settle_one(self, uint64_t tag, bint refused) except -1:
        cdef uint64_t at = tag & self.ring_mask
        self.waiting[at] = 0
        self.settled += 1
        if refused:
            self.counters.tallies.refused += 1
        else:
            self.counters.tallies.confirmed += 1
            if self.link.now_ns > self.sent_at_ns[at]:
                self.latency.put(self.link.now_ns - self.sent_at_ns[at])
            else:
                self.latency.put(0)
        return 0
