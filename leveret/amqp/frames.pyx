"""The compiled half of the wire's reading side: bytes in, packed batches and ranges out.

    frame      u8 type | u16 channel | u32 size | payload (size bytes) | u8 0xCE
    type       1 method, 2 content header, 3 content body, 8 heartbeat
    header     u16 class | u16 weight | u64 body size | u16 property flags … | properties

Per message nothing of Python happens here: a publish is routed through its exchange's RouteCache
and packed straight into the BatchBuilder of each destination; acks, nacks and rejects become ranges
of delivery tags. What is left, everything a connection does rarely, comes out of `next` as an event:

    (channel number, bytes)             a method frame's payload (class id, method id, arguments)
    (channel number, Publish)           a message that must be looked at: mandatory and unroutable, an
                                        exchange that routes by headers, a transactional channel, CC or
                                        BCC, a direct reply
    (channel number, ChannelError)      a publish that closes its channel; its content is dropped

Errors that close the connection are raised as ConnectionClosingError. Nothing else comes from peer bytes.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.tuple cimport PyTuple_GET_SIZE

from leveret.core.logs.publish_tags cimport PublishTags
from leveret.core.queues.content_checks cimport LOOKED_INTO, check_content, is_reply_name
from leveret.core.routing.routes cimport Route, RouteCache
from leveret.ports.contents cimport Properties, read_properties, rewrite
from leveret.ports.counters cimport (
    Counters, Histogram, _DROP_UNROUTABLE, _PUBLISH, _PUBLISH_IN, _PUBLISH_OUT, _RECEIVED_CONFIRM, _RECV_CNT, _RECV_OCT,
    _RETURN_UNROUTABLE,
)
from leveret.ports.partitioner cimport Partitioner
from leveret.ports.records cimport (
    BatchBuilder, BLIND_COPIED, HAS_REPLY_TO, HAS_RETRY, HAS_TAGS, RECORD_HEADER_BYTES, SELECTS_KEYS, STORED,
    WANTS_DELAY, WANTS_ORDER, WANTS_PREPARE,
)
from leveret.ports.tags cimport mask_of
from leveret.ports.traffic cimport Traffic

from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.counters import MESSAGE_SIZE_BOUNDS

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8          # type, channel, size; end marker
    FRAME_HEADER_BYTES = 7
    CONTENT_HEADER_BYTES = 14   # class, weight, body size, first flag word
    CONTENT_HEADER_BYTES_MIN = 12   # the same without properties: less is no content header at all
    FRAME_SIZE_FUDGE = 8        # some clients forget the frame's overhead; RabbitMQ forgives them
    CLASS_CHANNEL = 20
    CLASS_BASIC = 60
    BASIC_PUBLISH = 40
    BASIC_ACK = 80
    BASIC_REJECT = 90
    BASIC_NACK = 120
    CHANNEL_CLOSE = 40
    CHANNEL_CLOSE_OK = 41
    # Work of `next` between two looks at the clock, in packed records: a third of a ms. A busy
    # publisher's buffer of small messages is less. Calls of Python weigh more (WORK_ROUTE and
    # WORK_SETTLE): an uncached route as much as all the rest.
    WORK_MAX = 4096
    WORK_ROUTE = WORK_MAX
    WORK_SETTLE = WORK_MAX // 32
    WORK_COPIED_BYTES = 4096        # as much as a record
    # A message of which the copies take more leaves as an event, and is packed in portions: some 2 ms.
    _COPIED_BYTES_MAX = 4 * 1024 * 1024
    # Size of one unfinished message besides its body: its address and its content header.
    UNFINISHED_OVERHEAD_BYTES = 4 * 1024 * 1024

cdef uint64_t rounds = 0    # numbers for the rounds of all slots (ChannelSlot.round)

# The next frame that a channel must receive.
cdef enum:
    EXPECT_METHOD = 0
    EXPECT_HEADER = 1
    EXPECT_BODY = 2

# Kind of a settle run; the values of the tuples that `take_settles` returns.
cdef enum:
    NOTHING = -1
    _SETTLE = 0
    _RETURN = 1
    _DISCARD = 2
    _REJECT = 4         # beside _RETURN or _DISCARD: by basic.reject, which the error of a wrong tag names

COPIED_BYTES_MAX = _COPIED_BYTES_MAX
SETTLE = _SETTLE
RETURN = _RETURN
DISCARD = _DISCARD
REJECT = _REJECT

SNIPPET_BYTES = 16      # how much of an offending payload an error text shows (as RabbitMQ does)
# With frame_max 0 ("no limit") a peer could announce 4 GiB; larger frames than this help nobody.
FRAME_SIZE_UNLIMITED = 128 * 1024 * 1024

cdef const char* REPLY_NAME = b"amq.rabbitmq.reply-to"
cdef enum:
    REPLY_NAME_BYTES = 21
    # Flags of messages that need work before routing, or a check before they are stored.
    LEAVES = SELECTS_KEYS | WANTS_DELAY | WANTS_ORDER | WANTS_PREPARE | HAS_RETRY

# What a `multiple` acknowledgement of tag 0 means: everything outstanding.
UNLIMITED = 1 << 62     # as FrameReader.allowance: no number of publishes is too many

cdef uint64_t _ALL_TAGS = <uint64_t>0xFFFFFFFFFFFFFFFF
ALL_TAGS = _ALL_TAGS

# With so many exchanges, a channel's counts for those are dropped that it may no longer publish to: a
# client that makes an exchange for each of its tasks must not grow the node.
PUBLISH_STATISTICS_MAX = 1024


cdef inline uint16_t be16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef str erlang_binary(const uint8_t* p, size_t size):
    """Format a binary as RabbitMQ's errors do: <<"text">> where printable, else <<1,2,3>>."""
    cdef size_t i
    cdef bint printable = size > 0
    for i in range(size):
        if not 32 <= p[i] < 127:
            printable = False
    if printable:
        return '<<"' + (<const char*>p)[:size].decode("ascii").replace("\\", "\\\\").replace('"', '\\"') + '">>'
    return "<<" + ",".join([str(p[i]) for i in range(size)]) + ">>"


