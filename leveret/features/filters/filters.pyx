"""Filters of records, by conditions on the data before their bodies.

A filter checks a batch's header, then a record's tag mask, then its headers, and continues with the
next record as soon as one of these excludes it. Conditions are evaluated in order of cost; only the
last, SQL, may call Python, for records that have the headers it needs. A batch without a match
costs a few instructions, and so does a record that its mask excludes.

The cost of a call is bounded: it ends with its batches, or once its time is over, and returns how
far it came. The clock is read after each record evaluated in Python, which takes ten microseconds
up to a millisecond, depending on the condition and the headers.
"""

from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from leveret.ports.contents import decode_properties
from leveret.ports.picking import HeaderNames, without_headers
from leveret.ports.contents cimport HeadersPlace, be32, field_end, field_is, find_headers
from leveret.ports.ranges cimport RangeSet, range_at
from leveret.ports.records cimport HAS_HEADERS, Batch, RecordView
from leveret.ports.tables import MalformedFieldError
from leveret.ports.tags cimport TagItems, find_tags, mask_of, next_tag, tag_bit

cdef extern from *:
    void __builtin_prefetch(const void*) noexcept nogil      # of GCC and Clang

cdef enum:
    # A record's position is only known from the one before it: prefetching at a position guessed by
    # its size hides the memory latency. Neighbours are often alike, and a wrong guess is harmless.
    AHEAD = 6
    # Result of a mask for a tag condition; both bits: undecided.
    CAN_HOLD = 1
    CAN_FAIL = 2
    UNSURE = 3
    # Steps of programs, as in leveret.features.filters.tags.TagOperation.
    ANY = -1
    NOT = -2
    AND = -3
    OR = -4
    STACK_MAX = 128
    MASK_AT = 12        # positions in a record and a batch: see leveret.ports.records
    BATCH_MASK_AT = 56


cdef class FilterCondition:
    """One condition: `may_hold` for a batch, without its records; `holds` for a record."""

    cdef bint may_hold(self, Batch batch) noexcept:
        return True

    cdef bint holds(self, RecordView* record) except -1:
        return True


def never():
    """Return False: time is never over."""
    return False


