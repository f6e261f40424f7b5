"""Stream filter by the header x-stream-filter-value, exact per message.

RabbitMQ skips chunks of messages by a Bloom filter and leaves it to clients to filter again; here
only matching records are delivered. Compiled because every record of the stream is checked.
"""

from libc.stdint cimport uint8_t

from leveret.features.filters.filters cimport FilterCondition
from leveret.ports.contents cimport HeadersPlace, be32, field_end, field_is, find_headers
from leveret.ports.records cimport HAS_HEADERS, RecordView

STREAM_FILTER = "x-stream-filter"
MATCH_UNFILTERED = "x-stream-match-unfiltered"

cdef bytes VALUE_FIELD = b"x-stream-filter-value"
cdef const uint8_t* FIELD_NAME = <const uint8_t*><const char*>VALUE_FIELD
cdef uint8_t FIELD_NAME_SIZE = <uint8_t>len(VALUE_FIELD)


cdef class StreamValues(FilterCondition):
    """Accepts records with a filter value in `values`, or without one if `unfiltered`."""

    cdef frozenset values
    cdef bint unfiltered

    def __init__(self, values, bint unfiltered):
        self.values = frozenset(values)
        self.unfiltered = unfiltered

    cdef bint holds(self, RecordView* record) except -1:
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


def stream_values(dict arguments not None):
    """Return the condition in a consumer's arguments, or None."""
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
    return StreamValues(values, arguments.get(MATCH_UNFILTERED) is True)