cdef object snippet(int frame_type, const uint8_t* payload, size_t size):
    shown = "all" if size <= SNIPPET_BYTES else f"first {SNIPPET_BYTES}"
    return f"type {frame_type}, {shown} octets = {erlang_binary(payload, min(size, <size_t>SNIPPET_BYTES))}"


cdef object frame_error(int frame_type, const uint8_t* payload, size_t size, str reason):
    return ConnectionClosingError(501, f"{snippet(frame_type, payload, size)}: {reason}")


cdef object cannot_decode(const uint8_t* payload, size_t size):
    return ConnectionClosingError(501, f"cannot decode {erlang_binary(payload, min(size, <size_t>64))}")


cdef object publish_error(int code, str explanation):
    """Build a connection error that names basic.publish as the method of a faulty content."""
    error = ConnectionClosingError(code, explanation)
    error.method_ids = CLASS_BASIC, BASIC_PUBLISH
    return error


cdef inline bint is_frame(int frame_type, uint32_t size) noexcept nogil:
    """Whether a payload of `size` bytes can be a frame of this type."""
    if frame_type == FRAME_METHOD:
        return size >= 4
    if frame_type == FRAME_HEADER:
        return size >= CONTENT_HEADER_BYTES_MIN
    return frame_type == FRAME_BODY or (frame_type == FRAME_HEARTBEAT and size == 0)


cdef class Buffer:
    """Growable byte buffer."""

    def __cinit__(self):
        self.data = NULL
        self.size = 0
        self.capacity = 0

    def __dealloc__(self):
        free(self.data)

    cdef int extend(self, const uint8_t* source, size_t size) except -1:
        cdef size_t wanted = self.size + size
        cdef uint8_t* grown
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity * 2, 256)
            grown = <uint8_t*>realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.capacity = wanted
        if size:
            memcpy(self.data + self.size, source, size)
        self.size += size
        return 0

    cdef void clear(self) noexcept:
        """Empty the buffer; free a large block, so that idle connections stay small."""
        self.size = 0
        if self.capacity > 4096:
            free(self.data)
            self.data = NULL
            self.capacity = 0


cdef class Publish:
    """One message that left the fast path; `header` is its content header payload, `flags` RecordFlags.

    `requests` are the RecordFlags that no record has. With SELECTS_KEYS its headers have CC or BCC, which
    the channel turns into `further_keys`. With BCC it is stored under `blind_header`, and `header` is what
    others see.
    """


cdef class PublishStatistics(Counters):
    """Counters of what one channel has published to one exchange, and the exchange's routes."""