cdef class RecordFilter:
    """Filter that accepts records for which all its conditions hold: `tags`, `other`, `sql`.

    `is_over()` says whether the caller's time is over: one record is evaluated all the same.
    """

    def __init__(self, TagCondition tags, FilterCondition other=None, SqlCondition sql=None, is_over=never):
        self.tags = tags
        self.other = other
        self.sql = sql
        self.is_over = is_over

    @property
    def judgements(self):
        """Number of records evaluated in Python in the last call."""
        return 0 if self.sql is None else self.sql.judgements

    cdef int begin(self) noexcept:
        self.timed = 0
        self.tired = False
        if self.sql is not None:
            self.sql.judgements = 0
        return 0

    cdef bint is_tired(self) except -1:
        """Whether this call's time is over; the clock is read once per evaluation."""
        if self.sql is not None and self.sql.judgements != self.timed:
            self.timed = self.sql.judgements
            self.tired = self.is_over()
        return self.tired

    def run(self, list batches, uint64_t first, uint64_t stop):
        """Return the first run of matching records in [first, stop), which the batches contain.

        (x, x) if nothing below x matches, where x is how far the call came.
        """
        cdef Batch batch
        cdef size_t position
        cdef uint64_t begin = stop
        cdef uint64_t offset = first, end
        self.begin()
        for batch in batches:
            end = min(stop, batch.base_offset + batch.count)
            if offset >= end or offset < batch.base_offset:
                continue
            if not self.may_want(batch):
                if begin != stop:
                    return begin, offset
                offset = end
                continue
            position = batch.locate(offset)
            while offset < end:
                if self.is_tired():
                    return min(begin, offset), offset
                if self.wants(batch, &position):
                    begin = min(begin, offset)
                elif begin != stop:
                    return begin, offset
                offset += 1
            self.keep_place(batch, offset, position)
        return min(begin, offset), offset

    def find(self, list batches, RangeSet ready not None, uint64_t first, uint64_t stop, uint64_t limit):
        """Return (runs, reached): matching records of `ready` in [first, stop), at most `limit`.

        Runs are [(first, stop)]; everything ready below `reached` was scanned. The batches contain
        `first`; the scan ends with them.
        """
        cdef list runs = []
        cdef Batch batch
        cdef uint64_t offset = first, end
        cdef uint64_t begin = 0, after = 0      # of the current run
        cdef Py_ssize_t i = ready._find(first)
        cdef size_t position
        self.begin()
        for batch in batches:
            end = min(stop, batch.base_offset + batch.count)
            if offset >= end:
                continue
            if not self.may_want(batch):
                offset = end
                continue
            offset = max(offset, batch.base_offset)
            position = 0
            while limit and not self.is_tired():
                while i < ready.size and range_at(ready, i).stop <= offset:
                    i += 1
                if i == ready.size or range_at(ready, i).first >= end:
                    offset = end
                    position = 0    # it belongs to a lower offset
                    break
                if position == 0 or range_at(ready, i).first > offset:
                    offset = max(offset, range_at(ready, i).first)
                    position = batch.locate(offset)
                if self.wants(batch, &position):
                    if offset != after:
                        if after:
                            runs.append((begin, after))
                        begin = offset
                    after = offset + 1
                    limit -= 1
                offset += 1
                if offset == end:
                    break
            if position:
                self.keep_place(batch, offset, position)
            if not limit or self.is_tired():
                break
        if after:
            runs.append((begin, after))
        return runs, offset

    cdef bint may_want(self, Batch batch) noexcept:
        return (
            (self.tags is None or self.tags.may_hold(batch))
            and (self.other is None or self.other.may_hold(batch))
            and (self.sql is None or self.sql.may_hold(batch))
        )

    cdef int wants(self, Batch batch, size_t* position) except -1:
        """Whether the record at `position` matches; moves `position` to the next."""
        cdef RecordView record
        cdef uint64_t mask
        cdef int judged = CAN_HOLD
        cdef uint32_t size = batch._size_at(position[0])
        __builtin_prefetch(batch.data + position[0] + AHEAD * <size_t>size)
        if self.tags is not None:
            memcpy(&mask, batch.data + position[0] + MASK_AT, 8)
            judged = self.tags.judge(mask)
            if judged == CAN_FAIL:
                position[0] += size
                return False
        position[0] = batch.view(position[0], &record)
        return self.holds(&record, judged)

    cdef bint holds(self, RecordView* record, int judged) except -1:
        """Whether all conditions hold for a record, given the result `judged` of its tag mask."""
        return (
            (judged == CAN_HOLD or (judged == UNSURE and self.tags.holds(record)))
            and (self.other is None or self.other.holds(record))
            and (self.sql is None or self.sql.holds(record))
        )

    cdef int keep_place(self, Batch batch, uint64_t offset, size_t position) except -1:
        """Cache a position in the batch, so that its next lookup need not start from the front."""
        if offset < batch.base_offset + batch.count:
            batch.cursor_offset = offset
            batch.cursor_position = position
        return 0

    def matches(self, bytes header not None):
        """Whether a message with this content header, which is not stored yet, matches."""
        cdef RecordView record
        self.begin()
        record.header = <const uint8_t*><const char*>header
        record.header_size = <uint32_t>len(header)
        record.flags = HAS_HEADERS
        return self.holds(
            &record,
            CAN_HOLD if self.tags is None
            else self.tags.judge(mask_of(record.header, record.header_size)),
        )


cdef class TagCondition(FilterCondition):
    """Tag condition: the `tags` and `program` of leveret.features.filters.tags."""

    def __init__(self, tags, program):
        cdef Py_ssize_t i
        cdef int depth = 0
        if len(tags) > 64 or len(program) > 512:
            raise ValueError("a tag expression is bounded by whoever reads it")
        self.joined = b"".join(tags)
        self.texts = <const uint8_t*><const char*>self.joined
        self.tag_count = len(tags)
        at = 0
        for i, tag in enumerate(tags):
            self.start[i] = at
            self.size[i] = len(tag)
            self.bit[i] = tag_bit(<const uint8_t*><const char*>tag, <uint32_t>len(tag))
            at += len(tag)
        for i, step in enumerate(program):
            self.program[i] = step
            depth += 1 if step >= ANY else -1 if step <= AND else 0
            if not 1 <= depth <= STACK_MAX or step < OR or step >= len(tags):
                raise ValueError("a tag expression is no program")
        if depth != 1:
            raise ValueError("a tag expression is no program")
        self.steps = len(program)
        self.judged_mask = 0
        self.judged = self.run_on_mask(0, False)

    cdef bint may_hold(self, Batch batch) noexcept:
        cdef uint64_t mask
        memcpy(&mask, batch.data + BATCH_MASK_AT, 8)
        return self.run_on_mask(mask, True) & CAN_HOLD

    cdef bint holds(self, RecordView* record) except -1:
        return self.has_them(record.header, record.header_size)

    cdef int judge(self, uint64_t mask) noexcept nogil:
        """Return the result of a record's tag mask."""
        if mask != self.judged_mask:        # neighbours are often alike
            self.judged = self.run_on_mask(mask, False)
            self.judged_mask = mask
        return self.judged

    cdef int run_on_mask(self, uint64_t mask, bint joined) noexcept nogil:
        """Evaluate the program on the mask of one record, or of several `joined`.

        A bit means that its tag may be present.
        """
        cdef uint8_t[STACK_MAX] stack
        cdef int top = -1, i, step, one, other
        for i in range(self.steps):
            step = self.program[i]
            if step >= 0:
                top += 1
                stack[top] = UNSURE if mask & self.bit[step] else CAN_FAIL
            elif step == ANY:
                top += 1
                stack[top] = CAN_FAIL if mask == 0 else UNSURE if joined else CAN_HOLD
            elif step == NOT:
                one = stack[top]
                stack[top] = <uint8_t>((one & CAN_HOLD) << 1 | (one & CAN_FAIL) >> 1)
            else:
                other = stack[top]
                top -= 1
                one = stack[top]
                if step == AND:
                    stack[top] = <uint8_t>((one & other & CAN_HOLD) | ((one | other) & CAN_FAIL))
                else:
                    stack[top] = <uint8_t>(((one | other) & CAN_HOLD) | (one & other & CAN_FAIL))
        return stack[0]

    cdef bint has_them(self, const uint8_t* header, uint32_t size) noexcept nogil:
        """Whether the expression is true for the tags themselves."""
        cdef TagItems items
        cdef const uint8_t* tag
        cdef uint32_t tag_size
        cdef uint64_t present = 0
        cdef bint tagged = False
        cdef int i
        if find_tags(header, size, &items):
            while next_tag(&items, &tag, &tag_size):
                tagged = True
                for i in range(self.tag_count):
                    if self.size[i] == tag_size and not memcmp(self.texts + self.start[i], tag, tag_size):
                        present |= <uint64_t>1 << i
        return self.run_on_tags(present, tagged)

    cdef bint run_on_tags(self, uint64_t present, bint tagged) noexcept nogil:
        cdef uint8_t[STACK_MAX] stack
        cdef int top = -1, i, step
        for i in range(self.steps):
            step = self.program[i]
            if step >= 0:
                top += 1
                stack[top] = <uint8_t>(present >> step & 1)
            elif step == ANY:
                top += 1
                stack[top] = tagged
            elif step == NOT:
                stack[top] = not stack[top]
            else:
                top -= 1
                if step == AND:
                    stack[top] &= stack[top + 1]
                else:
                    stack[top] |= stack[top + 1]
        return stack[0]


