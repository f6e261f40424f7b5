"""Which records of a stream a consumer wants: by the header x-stream-filter-value, exactly.

RabbitMQ skips blocks of messages by a Bloom filter and leaves it to clients to filter again; here no
record comes that was not asked for. Compiled because every record of the stream is looked at.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.headers cimport HeadersPlace, be32, field_end, field_is, find_headers
from leveret.ports.records cimport HAS_HEADERS, Batch, RecordView

STREAM_FILTER = "x-stream-filter"
MATCH_UNFILTERED = "x-stream-match-unfiltered"

cdef bytes VALUE_FIELD = b"x-stream-filter-value"
cdef const uint8_t* FIELD_NAME = <const uint8_t*><const char*>VALUE_FIELD
cdef uint8_t FIELD_NAME_SIZE = <uint8_t>len(VALUE_FIELD)


cdef class RecordFilter:
    """Lets records through whose filter value is one of `values`, or that have none if `unfiltered`."""

    cdef frozenset values
    cdef bint unfiltered

    def __init__(self, values, bint unfiltered):
        self.values = frozenset(values)
        self.unfiltered = unfiltered

    def run(self, list batches, uint64_t first, uint64_t stop):
        """The first run of wanted records in [first, stop), which the batches hold without a gap.

        (stop, stop) where there is none.
        """
        cdef Batch batch
        cdef RecordView record
        cdef size_t position
        cdef uint64_t begin = stop
        cdef uint64_t offset = first
        for batch in batches:
            if offset >= stop:
                break
            if offset < batch.base_offset or offset >= batch.base_offset + batch.count:
                continue
            position = batch.locate(offset)
            while offset < min(stop, batch.base_offset + batch.count):
                position = batch.view(position, &record)
                if self.wants(&record):
                    begin = min(begin, offset)
                elif begin != stop:
                    return begin, offset
                offset += 1
        return begin, stop

    cdef bint wants(self, RecordView* record) except -1:
        cdef HeadersPlace place
        cdef const uint8_t* field
        cdef const uint8_t* after
        cdef const uint8_t* value
        if not record.flags & HAS_HEADERS or not find_headers(record.header, record.header_size, &place):
            return self.unfiltered
        field = place.fields
        while field < place.stop:
            after = field_end(field, place.stop)
            if after == NULL:
                break
            if field_is(field, FIELD_NAME, FIELD_NAME_SIZE):
                value = field + 1 + FIELD_NAME_SIZE
                if value[0] != c"S":
                    break
                return (<const char*>value + 5)[: be32(value + 1)] in self.values
            field = after
        return self.unfiltered


def record_filter(dict arguments not None):
    """The filter that a consumer's arguments ask for; None where they ask for none."""
    wanted = arguments.get(STREAM_FILTER)
    if isinstance(wanted, (str, bytes)):
        wanted = [wanted]
    if not isinstance(wanted, list):
        return None
    values = [
        value.encode() if isinstance(value, str) else value
        for value in wanted
        if isinstance(value, (str, bytes))
    ]
    return RecordFilter(values, arguments.get(MATCH_UNFILTERED) is True)