cdef class ChannelSlot:
    """The hot state of one open channel, shared by the reader and the channel machine.

    `channel.route_cache(exchange: bytes) -> RouteCache | None` is called once per exchange, and
    again after None, with which the message leaves as an event; it raises the error that a publish
    to that exchange deserves. `one_by_one` sends every publish out as a Publish event,
    `escalates_unrouted` unroutable ones, mandatory or not. `publish_statistics_by_exchange` has the counters by exchange;
    those of deleted exchanges may be dropped.
    """

    def __init__(self, uint16_t number, channel):
        self.number = number
        self.channel = channel
        self.publish_statistics_by_exchange = {}
        self.counters = Counters()
        self.begin_round()
        self.settles = []
        self.run_kind = NOTHING
        self.expecting = EXPECT_METHOD
        self.content = Buffer()

    cdef int begin_round(self) except -1:
        global rounds
        rounds += 1
        self.round = rounds
        self.touched = set()
        return 0

    cdef int touch(self, BatchBuilder builder) except -1:
        if builder.noted_in != self.round:      # else it is in the set for sure
            builder.noted_in = self.round
            self.touched.add(builder)
        return 0

    cpdef set take_touched(self):
        """Return the builders that this channel's confirmed publishes went to since last asked."""
        cdef set touched = self.touched
        self.begin_round()
        return touched

    cdef bint has_settles(self) noexcept:
        """Return whether settlements wait to be taken."""
        return self.run_kind != NOTHING or len(self.settles) > 0

    cdef int settle(self, int kind, uint64_t tag, bint multiple) except -1:
        """Add one ack, nack or reject to the current run, or start a new run."""
        if multiple:
            if tag == 0:
                tag = _ALL_TAGS
            if self.run_kind == kind and self.run_multiple and tag > self.run_last:
                self.run_last = tag
                return 0
        elif (
            self.run_kind == kind and not self.run_multiple
            and tag == self.run_last + 1 and tag != 0       # 0: the count has wrapped around
        ):
            self.run_last = tag
            return 0
        self.close_run()
        self.run_kind = kind
        self.run_multiple = multiple
        self.run_first = 0 if multiple else tag
        self.run_last = tag
        return 0

    cdef int close_run(self) except -1:
        if self.run_kind != NOTHING:
            self.settles.append((self.run_kind, self.run_first, self.run_last, self.run_multiple))
            self.run_kind = NOTHING
        return 0

    def take_settles(self):
        """Return settlements [(kind, first tag, last tag, multiple)] in the order they came.

        The kind is SETTLE, RETURN or DISCARD; the latter two with the bit REJECT if basic.reject asked
        for it. A `multiple` run means every outstanding tag up to the last; in others each tag must be
        outstanding.
        """
        cdef list settles
        self.close_run()
        settles = self.settles
        if settles:
            self.settles = []
            for _, _, last, _ in settles:
                self.settled_tag = max(self.settled_tag, min(<uint64_t>last, self.delivery_tag))
        return settles

    cdef bint is_settling_surely(self) noexcept:
        """Return whether every tag that waits to be settled is certainly outstanding.

        It is where acknowledgements only go forward: behind all that were settled before, and not
        behind the last delivery.
        """
        if len(self.settles) or self.has_free_tags:
            return False
        if self.run_multiple and self.run_last == _ALL_TAGS:
            return True
        if self.run_last > self.delivery_tag:
            return False
        return self.run_last > self.settled_tag if self.run_multiple else self.run_first > self.settled_tag

    def forget_routes(self):
        """Drop the cached routes: an exchange was deleted or a permission changed."""
        cdef PublishStatistics publish_statistics
        for publish_statistics in self.publish_statistics_by_exchange.values():
            publish_statistics.cache = None
        self.exchange = None
        self.publish_statistics = None
        self.cache = None
        self.key = None
        self.route = None

    cdef PublishStatistics statistics_of(self, bytes exchange, RouteCache cache):
        """Set the routes of publishes to an exchange. Returns its counters."""
        cdef PublishStatistics publish_statistics = self.publish_statistics_by_exchange.get(exchange)
        if publish_statistics is None:
            if len(self.publish_statistics_by_exchange) >= PUBLISH_STATISTICS_MAX:
                self.publish_statistics_by_exchange = {name: kept for name, kept in self.publish_statistics_by_exchange.items() if (<PublishStatistics>kept).cache is not None}
            publish_statistics = self.publish_statistics_by_exchange[exchange] = PublishStatistics()
        publish_statistics.cache = cache
        return publish_statistics

    cdef void forget_content(self) noexcept:
        self.expecting = EXPECT_METHOD
        self.content.clear()

    def end(self):
        """Ignore further frames on the number of a closed channel until it is free."""
        self.closing = True
        self.gettings = None
        self.channel = None     # they refer to each other, and nothing is to wait for the collector