cdef enum:
    NAMES_MAX = 16      # maximum of needed headers checked before Python is called


cdef class SqlCondition(FilterCondition):
    """SQL condition (leveret.features.filters.sql), evaluated in Python by `holds(headers, properties)`.

    A record is excluded before that if it lacks a needed header, or has another text in one that
    needs a certain one. Only what the condition uses is decoded.
    """

    def __init__(self, condition):
        known = dict(condition.texts)
        names = sorted(condition.needed, key=lambda name: (name not in known, name))[:NAMES_MAX]
        self.condition = condition
        self.headers = HeaderNames(condition.headers)
        self.asks_properties = condition.asks_properties
        self.names = [name.encode("utf-8", "surrogateescape") for name in names]
        self.texts = [
            known[name].encode("utf-8", "surrogateescape") if name in known else None for name in names
        ]

    cdef bint may_hold(self, Batch batch) noexcept:
        return not self.names or (<int>batch.features & HAS_HEADERS) != 0

    cdef bint holds(self, RecordView* record) except -1:
        cdef bytes header
        if self.names and not self.has_needed(record):
            return False
        self.judgements += 1
        header = (<const char*>record.header)[: record.header_size]
        try:
            headers = self.headers.pick(header)
            properties = decode_properties(without_headers(header)) if self.asks_properties else {}
        except MalformedFieldError:
            return False
        return self.condition.holds(headers, properties)

    cdef bint has_needed(self, RecordView* record) except -1:
        """Whether all needed headers are present, with their required texts."""
        cdef HeadersPlace place
        cdef const uint8_t* field
        cdef const uint8_t* after
        cdef Py_ssize_t i
        cdef uint32_t missing = (1 << len(self.names)) - 1
        if not record.flags & HAS_HEADERS or not find_headers(record.header, record.header_size, &place):
            return False
        field = place.fields
        while field < place.stop and missing:
            after = field_end(field, place.stop)
            if after == NULL:
                return False
            for i in range(len(self.names)):
                if missing >> i & 1 and is_named(field, <bytes>self.names[i]):
                    missing ^= <uint32_t>1 << i
                    if self.texts[i] is not None and not says(field, <bytes>self.texts[i]):
                        return False
            field = after
        return not missing


cdef bint is_named(const uint8_t* field, bytes name) noexcept:
    return len(name) < 256 and field_is(field, <const uint8_t*><const char*>name, <uint8_t>len(name))


cdef bint says(const uint8_t* field, bytes text) noexcept:
    """Whether a field, whose end was found, has this text as its value."""
    cdef const uint8_t* value = field + 1 + field[0]
    return (
        value[0] == c"S"
        and be32(value + 1) == <uint32_t>len(text)
        and not memcmp(value + 5, <const char*>text, len(text))
    )
