cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from leveret.core.routing.routes cimport Route, RouteCache
from leveret.ports.counters cimport Counters, Histogram
from leveret.ports.records cimport BatchBuilder
from leveret.ports.traffic cimport Traffic


@cython.final
cdef class Buffer:
    cdef uint8_t* data
    cdef size_t size
    cdef size_t capacity

    cdef int extend(self, const uint8_t* source, size_t size) except -1
    cdef void clear(self) noexcept


cdef class PublishStatistics(Counters):
    cdef RouteCache cache       # None while the user's permission is not known


@cython.final
cdef class ChannelSlot:
    cdef readonly uint16_t number
    cdef readonly object channel
    cdef public bint closing
    cdef public bint one_by_one
    cdef public bint escalates_unrouted
    cdef public object confirms         # Confirms of its publishes; None: they are not confirmed
    cdef public bytes reply_address     # what a reply-to of `amq.rabbitmq.reply-to` becomes; None: no consumer
    cdef public uint64_t published
    cdef public uint64_t confirmed      # the last of these that was answered
    cdef public dict gettings           # Getting of each basic.get that may be repeated, by payload; or None
    cdef readonly Counters counters
    cdef public uint64_t delivery_tag
    cdef public uint64_t settled_tag    # the highest that was settled so far
    cdef public bint has_free_tags      # some deliveries needed no acknowledgement

    cdef readonly dict publish_statistics_by_exchange          # bytes → PublishStatistics, by exchange
    cdef bytes exchange
    cdef PublishStatistics publish_statistics                  # of `exchange`; None where that is not known
    cdef RouteCache cache               # the same's, and the same
    cdef bytes key
    cdef Route route
    cdef uint64_t route_version

    cdef set touched
    cdef uint64_t round             # since the set was taken: no other slot's, and none before
    cdef bint dirty

    cdef list settles
    cdef int run_kind
    cdef bint run_multiple
    cdef uint64_t run_first
    cdef uint64_t run_last

    cdef int expecting
    cdef Buffer content         # address, header and body of a message that came in pieces
    cdef uint32_t address_size
    cdef uint32_t header_size
    cdef uint64_t body_size
    cdef bint mandatory

    cdef int begin_round(self) except -1
    cpdef set take_touched(self)
    cdef bint has_settles(self) noexcept
    cdef int touch(self, BatchBuilder builder) except -1
    cdef int close_run(self) except -1
    cdef int settle(self, int kind, uint64_t tag, bint multiple) except -1
    cdef bint is_settling_surely(self) noexcept
    cdef PublishStatistics statistics_of(self, bytes exchange, RouteCache cache)
    cdef void forget_content(self) noexcept


@cython.final
cdef class FrameReader:
    cdef readonly dict slots        # by number: a client may choose any, however few it opens
    cdef ChannelSlot latest         # the open channel whose frame was read last
    cdef public uint32_t frame_size_max
    cdef public uint64_t message_size_max
    cdef readonly uint64_t frames
    cdef uint64_t now
    cdef bytes user

    cdef object owner               # of `data`
    cdef const uint8_t* data
    cdef size_t position
    cdef size_t size
    cdef Buffer carry
    cdef uint16_t number            # of the channel whose frame it is
    cdef readonly bint lost
    cdef readonly uint64_t unfinished_bytes_max
    cdef readonly uint64_t unfinished   # bytes that are kept of messages whose rest has not come
    cdef public uint64_t noted          # `unfinished` when it was reported last

    cdef list dirty
    cdef list filled
    cdef readonly Traffic published
    cdef public Counters counters       # the connection's
    cdef public Counters vhost          # what counts for the virtual host
    cdef public Histogram message_sizes
    # Publishes in a row on one channel to one exchange are counted together, at their end: until then,
    # the channel's `publish_statistics` and `cache` stay what they are.
    cdef ChannelSlot publishing
    cdef uint64_t uncounted_after       # of `publishing.published`
    cdef uint64_t routed
    cdef uint64_t dropped
    cdef public int64_t allowance       # publishes that may be taken before `next` stops
    cdef readonly bint stopped          # whether it has, before a basic.publish
    cdef uint64_t work                  # done since it last returned, in units of WORK_MAX
    cdef readonly bint paused           # whether that was much, and more is unread
    cdef Py_ssize_t settle_runs         # gathered since `take_dirty`
    cdef public set packed              # the builders packed into, if rates need them, else None

    cpdef int receive(self, data, uint64_t now) except -1
    cpdef object next(self)
    cdef bint leaves_some(self) noexcept
    cpdef list take_dirty(self)
    cpdef list take_filled(self)
    cdef bytes rest(self)
    cdef int look_at(self, data) except -1
    cdef object _next(self)
    cdef object keep_rest(self)
    cdef bint fill_carry(self) except -1
    cdef object carried_frame(self)
    cdef ChannelSlot slot_of(self, uint16_t number)
    cdef int mark(self, ChannelSlot slot) except -1
    cdef void begin_run(self, ChannelSlot slot) noexcept
    cdef void end_run(self) noexcept
    cdef void count_unroutable(self, ChannelSlot slot, PublishStatistics publish_statistics, int counter, uint64_t count) noexcept
    cdef size_t frame_length(self, const uint8_t* p) except 0
    cdef object frame(self, const uint8_t* p, size_t available)
    cdef object method(self, ChannelSlot slot, uint16_t number, const uint8_t* p, size_t total, size_t available)
    cdef object publish(self, ChannelSlot slot, const uint8_t* p, size_t total, size_t available)
    cdef object _await_content(self, ChannelSlot slot, const uint8_t* address, uint32_t address_size)
    cdef object _gathered(self, ChannelSlot slot)
    cdef int gather(self, ChannelSlot slot, const uint8_t* p, uint32_t size) except -1
    cdef object header(self, ChannelSlot slot, const uint8_t* p, uint32_t size)
    cdef object body(self, ChannelSlot slot, const uint8_t* p, uint32_t size)
    cdef int settle(self, ChannelSlot slot, uint16_t method, const uint8_t* p, uint32_t size) except -1
    cdef object message(
        self, ChannelSlot slot, bint mandatory, const uint8_t* address, uint32_t address_size,
        const uint8_t* header, uint32_t header_size, const uint8_t* body, size_t body_size,
    )
    cdef Route route(self, ChannelSlot slot, const uint8_t* address)
    cdef int pack(
        self, ChannelSlot slot, Route route, uint32_t flags, uint64_t tag_mask, const uint8_t* address, uint32_t address_size,
        const uint8_t* header, uint32_t header_size, const uint8_t* body, size_t body_size,
    ) except -1


cdef class Publish:
    cdef readonly bint mandatory
    cdef readonly bytes exchange
    cdef readonly bytes routing_key
    cdef public bytes header
    cdef public bytes blind_header
    cdef readonly bytes body
    cdef readonly uint32_t flags
    cdef readonly uint32_t requests
    cdef public tuple further_keys
