"""Routing of staged records: they are packed for the queues that a commit publishes them to.

    batches of the topic `leveret.staged` ─► route of each run of equal addresses ─► builders of an atomic write

A record of which the routing key alone does not decide, or that asks for a feature, is left to the caller,
who handles it as one of an AMQP transaction. Compiled since it handles every message; no object is made
for one, but for a routing key that differs from the one before.
"""

cimport cython

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from leveret.core.routing.routes cimport Route, RouteCache
from leveret.ports.counters cimport _DROP_UNROUTABLE, _PUBLISH, _PUBLISH_IN, _PUBLISH_OUT, Counters
from leveret.ports.partitioner cimport Partitioner
from leveret.ports.records cimport SELECTS_KEYS, WANTS_DELAY, Batch, BatchBuilder, RecordView

cdef enum:
    ADDRESS_BYTES_MAX = 512
    LOOKED_AT = SELECTS_KEYS | WANTS_DELAY
    # Work of a slice, in records that are packed.
    WORK_ROUTE = 256            # an uncached route
    WORK_COPIED_BYTES = 4096


@cython.final
cdef class RoutedCounts:
    """Counts of what was published to one exchange: messages, copies in queues, and messages without any."""

    cdef readonly uint64_t messages
    cdef readonly uint64_t copies
    cdef readonly uint64_t unrouted

    def add(self, uint64_t copies):
        """Count one message that was routed elsewhere."""
        self.messages += 1
        self.copies += copies
        self.unrouted += copies == 0

    def count(self, Counters exchange, Counters vhost):
        """Add to the counters of an exchange, which may be gone (None), and of its virtual host."""
        vhost.add(_PUBLISH, self.messages)
        vhost.add(_PUBLISH_OUT, self.copies)
        vhost.add(_DROP_UNROUTABLE, self.unrouted)
        if exchange is not None:
            exchange.add(_PUBLISH_IN, self.messages)
            exchange.add(_PUBLISH_OUT, self.copies)
            exchange.add(_DROP_UNROUTABLE, self.unrouted)


