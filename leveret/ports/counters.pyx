"""Counters and histograms, incremented by compiled code per batch and read by core.statistics.

Each channel, queue, exchange, virtual host and connection has a `Counters`. Its values only grow,
and begin at 0 when the object is created. Adding takes a few instructions; rates and histories are
computed by the reader.
"""

from libc.stdint cimport uint64_t

from leveret.ports.clock cimport now_ms

# RabbitMQ's names in `message_stats` and of connections, except the two with a comment:
NAMES = (
    "publish", "publish_in", "publish_out", "confirm", "return_unroutable", "drop_unroutable",
    "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack",
    "received_confirm",     # the part of `publish` on channels with confirms
    "bytes_out",            # bytes delivered, as stored
    "recv_oct", "recv_cnt", "send_oct", "send_cnt",
)

# Buckets of RabbitMQ's metric rabbitmq_message_size_bytes.
MESSAGE_SIZE_BOUNDS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)

PUBLISH = _PUBLISH
PUBLISH_IN = _PUBLISH_IN
PUBLISH_OUT = _PUBLISH_OUT
CONFIRM = _CONFIRM
RETURN_UNROUTABLE = _RETURN_UNROUTABLE
DROP_UNROUTABLE = _DROP_UNROUTABLE
DELIVER = _DELIVER
DELIVER_NO_ACK = _DELIVER_NO_ACK
GET = _GET
GET_NO_ACK = _GET_NO_ACK
GET_EMPTY = _GET_EMPTY
REDELIVER = _REDELIVER
ACK = _ACK
RECEIVED_CONFIRM = _RECEIVED_CONFIRM
BYTES_OUT = _BYTES_OUT
RECV_OCT = _RECV_OCT
RECV_CNT = _RECV_CNT
SEND_OCT = _SEND_OCT
SEND_CNT = _SEND_CNT


cdef class Counters:
    """Counters of one object, such as a queue or a channel."""

    def count(self, int counter, uint64_t n=1):
        """Add `n` to the counter with this number (`PUBLISH` and so on)."""
        if not 0 <= counter < _COUNTERS:
            raise IndexError(counter)
        self.add(counter, n)

    def value(self, int counter):
        """Return the value of one counter."""
        if not 0 <= counter < _COUNTERS:
            raise IndexError(counter)
        return self.values[counter]

    def take_in(self, Counters other):
        """Add all counts of `other`, whose object has ended."""
        cdef int i
        for i in range(_COUNTERS):
            self.values[i] += other.values[i]
        self.moved = True

    def counted(self):
        """Return {name: value} of the counters that are not 0."""
        cdef int i
        return {NAMES[i]: self.values[i] for i in range(_COUNTERS) if self.values[i]}


cdef class DeliveryStatistics(Counters):
    """Delivery statistics of one consumer or getter on one queue; counts for all objects concerned.

    `mode` is the counter of the delivery method (DELIVER, GET_NO_ACK …), `kind` the counters shared
    by all queues of a type. With `latency`, the time from publish to delivery is recorded there, in
    ms.
    """

    def __init__(
        self, int mode, Counters queue, Counters channel, Counters vhost, Counters kind,
        Histogram latency=None,
    ):
        if not 0 <= mode < _COUNTERS:
            raise IndexError(mode)
        self.mode = mode
        self.queue = queue
        self.channel = channel
        self.vhost = vhost
        self.kind = kind
        self.latency = latency

    cdef void add_all(self, int counter, uint64_t n) noexcept:
        self.add(counter, n)
        self.queue.add(counter, n)
        self.channel.add(counter, n)
        self.vhost.add(counter, n)
        self.kind.add(counter, n)

    cdef void handed_out(self, uint64_t messages, uint64_t stored, bint redelivered, uint64_t since) noexcept:
        """Count a delivery. `since` is the publish time of the first message, in ms since 1970."""
        cdef uint64_t now
        self.add_all(self.mode, messages)
        self.add_all(_BYTES_OUT, stored)
        if redelivered:
            self.add_all(_REDELIVER, messages)
        elif self.latency is not None:
            now = now_ms()
            self.latency.add(now - since if now > since else 0, messages)

    def delivered(self, uint64_t messages, uint64_t stored, bint redelivered, uint64_t since):
        """Count a delivery; `handed_out` for callers in Python."""
        self.handed_out(messages, stored, redelivered, since)

    def acknowledged(self, uint64_t messages):
        """Count acknowledged messages."""
        self.add_all(_ACK, messages)

    def found_empty(self):
        """Count a basic.get on an empty queue."""
        self.add_all(_GET_EMPTY, 1)


cdef class Histogram:
    """Histogram: number of values per bucket.

    A bucket holds the values up to its bound that are above the previous bound.
    """

    def __init__(self, bounds):
        """Create an empty histogram; `bounds` must ascend. Raises ValueError."""
        cdef int i
        if not 0 < len(bounds) <= BOUNDS_MAX:
            raise ValueError(bounds)
        self.size = len(bounds)
        for i in range(self.size):
            self._bounds[i] = bounds[i]
            if i and self._bounds[i] <= self._bounds[i - 1]:
                raise ValueError(bounds)

    def observe(self, uint64_t value, uint64_t times=1):
        """Count a value; `add` for callers in Python."""
        self.add(value, times)

    @property
    def bounds(self):
        """Upper bound of each bucket except the last, which has none."""
        cdef int i
        return tuple([self._bounds[i] for i in range(self.size)])

    @property
    def counts(self):
        """Number of values in each bucket: one more than there are bounds."""
        cdef int i
        return tuple([self._counts[i] for i in range(self.size + 1)])

    @property
    def count(self):
        """Total number of values."""
        cdef int i
        cdef uint64_t total = 0
        for i in range(self.size + 1):
            total += self._counts[i]
        return total
