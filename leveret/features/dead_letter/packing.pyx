"""Packing of dead messages of one queue into the builders of their target queues.

A dead letter is the same record with another address and other headers. Both depend on the record's
address, its expiration and its headers for deaths and copies; records equal in these share one
`DeadLetterTemplate`, which Python computes once. Per record only compiled code runs: it reads the
properties, adds the template's headers to the record's own, and copies the body once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from leveret.core.logs.publish_tags cimport PublishTags
from leveret.ports.contents cimport Piece, Properties, field_end, field_is, read_properties, rewrite
from leveret.ports.partitioner cimport Partitioner
from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport (
    Batch, BatchBuilder, DEAD_LETTERED, HAS_EXPIRATION, HAS_HEADERS, RETRIED, RecordView,
)

from leveret.ports.partitioner import place_of

# Letters cached in one call: a backlog with a routing key per message must not be in memory twice.
TEMPLATES_MAX = 1024

# A content header without properties: class and weight; body size and flags follow.
cdef bytes BLANK = b"\0\x3c\0\0"
cdef enum:
    BLANK_BYTES = 14


cdef class DeadLetterTemplate:
    """New address, headers and destinations of records that are alike.

    `headers` is a table with its length prefix, which replaces the fields of the record's headers
    that it was computed from; the others precede it.
    """

    cdef readonly bytes address
    cdef readonly bytes headers
    cdef readonly tuple builders

    def __init__(self, bytes exchange not None, bytes routing_key not None, bytes headers not None, builders):
        self.address = bytes((len(exchange),)) + exchange + bytes((len(routing_key),)) + routing_key
        self.headers = headers
        self.builders = tuple(builders)


cdef class DeadLetterWriter:
    """Writer of the dead letters of one queue, for one reason, at one time.

    `compose(exchange, routing_key, expiration, headers, is_dead_letter) -> DeadLetterTemplate` is called once
    for each kind of record; `expiration` is None if the record has none, `headers` is a table of
    the fields for deaths and for CC and BCC, None without any. `route(template, flags, header, body)
    -> tuple of builders` is called for every record if its destination depends on more than the
    address; without it the template's own builders get the record. A `publish` (see
    leveret.features.dead_letter.publish) says which builders are skipped, and is notified of records
    that a builder's queue refuses. `touched` are the builders that were written to, `given` the
    offsets of the records that each got, if there is a `publish`, and `unrouted` the ranges of
    offsets that no queue took.
    """

    cdef readonly set touched
    cdef readonly dict given
    cdef readonly list unrouted
    cdef object compose
    cdef object route
    cdef object publish
    cdef object written
    cdef uint64_t now
    cdef dict templates
    cdef DeadLetterTemplate template          # of the previous record, if without expiration or such headers
    cdef bytes address

    def __init__(self, compose, uint64_t now, route=None, publish=None):
        self.compose = compose
        self.now = now
        self.route = route
        self.publish = publish
        self.written = () if publish is None else publish.written
        self.templates = {}
        self.touched = set()
        self.given = {}
        self.unrouted = []

    def write(self, Batch batch not None, uint64_t first, uint64_t stop):
        """Write the records [first, stop) of `batch` to their targets."""
        cdef RecordView record
        cdef size_t position = batch.locate(first)
        cdef uint64_t offset
        for offset in range(first, stop):
            position = batch.view(position, &record)
            if not self.write_record(&record, offset):
                self.note_unrouted(offset)

    cdef int write_record(self, RecordView* record, uint64_t offset) except -1:
        """Write one record to all its destinations. Returns whether there were any."""
        cdef Properties properties
        cdef Piece kept
        cdef bytes kept_fields, headers = None
        cdef int found = -1
        cdef DeadLetterTemplate template
        cdef BatchBuilder builder
        cdef object target
        cdef bytes header, blank
        cdef tuple builders
        cdef uint32_t flags
        if record.header_size >= BLANK_BYTES:
            found = read_properties(record.header, record.header_size, &properties)
        if found < 0:       # malformed: the message matters more than its header
            blank = BLANK + (<object>record.body_size).to_bytes(8, "big") + b"\0\0"
            record.header, record.header_size = <const uint8_t*>PyBytes_AS_STRING(blank), BLANK_BYTES
            found = 0
        kept.size = 0
        if found & HAS_HEADERS:
            kept = properties.headers
            if not is_plain(&kept):
                kept_fields, headers = divided(&kept)
                kept.data, kept.size = <const uint8_t*>PyBytes_AS_STRING(kept_fields), <uint32_t>len(kept_fields)
        template = self.template_for(record, found, &properties, headers)
        if self.route is None and not template.builders:
            return 0
        headers = joined(&kept, template.headers) if kept.size else template.headers
        header = rewrite(record.header, record.header_size, headers, None, False)
        # Retries start afresh in another queue: recorded attempts no longer count.
        flags = (record.flags & ~<uint32_t>(HAS_EXPIRATION | RETRIED)) | HAS_HEADERS | DEAD_LETTERED
        builders = template.builders
        if self.route is not None:
            builders = self.route(template, flags, header, (<const char*>record.body)[: record.body_size])
        for target in builders:
            if type(target) is Partitioner:
                builder = (<Partitioner>target).choose_again(
                    offset, flags, <const uint8_t*>PyBytes_AS_STRING(template.address),
                    <const uint8_t*>PyBytes_AS_STRING(header), <uint32_t>PyBytes_GET_SIZE(header),
                )
            else:
                builder = <BatchBuilder?>target
            if self.written and place_of(builder) in self.written:
                continue
            builder.append(
                flags, self.now, record.tag_mask,
                <const uint8_t*>PyBytes_AS_STRING(template.address), <uint32_t>PyBytes_GET_SIZE(template.address),
                <const uint8_t*>PyBytes_AS_STRING(header), <uint32_t>PyBytes_GET_SIZE(header),
                record.body, record.body_size,
            )
            self.touched.add(builder)
            if self.publish is not None:
                self.note_given(builder, offset)
        return len(builders) > 0

    cdef int note_given(self, BatchBuilder builder, uint64_t offset) except -1:
        cdef RangeSet given = self.given.get(builder)
        if given is None:
            given = self.given[builder] = RangeSet()
        given.add(offset, offset + 1)
        if builder.publish_tags is not None:
            (<PublishTags>builder.publish_tags).note(self.publish.acknowledgement(builder), offset, builder.count - 1)
        return 0

    cdef DeadLetterTemplate template_for(self, RecordView* record, int found, Properties* properties, bytes headers):
        cdef bytes address = self.address
        cdef bytes expiration = None
        cdef DeadLetterTemplate template
        cdef bint plain = headers is None and not found & HAS_EXPIRATION
        if (
            address is None
            or <uint32_t>PyBytes_GET_SIZE(address) != record.address_size
            or memcmp(PyBytes_AS_STRING(address), record.address, record.address_size)
        ):
            self.address = address = (<const char*>record.address)[: record.address_size]
            self.template = None
        elif plain and self.template is not None:
            return self.template
        if found & HAS_EXPIRATION:
            expiration = (<const char*>properties.expiration.data)[: properties.expiration.size]
        kind = (address, expiration, headers, record.flags & DEAD_LETTERED)
        template = self.templates.get(kind)
        if template is None:
            if len(self.templates) >= TEMPLATES_MAX:
                self.templates.clear()
            template = self.composed(address, expiration, headers, bool(record.flags & DEAD_LETTERED))
            self.templates[kind] = template
        if plain:
            self.template = template
        return template

    cdef DeadLetterTemplate composed(self, bytes address, bytes expiration, bytes headers, bint is_dead_letter):
        cdef size_t size = address[0]
        return self.compose(address[1 : 1 + size], address[2 + size :], expiration, headers, is_dead_letter)

    cdef int note_unrouted(self, uint64_t offset) except -1:
        cdef list unrouted = self.unrouted
        if unrouted and unrouted[len(unrouted) - 1][1] == offset:
            unrouted[len(unrouted) - 1] = (unrouted[len(unrouted) - 1][0], offset + 1)
        else:
            unrouted.append((offset, offset + 1))
        return 0


cdef bint is_plain(Piece* headers) noexcept nogil:
    """Whether a table's fields are valid, and none is for deaths or for CC and BCC."""
    cdef const uint8_t* field = headers.data
    cdef const uint8_t* stop = field + headers.size
    cdef const uint8_t* end
    while field < stop:
        end = field_end(field, stop)
        if end == NULL or tells(field):
            return False
        field = end
    return True


