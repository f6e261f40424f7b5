# distutils: language = c++
"""Ledger of a queue with message groups: at most one message of each group is leased.

Has the methods of `Ledger`, `index` and `truncate` as `PriorityLedger`, and `is_open`: whether
anything can be delivered now, since ready messages may be blocked by their group.

    ring    groups with a ready message and none leased, in round-robin order
    group   its waiting offsets, lowest first; number of its leased ones
    out     offset → group, of leased offsets

A turn delivers one message; then the group is blocked until that is settled or returned, and goes
to the end of the ring. So a group with a million messages and one with three are served alike.
Messages without a group share one place in the ring: its turn delivers as many as were delivered
from groups since its last one. A returned message goes back to the head of its group, and the group
to the end of the ring.

A message with a group costs 12 bytes (up to a quarter more while the array grows), some 50 more
while it is leased, and a group with waiting or leased messages some 100. Groups are identified by a hash of 64 bits: two with the same
hash only block each other. Offsets removed out of turn (expired, purged) are skipped when they are
reached.
"""

from cython.operator cimport dereference as found_at
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp.algorithm cimport sort
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from leveret.errors import ChannelError
from leveret.core.ledgers.ledger cimport LedgerBase, Run
from leveret.ports.contents cimport HeadersPlace, be32, field_end, field_is, find_headers
from leveret.ports.ranges cimport RangeSet, range_at
from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, HAS_GROUP, RecordView

GROUP = "x-message-group"
GROUP_BYTES_MAX = 255
MAPPED_BYTES = 48       # memory of an entry of a hash map, with its share of the table

cdef enum:
    NAME_BYTES = 15
    UNGROUPED = 0               # the group of messages without one
    STALE_MIN = 1024            # stale places kept before weeding, beside as many live ones
    ROOM_MIN = 16
    NOWHERE = 0x7FFFFFFF        # no index: absent from a map, or the end of a list

cdef const uint8_t* NAME = <const uint8_t*>b"x-message-group"
# Random per process, so that clients cannot construct colliding groups.
cdef uint64_t SEED = <uint64_t>(hash("leveret.core.ledgers.groups") & 0xFFFFFFFFFFFFFFFF)


cdef struct Indexed:
    uint64_t offset
    uint64_t group              # its hash


cdef struct Group:
    uint64_t hash
    uint32_t head               # index of its first place; NOWHERE if nothing waits
    uint32_t tail
    uint32_t next               # next group in the ring, or in the free list
    uint32_t out                # number of leased offsets
    bint in_ring


cdef bint _by_offset(const Indexed& one, const Indexed& other) noexcept nogil:
    return one.offset < other.offset


ctypedef unordered_map[uint64_t, uint32_t] Indexes


cdef inline uint32_t _find(Indexes& indexes, uint64_t key) except? 0xFFFFFFFF:
    """Return the value of `key`, or NOWHERE."""
    cdef Indexes.iterator found = indexes.find(key)
    return NOWHERE if found == indexes.end() else found_at(found).second


# ----- the header

cdef const uint8_t* group_field(const uint8_t* fields, const uint8_t* stop) noexcept nogil:
    """Return the value of the field `x-message-group`, type letter first; NULL if absent."""
    cdef const uint8_t* field = fields
    cdef const uint8_t* after
    while field < stop:
        after = field_end(field, stop)
        if after == NULL:
            return NULL
        if field_is(field, NAME, NAME_BYTES):
            return field + 1 + NAME_BYTES
        field = after
    return NULL


cdef int check_group(const uint8_t* fields, const uint8_t* stop) except -1:
    """Raise ChannelError 406 if a table's group is not a string of bounded length."""
    cdef const uint8_t* value = group_field(fields, stop)
    if value == NULL:
        return 0
    if value[0] != c"S":
        raise ChannelError(406, f"invalid header '{GROUP}': expected a string")
    if be32(value + 1) > 255:
        raise ChannelError(
            406, f"invalid header '{GROUP}': {be32(value + 1)} bytes are more than {GROUP_BYTES_MAX}"
        )
    return 0