@cython.final
cdef class StagedRouter:
    """Packs records into the builders of an atomic write, which `write_to` sets.

    `routes(exchange)` returns the RouteCache of an exchange, or None where each message must be looked at; it
    is called for each run. `counts` has what was published, by exchange.
    """

    cdef object routes
    cdef object records_for             # of a queue: its builder in the write
    cdef dict builders                  # the same, by the queue's own builder; None: it was deleted
    cdef readonly dict counts
    cdef readonly tuple first_unrouted  # exchange and key of the first message without a queue
    cdef readonly size_t packed_bytes   # in the present write
    cdef readonly size_t total_bytes    # in all writes
    cdef public uint64_t offset         # of the record to be packed next
    cdef readonly bint needs_look       # whether `pack` has stopped at it, as it is for the caller
    cdef uint8_t[ADDRESS_BYTES_MAX] address
    cdef uint32_t address_size          # 0: no route is known
    cdef RouteCache cache               # of the exchange; None: each record must be looked at
    cdef RoutedCounts counted           # of the exchange
    cdef Route route
    cdef list targets                   # builders that the route leads to; None: a partitioner chooses

    def __init__(self, routes):
        self.routes = routes
        self.counts = {}
        self.builders = {}

    def write_to(self, records_for):
        """Pack into another write from now on: `records_for(log writer)` returns its builder there."""
        self.records_for = records_for
        self.builders = {}
        self.packed_bytes = 0
        self.address_size = 0

    def counts_of(self, bytes exchange):
        """Return what was published to an exchange."""
        found = self.counts.get(exchange)
        if found is None:
            found = self.counts[exchange] = RoutedCounts()
        return found

    def note_unrouted(self, bytes exchange, bytes routing_key):
        """Remember the address of a message that no queue has got, if it is the first one."""
        if self.first_unrouted is None:
            self.first_unrouted = (exchange, routing_key)

    def note_packed(self, size_t size):
        """Note that the caller has put so many bytes into the write."""
        self.packed_bytes += size
        self.total_bytes += size

    def pack(self, Batch batch not None, uint64_t stop, uint64_t now, int work_max):
        """Pack records of a batch from `offset` on, below `stop`, until the work is done.

        `now` is in ms since 1970. Routes may have changed since the last call. Raises what routing raises;
        the same call then goes on at that record.
        """
        cdef RecordView record
        cdef size_t position
        cdef int work = 0
        self.needs_look = False
        self.address_size = 0
        if self.offset >= stop:
            return
        position = batch.locate(self.offset)
        while self.offset < stop and work < work_max:
            position = batch.view(position, &record)
            if (
                self.address_size != record.address_size
                or memcmp(self.address, record.address, record.address_size) != 0
            ):
                work += self.find_route(&record)
            if self.cache is None or record.flags & LOOKED_AT:
                self.needs_look = True
                break
            work += self.put(&record, now)
            self.offset += 1

    cdef int find_route(self, const RecordView* record) except -1:
        """Set cache and route for a record's address. Returns how much work it was."""
        cdef const uint8_t* key = record.address + 1 + record.address[0]
        cdef int work = 1
        cdef Py_ssize_t known
        cdef bytes exchange
        if self.address_size == 0 or memcmp(self.address, record.address, 1 + record.address[0]) != 0:
            self.address_size = 0
            exchange = (<const char*>record.address + 1)[: record.address[0]]
            self.cache = self.routes(exchange)
            self.counted = self.counts_of(exchange)
            if self.cache is not None and not self.cache.cacheable:
                self.cache = None
            work += WORK_ROUTE // 4
        if self.cache is not None:
            known = len(self.cache.routes)
            self.route = self.cache.find(key + 1, key[0])
            work += WORK_ROUTE if len(self.cache.routes) != known else 0
            self.targets = self.targets_of(self.route)
        memcpy(self.address, record.address, record.address_size)
        self.address_size = record.address_size
        return work

    cdef list targets_of(self, Route route):
        """Return the builders of a route's queues in the write; None if one has several partitions."""
        cdef list targets = []
        cdef object target
        for target in route.builders:
            if type(target) is Partitioner:
                return None
            target = self.builder_of(<BatchBuilder?>target)
            if target is not None:
                targets.append(target)
        return targets

    cdef BatchBuilder builder_of(self, BatchBuilder own):
        """Return the builder in the write for a queue, given by its own; None if it was deleted."""
        cdef object found = self.builders.get(own, self)
        if found is self:
            found = None if own.owner.deleted else self.records_for(own.owner)
            self.builders[own] = found
        return found

    cdef int put(self, const RecordView* record, uint64_t now) except -1:
        """Pack a record for each of its queues. Returns how much work it was."""
        cdef Py_ssize_t copies = 0
        cdef object target
        cdef BatchBuilder builder
        cdef const uint8_t* key
        if self.targets is not None:
            for target in self.targets:
                self.append(<BatchBuilder>target, record, now)
            copies = len(self.targets)
        else:
            for target in self.route.builders:
                if type(target) is Partitioner:
                    builder = self.route.place(
                        <Partitioner>target, record.flags, record.address, record.header, record.header_size
                    )
                else:
                    builder = <BatchBuilder?>target
                builder = self.builder_of(builder)
                if builder is not None:
                    self.append(builder, record, now)
                    copies += 1
        self.counted.messages += 1
        self.counted.copies += copies
        if copies == 0:
            self.counted.unrouted += 1
            key = record.address + 1 + record.address[0]
            self.note_unrouted(
                (<const char*>record.address + 1)[: record.address[0]], (<const char*>key + 1)[: key[0]]
            )
        return <int>(1 + copies * (1 + record.size // WORK_COPIED_BYTES))

    cdef int append(self, BatchBuilder builder, const RecordView* record, uint64_t now) except -1:
        builder.append(
            record.flags, now, record.tag_mask, record.address, record.address_size,
            record.header, record.header_size, record.body, record.body_size,
        )
        self.packed_bytes += record.size
        self.total_bytes += record.size
        return 0