cdef tuple divided(Piece* headers):
    """Split a table: fields not for deaths or CC and BCC, and a table of those that are.

    A malformed table is returned whole as the latter.
    """
    cdef bytes kept = PyBytes_FromStringAndSize(NULL, headers.size)
    cdef bytes telling = PyBytes_FromStringAndSize(NULL, headers.size)
    cdef char* k = PyBytes_AS_STRING(kept)
    cdef char* t = PyBytes_AS_STRING(telling)
    cdef const uint8_t* field = headers.data
    cdef const uint8_t* stop = field + headers.size
    cdef const uint8_t* end
    cdef Piece told
    while field < stop:
        end = field_end(field, stop)
        if end == NULL:
            return b"", table_of(headers)
        if tells(field):
            memcpy(t, field, end - field)
            t += end - field
        else:
            memcpy(k, field, end - field)
            k += end - field
        field = end
    told.data = <const uint8_t*>PyBytes_AS_STRING(telling)
    told.size = <uint32_t>(t - PyBytes_AS_STRING(telling))
    return kept[: k - PyBytes_AS_STRING(kept)], table_of(&told)


cdef inline bint tells(const uint8_t* field) noexcept nogil:
    """Whether a field, whose end was found, is for deaths or for CC and BCC."""
    return (
        field_is(field, b"CC", 2)
        or field_is(field, b"BCC", 3)
        or field_is(field, b"x-death", 7)
        or begins(field, b"x-first-death-", 14)
        or begins(field, b"x-last-death-", 13)
    )


cdef inline bint begins(const uint8_t* field, const char* prefix, uint8_t size) noexcept nogil:
    return field[0] >= size and memcmp(field + 1, prefix, size) == 0


cdef bytes table_of(Piece* fields):
    """Return a table of these fields, with its length prefix."""
    return joined(fields, b"\0\0\0\0")


cdef bytes joined(Piece* fields, bytes table):
    """Return the fields followed by those of `table`, as one table with its length prefix."""
    cdef size_t more = PyBytes_GET_SIZE(table) - 4
    cdef size_t size = fields.size + more
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, size + 4)
    cdef uint8_t* o = <uint8_t*>PyBytes_AS_STRING(whole)
    o[0] = <uint8_t>(size >> 24)
    o[1] = <uint8_t>(size >> 16)
    o[2] = <uint8_t>(size >> 8)
    o[3] = <uint8_t>size
    memcpy(o + 4, fields.data, fields.size)
    memcpy(o + 4 + fields.size, PyBytes_AS_STRING(table) + 4, more)
    return whole