def check_group_of(const unsigned char[::1] fields not None):
    """Raise ChannelError 406 for an invalid group; `check_group` for callers in Python."""
    if fields.shape[0]:
        check_group(&fields[0], &fields[0] + fields.shape[0])


cdef bint read_group(const RecordView* record, uint64_t* group) noexcept nogil:
    """Read the hash of a record's group. Returns False if it has none."""
    cdef HeadersPlace place
    cdef const uint8_t* value
    cdef uint64_t h = SEED
    cdef uint32_t i
    if not find_headers(record.header, record.header_size, &place):
        return False
    value = group_field(place.fields, place.stop)
    if value == NULL or value[0] != c"S":
        return False
    for i in range(be32(value + 1)):
        h = (h ^ value[5 + i]) * <uint64_t>0x100000001B3
        h ^= h >> 29
    group[0] = h
    return True


# ----- the ledger

cdef class GroupLedger(LedgerBase):
    """Delivery state with groups.

    Nothing is ready at first; `settled` is known up to `committed`.
    """

    cdef RangeSet free_ready            # without a group
    cdef RangeSet free_leased
    cdef RangeSet ready                 # with a group
    cdef RangeSet leased
    cdef RangeSet returned              # unsettled offsets that were returned
    cdef uint64_t reached               # one past the highest offset ever leased
    cdef uint64_t first_redelivered_stop
    cdef vector[Indexed] indexed        # offsets and groups not yet committed, in order
    cdef vector[uint64_t] offsets       # offset of each place
    cdef vector[uint32_t] nexts         # next place of the same group, or next free place
    cdef uint32_t places_free           # first free place
    cdef readonly uint32_t node_count   # places in use, stale ones included
    cdef vector[Group] groups
    cdef uint32_t groups_free
    cdef Indexes by_hash
    cdef Indexes out                    # offset → group, of leased offsets removed from their list
    cdef uint32_t ring_head
    cdef uint32_t ring_tail
    cdef uint64_t served                # messages of groups since the last turn of ungrouped ones
    cdef RangeSet earlier               # settled in an earlier run
    cdef uint64_t earlier_stop

    def __cinit__(
        self, uint64_t first, uint64_t committed, RangeSet settled not None, uint64_t redelivered_stop=0
    ):
        self.free_ready, self.free_leased = RangeSet(), RangeSet()
        self.ready, self.leased = RangeSet(), RangeSet()
        self.returned = RangeSet()
        self.reached = self.first_redelivered_stop = redelivered_stop
        self.ring_head = self.ring_tail = NOWHERE
        self.places_free = self.groups_free = NOWHERE
        self.earlier = settled
        self.earlier_stop = committed
        self.committed = min(first, committed)
        self._new_group(0)      # UNGROUPED

    # ----- what it holds

    @property
    def redelivered_stop(self):
        """Offset below which messages may have been delivered before."""
        return self.reached

    cdef uint64_t count_ready(self) noexcept:
        return self.free_ready.count + self.ready.count

    @property
    def leased_count(self):
        return self.free_leased.count + self.leased.count

    @property
    def held_bytes(self):
        """Memory of ranges, places and groups, in bytes."""
        cdef RangeSet held
        cdef size_t found = self.offsets.capacity() * (sizeof(uint64_t) + sizeof(uint32_t))
        found += self.groups.capacity() * sizeof(Group) + self.indexed.capacity() * sizeof(Indexed)
        found += (self.by_hash.size() + self.out.size()) * MAPPED_BYTES
        for held in (self.free_ready, self.free_leased, self.ready, self.leased, self.returned):
            found += held.held_bytes
        return found

    @property
    def group_count(self):
        """Number of groups with waiting or leased messages; stale ones may be included."""
        return self.by_hash.size()

    @property
    def is_open(self):
        """Whether a ready message can be delivered, i.e. is not blocked by its group."""
        return self._front() != NOWHERE

    @property
    def first_ready(self):
        if not self.free_ready.size:
            return self.ready.first
        if not self.ready.size:
            return self.free_ready.first
        return min(range_at(self.free_ready, 0).first, range_at(self.ready, 0).first)

    def ready_in(self, uint64_t first, uint64_t stop):
        return _overlap(self.free_ready, first, stop) + _overlap(self.ready, first, stop)

    def leased_in(self, uint64_t first, uint64_t stop):
        return _overlap(self.free_leased, first, stop) + _overlap(self.leased, first, stop)

    def unsettled(self):
        cdef RangeSet found = RangeSet()
        cdef uint64_t first, stop
        for held in (self.free_ready, self.free_leased, self.ready, self.leased):
            for first, stop in held:
                found.add(first, stop)
        return found

    # ----- becoming ready

    def index(self, Batch batch not None):
        """Index the groups of records that are not committed yet."""
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = batch.base_offset, group
        cdef uint32_t i
        cdef bint early = not self.indexed.empty() and self.indexed.back().offset > offset
        if not <int>batch.features & HAS_GROUP:
            return
        for i in range(batch.count):
            position = batch.view(position, &record)
            if record.flags & HAS_GROUP and read_group(&record, &group):
                self.indexed.push_back(Indexed(offset, group))
            offset += 1
        if early:   # the backlog of an earlier run is read while new records come in
            sort(self.indexed.begin(), self.indexed.end(), &_by_offset)

    def truncate(self, uint64_t offset):
        """Drop the uncommitted records from `offset` on, which are lost; offsets will be reused."""
        while not self.indexed.empty() and self.indexed.back().offset >= offset:
            self.indexed.pop_back()

    cpdef commit(self, uint64_t stop):
        cdef uint64_t at = self.committed
        cdef size_t i = 0
        assert stop >= self.committed, "the committed offset does not go back"
        while i < self.indexed.size() and self.indexed[i].offset < stop:
            if self.indexed[i].offset >= at:
                self._enter_free(at, self.indexed[i].offset)
                self._enter(self.indexed[i].offset, self.indexed[i].group)
                at = self.indexed[i].offset + 1
            i += 1
        self._enter_free(at, stop)
        if i:
            self.indexed.erase(self.indexed.begin(), self.indexed.begin() + i)
        self.committed = stop
        if stop >= self.earlier_stop:
            self.earlier = None
        if self.node_count > 2 * (self.ready.count + self.leased.count) + STALE_MIN:
            self._weed()

    cdef int _enter_free(self, uint64_t first, uint64_t stop) except -1:
        cdef uint64_t low, high
        if self.earlier is not None and first < self.earlier_stop:
            for low, high in self.earlier.gaps(first, min(stop, self.earlier_stop)):
                self.free_ready.add(low, high)
            first = min(stop, self.earlier_stop)
        self.free_ready.add(first, stop)
        if self.free_ready.size:
            self._join(UNGROUPED)
        return 0

    cdef int _enter(self, uint64_t offset, uint64_t group) except -1:
        cdef uint32_t number
        if self.earlier is not None and offset < self.earlier_stop and _has(self.earlier, offset):
            return 0
        number = _find(self.by_hash, group)
        if number == NOWHERE:
            number = self._new_group(group)
            self.by_hash[group] = number
        self._append(number, offset)
        self.ready.add(offset, offset + 1)
        if not self.groups[number].out:
            self._join(number)
        return 0

    # ----- groups and their places

    cdef uint32_t _new_group(self, uint64_t group) except? 0xFFFFFFFF:
        cdef uint32_t number = self.groups_free
        cdef Group new = Group(group, NOWHERE, NOWHERE, NOWHERE, 0, False)
        if number == NOWHERE:
            self.groups.push_back(new)
            return self.groups.size() - 1
        self.groups_free = self.groups[number].next
        self.groups[number] = new
        return number

    cdef int _end_group(self, uint32_t number) except -1:
        """Remove a group without waiting or leased messages."""
        self.by_hash.erase(self.groups[number].hash)
        self.groups[number].next = self.groups_free
        self.groups_free = number
        if self.by_hash.empty():        # the array is empty and can be filled in order again
            self.groups.resize(1)
            self.groups_free = NOWHERE
        return 0

    cdef uint32_t _place(self, uint64_t offset) except? 0xFFFFFFFF:
        cdef uint32_t place = self.places_free
        cdef size_t room = self.offsets.size()
        self.node_count += 1
        if place == NOWHERE:
            if room == self.offsets.capacity():     # by a quarter, not twice: there may be millions
                room = max(room + room // 4, <size_t>ROOM_MIN)
                self.offsets.reserve(room)
                self.nexts.reserve(room)
            self.offsets.push_back(offset)
            self.nexts.push_back(NOWHERE)
            return self.offsets.size() - 1
        self.places_free = self.nexts[place]
        self.offsets[place] = offset
        self.nexts[place] = NOWHERE
        return place

    cdef int _append(self, uint32_t number, uint64_t offset) except -1:
        """Append an offset to its group."""
        cdef uint32_t place = self._place(offset)
        cdef Group* group = &self.groups[number]
        if group.head == NOWHERE:
            group.head = place
        else:
            self.nexts[group.tail] = place
        group.tail = place
        return 0

    cdef int _insert(self, uint32_t number, uint64_t offset) except -1:
        """Insert a returned offset into its group, near the head."""
        cdef uint32_t place = self._place(offset), before
        cdef Group* group = &self.groups[number]
        if group.head == NOWHERE or self.offsets[group.head] > offset:
            self.nexts[place] = group.head
            group.head = place
            if group.tail == NOWHERE or self.nexts[place] == NOWHERE:
                group.tail = place
            return 0
        before = group.head
        while self.nexts[before] != NOWHERE and self.offsets[self.nexts[before]] < offset:
            before = self.nexts[before]
        self.nexts[place] = self.nexts[before]
        self.nexts[before] = place
        if group.tail == before:
            group.tail = place
        return 0

    cdef void _drop_head(self, uint32_t number) noexcept:
        cdef Group* group = &self.groups[number]
        cdef uint32_t place = group.head
        group.head = self.nexts[place]
        if group.head == NOWHERE:
            group.tail = NOWHERE
        self.nexts[place] = self.places_free
        self.places_free = place
        self.node_count -= 1
        if not self.node_count:
            self.offsets.clear()
            self.offsets.shrink_to_fit()
            self.nexts.clear()
            self.nexts.shrink_to_fit()
            self.places_free = NOWHERE

    cdef int _weed(self) except -1:
        """Free the places of offsets that were removed out of turn and settled."""
        cdef uint32_t number, place, before, after
        cdef Group* group
        for number in range(1, <uint32_t>self.groups.size()):
            group = &self.groups[number]
            if group.head == NOWHERE or _find(self.by_hash, group.hash) != number:
                continue
            while group.head != NOWHERE and not self._waits(self.offsets[group.head]):
                self._drop_head(number)
            before = group.head
            while before != NOWHERE:
                place = self.nexts[before]
                if place != NOWHERE and not self._waits(self.offsets[place]):
                    after = self.nexts[place]
                    self.nexts[before] = after
                    if group.tail == place:
                        group.tail = before
                    self.nexts[place] = self.places_free
                    self.places_free = place
                    self.node_count -= 1
                else:
                    before = place
        return 0

    cdef bint _waits(self, uint64_t offset):
        """Whether an offset is ready, or was withdrawn and may come back."""
        return _has(self.ready, offset) or _has(self.leased, offset)

    # ----- turns

    cdef void _join(self, uint32_t number) noexcept:
        """Append a group to the ring unless it is in it."""
        cdef Group* group = &self.groups[number]
        if group.in_ring:
            return
        group.in_ring = True
        group.next = NOWHERE
        if self.ring_head == NOWHERE:
            self.ring_head = number
        else:
            self.groups[self.ring_tail].next = number
        self.ring_tail = number

    cdef void _leave(self) noexcept:
        """Remove the first group from the ring."""
        cdef Group* group = &self.groups[self.ring_head]
        self.ring_head = group.next
        if self.ring_head == NOWHERE:
            self.ring_tail = NOWHERE
        group.in_ring = False
        group.next = NOWHERE

    cdef uint32_t _front(self) except? 0xFFFFFFFF:
        """Return the group whose turn it is; NOWHERE if none.

        Removes blocked groups from the ring.
        """
        cdef uint32_t number
        while self.ring_head != NOWHERE:
            number = self.ring_head
            if number == UNGROUPED:
                if self.free_ready.size:
                    return number
            elif self._look_at_head(number):
                return number
            self._leave()
            if number != UNGROUPED and not self.groups[number].out:
                self._end_group(number)
        return NOWHERE

    cdef bint _look_at_head(self, uint32_t number) except -1:
        """Whether the group's first offset is ready, and none of it is leased.

        Offsets removed out of turn are dropped if settled, and moved to `out` if they may come
        back.
        """
        cdef uint64_t offset
        cdef Group* group = &self.groups[number]
        while group.head != NOWHERE:
            offset = self.offsets[group.head]
            if _has(self.ready, offset):
                return not group.out
            if _has(self.leased, offset):
                self.out[offset] = number
                group.out += 1
            self._drop_head(number)
        return False

    cdef bint _was_delivered(self, uint64_t offset):
        return offset < self.first_redelivered_stop or _has(self.returned, offset)

    cdef Run next_run(self, uint64_t limit) except *:
        cdef uint32_t number = self._front()
        cdef Run run
        assert number != NOWHERE and limit, "nothing can be delivered"
        if number == UNGROUPED:
            return self._next_free(limit)
        run.first = self.offsets[self.groups[number].head]
        run.redelivered = self._was_delivered(run.first)
        run.stop = run.first + 1
        # Adjacent offsets of other groups whose turns come next extend the run.
        while run.stop - run.first < limit:
            number = self.groups[number].next
            if number == NOWHERE or number == UNGROUPED or self.groups[number].head == NOWHERE:
                break
            if self.offsets[self.groups[number].head] != run.stop or not _has(self.ready, run.stop):
                break
            if self._was_delivered(run.stop) != run.redelivered:
                break
            run.stop += 1
        return run

    cdef Run _next_free(self, uint64_t limit) except *:
        cdef Run run
        cdef uint64_t low, high
        run.first = range_at(self.free_ready, 0).first
        run.redelivered = self._was_delivered(run.first)
        if self.ring_head != self.ring_tail:    # groups wait for their turns
            limit = min(limit, max(self.served, <uint64_t>1))
        run.stop = min(range_at(self.free_ready, 0).stop, run.first + limit)
        if run.first < self.first_redelivered_stop:
            run.stop = min(run.stop, self.first_redelivered_stop)
        elif self.returned.size:
            for low, high in self.returned.gaps(run.first, run.stop):
                run.stop = low if run.redelivered else high
                break
        return run

    cpdef lease(self, uint64_t first, uint64_t stop):
        cdef uint64_t offset = first, moved
        cdef uint32_t number
        self.reached = max(self.reached, stop)
        while offset < stop:
            number = self._front()
            assert number != NOWHERE, "only ready offsets can be leased"
            if number == UNGROUPED:
                assert range_at(self.free_ready, 0).first == offset, "leases are taken in order"
                moved = self.free_ready.remove(offset, stop)
                assert moved == stop - offset, "only ready offsets can be leased"
                self.free_leased.add(offset, stop)
                self.served -= min(self.served, moved)
                if not self.served:     # the turn is over
                    self._leave()
                    if self.free_ready.size:
                        self._join(UNGROUPED)
                return
            assert self.offsets[self.groups[number].head] == offset, "leases are taken in order"
            self.out[offset] = number
            self.groups[number].out += 1
            self._leave()
            self._drop_head(number)
            self.ready.remove(offset, offset + 1)
            self.leased.add(offset, offset + 1)
            self.served += 1
            offset += 1

    def next_ranges(self, uint64_t limit):
        """Return the ranges of the `limit` lowest (oldest) ready offsets, regardless of turns."""
        cdef list found = []
        cdef Py_ssize_t i = 0, j = 0
        cdef uint64_t first, stop
        while limit and (i < self.free_ready.size or j < self.ready.size):
            if j == self.ready.size or (
                i < self.free_ready.size and range_at(self.free_ready, i).first < range_at(self.ready, j).first
            ):
                first, stop = range_at(self.free_ready, i).first, range_at(self.free_ready, i).stop
                i += 1
            else:
                first, stop = range_at(self.ready, j).first, range_at(self.ready, j).stop
                j += 1
            stop = min(stop, first + limit)
            found.append((first, stop))
            limit -= stop - first
        return found

    # ----- the end of a lease

    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t first, stop, settled = 0
        for first, stop in ranges:
            self._end_lease(first, stop, False)
            if self.returned.size:
                self.returned.remove(first, stop)
            settled += stop - first
        return settled

    def return_(self, ranges):
        cdef uint64_t first, stop
        for first, stop in ranges:
            self._end_lease(first, stop, True)
            self.returned.add(first, stop)

    cdef int _end_lease(self, uint64_t first, uint64_t stop, bint returned) except -1:
        cdef uint64_t ended = 0, low, high, offset
        for low, high in _overlap(self.free_leased, first, stop):
            ended += self.free_leased.remove(low, high)
            if returned:
                self.free_ready.add(low, high)
                self._join(UNGROUPED)
        for low, high in _overlap(self.leased, first, stop):
            ended += self.leased.remove(low, high)
            if returned:
                self.ready.add(low, high)
            for offset in range(low, high):
                self._come_home(offset, returned)
        assert first < stop and ended == stop - first, "only leased offsets can be settled or returned"
        return 0

    cdef int _come_home(self, uint64_t offset, bint returned) except -1:
        """Remove an offset with a group from the leased ones; put it back if `returned`."""
        cdef uint32_t number = _find(self.out, offset)
        if number == NOWHERE:   # withdrawn out of turn, so it is still in its group's list
            return 0
        self.out.erase(offset)
        if returned:
            self._insert(number, offset)
        self.groups[number].out -= 1
        if not self.groups[number].out:
            if self.groups[number].head != NOWHERE:
                self._join(number)
            else:
                self._end_group(number)
        return 0

    # ----- out of turn

    def withdraw(self, ranges):
        """Lease the ready part of `ranges` to no consumer, and return it.

        A group is blocked by a withdrawn message once that would have its turn.
        """
        return self._take_out(ranges, True)

    def lose(self, ranges):
        return self._take_out(ranges, False)

    cdef list _take_out(self, ranges, bint leased):
        """Remove the ready part of `ranges`, whatever its turn, and return it."""
        cdef list taken = [], free_parts, parts
        cdef uint64_t first, stop, low, high
        for first, stop in ranges:
            free_parts = _overlap(self.free_ready, first, stop)
            for low, high in free_parts:
                self.free_ready.remove(low, high)
                if leased:
                    self.free_leased.add(low, high)
            parts = _overlap(self.ready, first, stop)
            for low, high in parts:
                self.ready.remove(low, high)
                if leased:
                    self.leased.add(low, high)
            if not leased and self.returned.size:
                self.returned.remove(first, stop)
            taken += sorted(free_parts + parts)
        return taken

    def purge(self):
        cdef list purged = sorted(list(self.free_ready) + list(self.ready))
        cdef uint64_t first, stop
        self.free_ready.clear()
        self.ready.clear()
        for first, stop in purged:
            self.returned.remove(first, stop)
        self._weed()
        return purged


cdef inline bint _has(RangeSet held, uint64_t offset) noexcept:
    cdef Py_ssize_t i = held._find(offset)
    return i < held.size and range_at(held, i).first <= offset


cdef list _overlap(RangeSet held, uint64_t first, uint64_t stop):
    """Return the parts of [first, stop) that are in the set, in order."""
    cdef list found = []
    cdef Py_ssize_t i = held._find(first)
    while i < held.size and range_at(held, i).first < stop:
        found.append((max(first, range_at(held, i).first), min(stop, range_at(held, i).stop)))
        i += 1
    return found