cdef class FrameReader:
    """Parses what a socket brought, frame by frame.

    Use: `receive(bytes)`, then `next()` until it returns None. To stop in between (an event must
    wait for the disk), call `stash()`: the bytes that were not read yet are copied and `next()`
    goes on with them later. After each pause or event, `take_dirty()` names the channels that have
    settles or confirmed publishes to collect, `take_filled()` the builders that got their first
    record, or their first since they were parked.

    After `allowance` messages it stops before the next basic.publish, as if the bytes had ended,
    and sets `stopped`. With a larger allowance `next()` goes on. It stops as well after much work,
    and sets `paused`: collect the `settle_runs`, if any, see whether there is time for more, and
    call `next()` again.
    """

    def __init__(self, uint32_t frame_max, uint64_t message_size_max, uint64_t unfinished_bytes_max=0):
        """`unfinished_bytes_max` is for all channels together; one message of any size is allowed."""
        self.slots = {}
        self.message_size_max = message_size_max
        self.unfinished_bytes_max = max(unfinished_bytes_max, message_size_max + UNFINISHED_OVERHEAD_BYTES)
        self.set_frame_max(frame_max)
        self.carry = Buffer()
        self.dirty = []
        self.filled = []
        self.allowance = UNLIMITED
        self.published = Traffic()
        self.counters = Counters()
        self.vhost = Counters()
        self.message_sizes = Histogram(MESSAGE_SIZE_BOUNDS)

    def accept_user_id(self, str user):
        """Refuse messages whose user-id names another than `user`; None lets everyone be named."""
        self.user = None if user is None else user.encode()

    def set_frame_max(self, uint32_t frame_max):
        """Set the negotiated size of a whole frame in bytes; 0 means no limit."""
        self.frame_size_max = frame_max - FRAME_OVERHEAD if frame_max else FRAME_SIZE_UNLIMITED

    def open_channel(self, uint16_t number, channel):
        """Register channel `number` as open. Returns its slot."""
        cdef ChannelSlot slot = ChannelSlot(number, channel)
        self.slots[number] = slot
        self.latest = slot
        return slot

    def close_channel(self, uint16_t number):
        """Unregister channel `number`: later frames on it belong to no channel."""
        self.drop_content(self.slots.pop(number))
        self.latest = None

    def drop_content(self, ChannelSlot slot not None):
        """Drop an unfinished message; the rest of it is not waited for."""
        self.unfinished -= slot.content.size
        slot.forget_content()

    def forget_routes(self):
        """Drop the cached routes of every channel."""
        for slot in self.slots.values():
            slot.forget_routes()

    cpdef int receive(self, data, uint64_t now) except -1:
        """Take new bytes, which must not change before `next` returned None or `stash` was called.

        `now` is the time that the records get, in milliseconds since 1970.
        """
        cdef size_t size = len(data)
        self.now = now
        self.counters.add(_RECV_OCT, size)
        self.counters.add(_RECV_CNT, 1)
        self.vhost.add(_RECV_OCT, size)
        if self.position < self.size:
            self.look_at(self.rest() + bytes(data))
        else:
            self.look_at(data)
        return 0

    def stash(self):
        """Copy the bytes not read yet, so that the caller may reuse its buffer."""
        if type(self.owner) is not bytes:       # else they were copied before, and will not change
            self.look_at(self.rest())

    cdef bytes rest(self):
        return (<const char*>self.data + self.position)[: self.size - self.position]

    @property
    def unread(self):
        """Number of bytes received and not parsed yet."""
        return self.size - self.position

    @property
    def leaves(self):
        """Whether bytes are unread, or unfinished messages have another size than `noted`."""
        return self.leaves_some()

    cdef bint leaves_some(self) noexcept:
        """Return whether it `leaves` something."""
        return self.position < self.size or self.unfinished != self.noted

    cdef int look_at(self, data) except -1:
        """Read from `data` from now on; no typed memoryview, which costs more than a frame."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        self.data = <const uint8_t*>view.buf
        self.size = view.len
        self.position = 0
        self.owner = data       # keeps the bytes alive; its owner does not change them
        PyBuffer_Release(&view)
        return 0

    cpdef list take_dirty(self):
        """Return the channels' slots with settlements or publishes to collect, each once."""
        cdef list dirty = self.dirty
        cdef ChannelSlot slot
        self.settle_runs = 0
        if not dirty:
            return dirty
        self.dirty = []
        for slot in dirty:
            slot.dirty = False
        return [slot for slot in dirty if slot.channel is not None]

    cpdef list take_filled(self):
        """Return the builders this connection packed into first since they were empty or parked."""
        cdef list filled = self.filled
        if filled:
            self.filled = []
        return filled

    cpdef object next(self):
        """Work until there is an event (see the module's docstring) or the bytes end (None)."""
        self.stopped = False
        self.paused = False
        self.work = 0
        if self.lost:
            self.position = self.size
        try:
            return self._next()
        except ChannelError as error:       # caught here once a read, and not with each message
            slot = self.slot_of(self.number)
            slot.closing = True
            self.drop_content(slot)
            return self.number, error
        finally:
            self.end_run()

    cdef object _next(self):
        cdef size_t available, total, start
        cdef object event
        while True:
            if self.carry.size:
                if not self.fill_carry():
                    return None
                event = self.carried_frame()
            else:
                available = self.size - self.position
                if available < FRAME_HEADER_BYTES:
                    return self.keep_rest()
                total = self.frame_length(self.data + self.position)
                if available < total:
                    return self.keep_rest()
                start = self.position
                self.position += total
                event = self.frame(self.data + start, available)
                if self.stopped:
                    self.position = start
            if event is not None or self.stopped:
                return event
            if self.work >= WORK_MAX and self.position < self.size:
                self.paused = True
                return None

    cdef object keep_rest(self):
        """Keep the first part of a frame until the rest comes."""
        self.carry.extend(self.data + self.position, self.size - self.position)
        self.position = self.size
        return None

    cdef bint fill_carry(self) except -1:
        """Complete the frame that came in parts. Returns whether it is whole."""
        cdef size_t wanted = FRAME_HEADER_BYTES, taken
        while True:
            if self.carry.size >= FRAME_HEADER_BYTES:
                wanted = self.frame_length(self.carry.data)
            if self.carry.size >= wanted:
                return True
            taken = min(wanted - self.carry.size, self.size - self.position)
            if taken == 0:
                return False
            self.carry.extend(self.data + self.position, taken)
            self.position += taken

    cdef object carried_frame(self):
        cdef Buffer carry = self.carry
        # The frame is read from its own block, so that a nested call could never disturb it.
        self.carry = Buffer()
        event = self.frame(carry.data, carry.size)
        if self.stopped:
            self.carry = carry
        return event

    cdef size_t frame_length(self, const uint8_t* p) except 0:
        """Return the length of the frame whose first seven bytes are at `p`, once checked."""
        cdef uint32_t size = be32(p + 3)
        if size > <uint64_t>self.frame_size_max + FRAME_SIZE_FUDGE:
            # Where the next frame begins cannot be known any more.
            self.lost = True
            self.position = self.size
            self.carry.clear()
            raise frame_error(p[0], p + 7, 0, f"{{frame_too_large,{size},{self.frame_size_max}}}")
        return <size_t>size + FRAME_OVERHEAD

    cdef ChannelSlot slot_of(self, uint16_t number):
        """Return the open channel of this number, most often that of the frame before, or None."""
        cdef ChannelSlot slot = self.latest
        if slot is None or slot.number != number:
            slot = self.slots.get(number)
            if slot is not None:
                self.latest = slot
        return slot

    cdef int mark(self, ChannelSlot slot) except -1:
        if not slot.dirty:
            slot.dirty = True
            self.dirty.append(slot)
        return 0

    cdef object frame(self, const uint8_t* p, size_t available):
        """Handle the whole frame at `p`; go on behind its content, if that was handled with it."""
        cdef int frame_type = p[0]
        cdef uint16_t number = be16(p + 1)
        cdef uint32_t size = be32(p + 3)
        cdef size_t total = <size_t>size + FRAME_OVERHEAD
        cdef ChannelSlot slot
        self.number = number
        self.frames += 1
        if p[total - 1] != FRAME_END:
            raise frame_error(frame_type, p + 7, size, f"{{invalid_frame_end_marker,{p[total - 1]}}}")
        if not is_frame(frame_type, size):
            raise frame_error(frame_type, p + 7, size, "unknown_frame")
        slot = self.slot_of(number)
        if frame_type == FRAME_METHOD:
            return self.method(slot, number, p, total, available)
        if frame_type == FRAME_HEARTBEAT and number == 0:
            return None
        if number == 0 or frame_type == FRAME_HEARTBEAT:
            raise ConnectionClosingError(505, snippet(frame_type, p + 7, size))
        if slot is None:
            raise ConnectionClosingError(505, "expected method frame, got non method frame instead")
        if slot.closing:
            return None
        if frame_type == FRAME_HEADER:
            return self.header(slot, p + 7, size)
        return self.body(slot, p + 7, size)

    cdef object method(self, ChannelSlot slot, uint16_t number, const uint8_t* p, size_t total, size_t available):
        cdef uint16_t class_id, method_id
        cdef uint32_t size = <uint32_t>(total - FRAME_OVERHEAD)
        class_id = be16(p + 7)
        method_id = be16(p + 9)
        if slot is not None:
            if slot.closing:
                if class_id != CLASS_CHANNEL or (method_id != CHANNEL_CLOSE and method_id != CHANNEL_CLOSE_OK):
                    return None
            elif slot.expecting == EXPECT_HEADER:
                raise publish_error(
                    505, f"expected content header for class {CLASS_BASIC}, got non content header frame instead"
                )
            elif slot.expecting == EXPECT_BODY:
                raise publish_error(505, "expected content body, got non content body frame instead")
            elif class_id == CLASS_BASIC:
                if method_id == BASIC_PUBLISH:
                    if self.allowance <= 0:
                        self.stopped = True
                        self.frames -= 1
                        return None
                    return self.publish(slot, p, total, available)
                if method_id == BASIC_ACK or method_id == BASIC_NACK or method_id == BASIC_REJECT:
                    self.settle(slot, method_id, p + 7, size)
                    return None
        return number, (<const char*>p + 7)[:size]

    cdef int settle(self, ChannelSlot slot, uint16_t method, const uint8_t* p, uint32_t size) except -1:
        """Handle basic.ack, basic.nack or basic.reject.

        ack: u64 tag, bit multiple; nack: u64 tag, bits multiple, requeue; reject: u64 tag, bit
        requeue.
        """
        cdef uint64_t tag
        cdef uint8_t bits
        cdef Py_ssize_t before = len(slot.settles)
        if size != 13:
            raise cannot_decode(p + 4, size - 4)
        tag = be64(p + 4)
        bits = p[12]
        if method == BASIC_ACK:
            slot.settle(_SETTLE, tag, bits & 1)
        elif method == BASIC_NACK:
            slot.settle(_RETURN if bits & 2 else _DISCARD, tag, bits & 1)
        else:
            slot.settle(_REJECT | (_RETURN if bits & 1 else _DISCARD), tag, False)
        if len(slot.settles) != before:
            self.settle_runs += 1
            self.work += WORK_SETTLE
        return self.mark(slot)

    cdef object publish(self, ChannelSlot slot, const uint8_t* p, size_t total, size_t available):
        """basic.publish: u16 reserved, short exchange, short routing key, bits mandatory and immediate.

        When the whole content stands behind it in one body frame, as nearly always, the message is
        packed from where it lies; otherwise its pieces are gathered in the slot.
        """
        cdef const uint8_t* end = p + total - 1
        cdef const uint8_t* address = p + FRAME_HEADER_BYTES + 6
        cdef const uint8_t* q
        cdef const uint8_t* body
        cdef uint32_t address_size, header_size
        cdef uint64_t body_size
        cdef size_t rest = available - total
        if address + 1 > end or address + 2 + address[0] > end:
            raise cannot_decode(p + 11, total - FRAME_OVERHEAD - 4)
        q = address + 1 + address[0]
        if q + 1 + q[0] + 1 != end:
            raise cannot_decode(p + 11, total - FRAME_OVERHEAD - 4)
        q += 1 + q[0]
        address_size = <uint32_t>(q - address)
        if q[0] & 2:
            raise publish_error(540, "immediate=true")
        if slot.has_settles() and not slot.is_settling_surely():
            # A wrong tag closes the channel before this publish; what it was right about counts.
            slot.channel.collect_settles()
        slot.mandatory = q[0] & 1
        q = p + total
        # Content header in sight, whole, of this channel and class?
        if rest < FRAME_OVERHEAD + CONTENT_HEADER_BYTES or q[0] != FRAME_HEADER or memcmp(q + 1, p + 1, 2) != 0:
            return self._await_content(slot, address, address_size)
        header_size = be32(q + 3)
        if (
            header_size > self.frame_size_max
            or rest < <size_t>header_size + FRAME_OVERHEAD
            or header_size < CONTENT_HEADER_BYTES
            or q[header_size + 7] != FRAME_END
            or be32(q + 7) != CLASS_BASIC << 16     # class and weight
        ):
            return self._await_content(slot, address, address_size)
        rest -= <size_t>header_size + FRAME_OVERHEAD
        body_size = be64(q + 11)
        body = q + header_size + FRAME_OVERHEAD
        if body_size > self.message_size_max:
            return self._await_content(slot, address, address_size)
        if body_size:
            if (
                rest < body_size + FRAME_OVERHEAD
                or body[0] != FRAME_BODY
                or memcmp(body + 1, p + 1, 2) != 0
                or be32(body + 3) != body_size
                or body_size > self.frame_size_max
                or body[body_size + 7] != FRAME_END
            ):
                return self._await_content(slot, address, address_size)
            self.position += header_size + FRAME_OVERHEAD + body_size + FRAME_OVERHEAD
            self.frames += 2
        else:
            self.position += header_size + FRAME_OVERHEAD
            self.frames += 1
        return self.message(
            slot, slot.mandatory, address, address_size, q + 7, header_size, body + 7, body_size
        )

    cdef object _await_content(self, ChannelSlot slot, const uint8_t* address, uint32_t address_size):
        self.drop_content(slot)
        slot.content.extend(address, address_size)
        self.unfinished += address_size
        slot.address_size = address_size
        slot.expecting = EXPECT_HEADER
        return None

    cdef object header(self, ChannelSlot slot, const uint8_t* p, uint32_t size):
        """Handle a content header frame that came apart from its method."""
        if slot.expecting == EXPECT_METHOD:
            raise ConnectionClosingError(505, "expected method frame, got non method frame instead")
        if slot.expecting == EXPECT_BODY:
            raise publish_error(505, "expected content body, got non content body frame instead")
        if be16(p + 2) != 0:
            # The weight is reserved; RabbitMQ takes a header with one for something else.
            raise publish_error(
                505, f"expected content header for class {CLASS_BASIC}, got non content header frame instead"
            )
        if be16(p) != CLASS_BASIC:
            raise publish_error(
                505, f"expected content header for class {CLASS_BASIC}, got one for class {be16(p)} instead"
            )
        if size < CONTENT_HEADER_BYTES:
            raise cannot_decode(p, size)
        slot.body_size = be64(p + 4)
        if slot.body_size > self.message_size_max:
            body_size = slot.body_size
            self.drop_content(slot)
            slot.closing = True
            return slot.number, ChannelError(
                406, f"message size {body_size} is larger than max size {self.message_size_max}"
            )
        self.gather(slot, p, size)
        slot.header_size = size
        slot.expecting = EXPECT_BODY
        if slot.body_size == 0:
            return self._gathered(slot)
        return None

    cdef object body(self, ChannelSlot slot, const uint8_t* p, uint32_t size):
        """Handle a content body frame that came apart from its method, or one of several."""
        cdef uint64_t received
        if slot.expecting == EXPECT_METHOD:
            raise ConnectionClosingError(505, "expected method frame, got non method frame instead")
        if slot.expecting == EXPECT_HEADER:
            raise publish_error(
                505, f"expected content header for class {CLASS_BASIC}, got non content header frame instead"
            )
        received = slot.content.size - slot.address_size - slot.header_size
        if received + size > slot.body_size:
            raise publish_error(501, "content body frame exceeds remaining content size")
        self.gather(slot, p, size)
        if received + size == slot.body_size:
            return self._gathered(slot)
        return None

    cdef int gather(self, ChannelSlot slot, const uint8_t* p, uint32_t size) except -1:
        """Keep a part of a message. Raises 506 beyond the limit for all channels together."""
        slot.content.extend(p, size)
        self.unfinished += size
        if self.unfinished > self.unfinished_bytes_max:
            raise publish_error(
                506, f"unfinished messages of more than {self.unfinished_bytes_max} bytes on this connection"
            )
        return 0

    cdef object _gathered(self, ChannelSlot slot):
        """Handle a message whose last part has come."""
        cdef Buffer content = slot.content
        cdef const uint8_t* header = content.data + slot.address_size
        self.unfinished -= content.size
        slot.content = Buffer()
        slot.expecting = EXPECT_METHOD
        return self.message(
            slot, slot.mandatory, content.data, slot.address_size, header, slot.header_size,
            header + slot.header_size, slot.body_size,
        )

    cdef object message(
        self, ChannelSlot slot, bint mandatory, const uint8_t* address, uint32_t address_size,
        const uint8_t* header, uint32_t header_size, const uint8_t* body, size_t body_size,
    ):
        """Pack a whole message into its builders, or return it as an event. Raises ChannelError."""
        cdef Properties properties
        cdef int flags = read_properties(header, header_size, &properties)
        cdef uint64_t tag_mask = 0
        cdef Route route
        cdef bytes rewritten
        if flags < 0:
            raise cannot_decode(header, header_size)
        route = self.route(slot, address)
        if flags & LOOKED_INTO:
            if flags & HAS_REPLY_TO and slot.reply_address is None and is_reply_name(&properties.reply_to):
                raise ChannelError(406, "fast reply consumer does not exist")
            flags = check_content(flags, &properties, self.user, &tag_mask)
            if flags & HAS_REPLY_TO and is_reply_name(&properties.reply_to):
                rewritten = rewrite(header, header_size, None, slot.reply_address, True)
                header = <const uint8_t*><const char*>rewritten
                header_size = <uint32_t>len(rewritten)
        slot.published += 1
        if slot is not self.publishing:
            self.begin_run(slot)
        self.message_sizes.add(body_size, 1)
        self.allowance -= 1
        self.published.add(1, RECORD_HEADER_BYTES + address_size + 4 + header_size + body_size)
        if slot.confirms is not None:
            self.mark(slot)
        if route is None or slot.one_by_one or flags & LEAVES or (
            not route.builders and (mandatory or slot.escalates_unrouted)
        ) or PyTuple_GET_SIZE(route.builders) * (header_size + body_size) > _COPIED_BYTES_MAX:
            return slot.number, _as_publish(
                mandatory, <uint32_t>flags, address, header, header_size, body, body_size
            )
        if not route.builders:
            self.dropped += 1
            return None
        self.routed += PyTuple_GET_SIZE(route.builders)
        self.pack(
            slot, route, <uint32_t>flags, tag_mask, address, address_size,
            header, header_size, body, body_size,
        )
        return None

    cdef void begin_run(self, ChannelSlot slot) noexcept:
        """Begin to count a run of publishes of one channel to one exchange."""
        self.end_run()
        self.publishing = slot
        self.uncounted_after = slot.published - 1

    cdef void end_run(self) noexcept:
        """Count the publishes of the current run."""
        cdef ChannelSlot slot = self.publishing
        cdef RouteCache cache
        cdef uint64_t count
        if slot is None:
            return
        cache = slot.cache
        count = slot.published - self.uncounted_after
        self.publishing = None
        slot.counters.add(_PUBLISH, count)
        self.vhost.add(_PUBLISH, count)
        if slot.confirms is not None:
            self.vhost.add(_RECEIVED_CONFIRM, count)
        if cache is not None:
            cache.counters.add(_PUBLISH_IN, count)
            slot.publish_statistics.add(_PUBLISH, count)
        if self.routed:
            self.vhost.add(_PUBLISH_OUT, self.routed)
            if cache is not None:
                cache.counters.add(_PUBLISH_OUT, self.routed)
            self.routed = 0
        if self.dropped:
            self.count_unroutable(slot, slot.publish_statistics, _DROP_UNROUTABLE, self.dropped)
            self.dropped = 0

    cdef void count_unroutable(self, ChannelSlot slot, PublishStatistics publish_statistics, int counter, uint64_t count) noexcept:
        slot.counters.add(counter, count)
        self.vhost.add(counter, count)
        if publish_statistics is not None:
            publish_statistics.add(counter, count)
            if publish_statistics.cache is not None:
                publish_statistics.cache.counters.add(counter, count)

    def routed_singly(self, ChannelSlot slot, bytes exchange, uint64_t queues):
        """Count the queues that a Publish event's message was routed to."""
        cdef PublishStatistics publish_statistics = slot.publish_statistics_by_exchange.get(exchange)
        self.vhost.add(_PUBLISH_OUT, queues)
        if publish_statistics is not None and publish_statistics.cache is not None:
            publish_statistics.cache.counters.add(_PUBLISH_OUT, queues)

    def unroutable(self, ChannelSlot slot, bytes exchange, bint returned):
        """Count a Publish event's message as unroutable: returned or dropped."""
        self.count_unroutable(
            slot, slot.publish_statistics_by_exchange.get(exchange), _RETURN_UNROUTABLE if returned else _DROP_UNROUTABLE, 1
        )

    cdef Route route(self, ChannelSlot slot, const uint8_t* address):
        """Return the route of an address; None where only the whole message determines it."""
        cdef const uint8_t* key = address + 1 + address[0]
        cdef RouteCache cache = slot.cache
        cdef PublishStatistics publish_statistics
        cdef bytes exchange = slot.exchange
        cdef Py_ssize_t known
        if cache is None or len(exchange) != address[0] or memcmp(<const char*>exchange, address + 1, address[0]):
            exchange = (<const char*>address + 1)[: address[0]]
            publish_statistics = slot.publish_statistics_by_exchange.get(exchange)
            cache = None if publish_statistics is None else publish_statistics.cache
            if cache is None:
                cache = slot.channel.route_cache(exchange)
                if cache is None:
                    self.end_run()
                    slot.exchange = None
                    slot.publish_statistics = None
                    slot.cache = None
                    return None  # the user's permission must be asked for first
                publish_statistics = slot.statistics_of(exchange, cache)
            self.end_run()
            slot.exchange = exchange
            slot.publish_statistics = publish_statistics
            slot.cache = cache
            slot.key = None
        if not cache.cacheable:
            return None
        if (
            slot.key is None
            or slot.route_version != cache.version
            or len(slot.key) != key[0]
            or memcmp(<const char*>slot.key, key + 1, key[0])
        ):
            known = len(cache.routes)
            slot.route = cache.find(key + 1, key[0]) if address[0] or not is_reply_address(key) else None
            if len(cache.routes) != known:
                self.work += WORK_ROUTE
            slot.route_version = cache.version
            slot.key = (<const char*>key + 1)[: key[0]]
        return slot.route

    cdef int pack(
        self, ChannelSlot slot, Route route, uint32_t flags, uint64_t tag_mask,
        const uint8_t* address, uint32_t address_size,
        const uint8_t* header, uint32_t header_size, const uint8_t* body, size_t body_size,
    ) except -1:
        cdef BatchBuilder builder
        cdef object target
        cdef bint confirming = slot.confirms is not None
        self.work += PyTuple_GET_SIZE(route.builders) * (1 + (header_size + body_size) // WORK_COPIED_BYTES)
        for target in route.builders:
            if type(target) is Partitioner:
                builder = route.place(<Partitioner>target, flags, address, header, header_size)
            else:
                builder = <BatchBuilder?>target
            if builder.count == 0 or builder.parked:
                builder.parked = False      # once is enough
                self.filled.append(builder)
            builder.append(
                flags, self.now, tag_mask, address, address_size, header, header_size, body, body_size
            )
            if confirming:
                slot.touch(builder)
                if builder.publish_tags is not None:
                    (<PublishTags>builder.publish_tags).note(slot.channel, slot.published, builder.count - 1)
            if self.packed is not None:
                self.packed.add(builder)
        return 0

    def deposit(self, ChannelSlot slot, builders, Publish publish):
        """Pack a Publish event's message into the builders that were found for it."""
        cdef bytes address = (
            bytes((len(publish.exchange),)) + publish.exchange
            + bytes((len(publish.routing_key),)) + publish.routing_key
        )
        cdef bytes header = publish.header
        cdef uint32_t flags = publish.flags
        if publish.blind_header is not None:
            header = publish.blind_header
            flags |= BLIND_COPIED
        self.pack(
            slot, Route(builders), flags,
            mask_of(<const uint8_t*><const char*>header, <uint32_t>len(header)) if flags & HAS_TAGS else 0,
            <const uint8_t*><const char*>address, <uint32_t>len(address),
            <const uint8_t*><const char*>header, <uint32_t>len(header),
            <const uint8_t*><const char*>publish.body, len(publish.body),
        )


cdef Publish _as_publish(
    bint mandatory, uint32_t flags, const uint8_t* address,
    const uint8_t* header, uint32_t header_size, const uint8_t* body, size_t body_size,
):
    cdef Publish publish = Publish.__new__(Publish)
    cdef const uint8_t* key = address + 1 + address[0]
    publish.mandatory = mandatory
    publish.flags = flags & STORED
    publish.requests = flags & ~<uint32_t>STORED
    publish.further_keys = ()
    publish.exchange = (<const char*>address + 1)[: address[0]]
    publish.routing_key = (<const char*>key + 1)[: key[0]]
    publish.header = (<const char*>header)[:header_size]
    publish.body = (<const char*>body)[:body_size]
    return publish


cdef inline bint is_reply_address(const uint8_t* key) noexcept nogil:
    """Whether a routing key, its length first, is a direct-reply address."""
    return (
        key[0] > REPLY_NAME_BYTES + 1
        and key[1 + REPLY_NAME_BYTES] == c"."
        and memcmp(key + 1, REPLY_NAME, REPLY_NAME_BYTES) == 0
    )
