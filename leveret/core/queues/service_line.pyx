"""Round-robin among the consumers of one priority: the least recently served is next.

A consumer without capacity is set aside when its turn comes, and keeps its place: its turn does not
come again until `wake` says that it has capacity. So a queue's cost depends on the consumers with
capacity, however many wait for acknowledgements.

Compiled because consumers that share a short backlog take turns with each message.
"""

from heapq import heapify, heappop, heappush, heapreplace

from libc.stdint cimport uint64_t

# Entries of consumers that were served out of turn or removed stay in the heap; it is rebuilt when
# they exceed this number plus the number of consumers.
STALE_ENTRIES_MAX = 64
# A backlog of at most this many offsets for each consumer is dealt one by one, so that slow and
# fast consumers share it as they would in RabbitMQ.
DEAL_SINGLY_MAX = 16
# A larger backlog is dealt in chunks of at most this many offsets: long enough that ranges cost
# nothing per message, short enough that no consumer waits long for its turn.
CHUNK_OFFSETS_MAX = 256
# A chunk is this part of one consumer's even share, so that the chunks shrink as the backlog does.
SHARE_PARTS = 4

cdef uint64_t _DEAL_SINGLY_MAX = DEAL_SINGLY_MAX
cdef uint64_t _CHUNK_OFFSETS_MAX = CHUNK_OFFSETS_MAX
cdef uint64_t _SHARE_PARTS = SHARE_PARTS


cpdef uint64_t chunk_offsets(uint64_t ready_count, uint64_t consumer_count) except? 0:
    """Return how many of `ready_count` offsets one of `consumer_count` sharers gets per turn."""
    if ready_count <= _DEAL_SINGLY_MAX * consumer_count:
        return 1
    return min(ready_count // (_SHARE_PARTS * consumer_count), _CHUNK_OFFSETS_MAX)


cdef class ServiceLine:
    """Heap of consumers by the turn in which each was served last."""

    def __init__(self, priority):
        self.priority = priority
        self.turns = 0
        self.places = {}
        self.entries = []
        self.aside = set()

    def __len__(self):
        return len(self.places)

    def __iter__(self):
        """Iterate over all consumers in order of service."""
        return iter(sorted(self.places, key=self.places.__getitem__))

    def __contains__(self, consumer):
        return consumer in self.places

    cdef object first(self):
        """Return the next consumer, with or without capacity. There must be one."""
        self.wake_all()
        while not self.is_place(self.entries[0]):
            heappop(self.entries)
        return self.entries[0][1]

    cdef int add(self, consumer) except -1:
        """Add a consumer at the end."""
        return self.stand_last(consumer)

    cdef int remove(self, consumer) except -1:
        """Remove a consumer."""
        del self.places[consumer]
        self.aside.discard(consumer)
        return self.tidy()

    cdef object next(self):
        """Return the consumer whose turn it is, or None if all are set aside."""
        cdef tuple entry
        while self.entries:
            entry = self.entries[0]
            if self.is_place(entry):
                return entry[1]
            heappop(self.entries)
        return None

    cdef int set_aside(self, consumer) except -1:
        """Do not ask a consumer again until it is woken: it has no capacity. It was `next`."""
        self.aside.add(consumer)
        if self.entries and self.entries[0][1] is consumer:
            heappop(self.entries)
        return 0

    cdef uint64_t share(self, uint64_t capacity, uint64_t ready_count) except? 0:
        """Return how many of `ready_count` offsets one turn of a consumer gets.

        At most `capacity`, and exactly that if all other consumers are set aside.
        """
        cdef uint64_t sharers = len(self.places)
        if sharers == 1 or capacity == 1 or sharers == <uint64_t>len(self.aside) + 1:
            return capacity
        return min(capacity, chunk_offsets(ready_count, sharers))

    cdef int served(self, consumer) except -1:
        """Move a consumer that was served to the end."""
        if self.entries and self.entries[0][1] is consumer:
            heapreplace(self.entries, self.last_place(consumer))
        else:
            self.aside.discard(consumer)
            self.stand_last(consumer)
        return 0

    cdef int wake(self, consumer) except -1:
        """Check a consumer again, in its old place: it may have capacity."""
        if consumer in self.aside:
            self.aside.discard(consumer)
            heappush(self.entries, (self.places[consumer], consumer))
        return 0

    cdef int wake_all(self) except -1:
        """Check all consumers again."""
        if self.aside:
            self.aside.clear()
            self.make_anew()
        return 0

    cdef bint is_place(self, tuple entry) except -1:
        """Whether an entry is its consumer's current one."""
        return self.places.get(entry[1]) == entry[0]

    cdef tuple last_place(self, consumer):
        place = self.turns
        self.turns += 1
        self.places[consumer] = place
        return place, consumer

    cdef int stand_last(self, consumer) except -1:
        heappush(self.entries, self.last_place(consumer))
        self.tidy()
        return 0

    cdef int tidy(self) except -1:
        if len(self.entries) > 2 * len(self.places) + STALE_ENTRIES_MAX:
            self.make_anew()
        return 0

    cdef int make_anew(self) except -1:
        self.entries = [
            (place, consumer)
            for consumer, place in self.places.items()
            if consumer not in self.aside
        ]
        heapify(self.entries)
        return 0
