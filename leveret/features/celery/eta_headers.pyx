"""Extraction of the header `eta` from the records of a batch, compiled as it reads every record."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.contents cimport HeadersPlace, field_end, field_is, find_headers
from leveret.ports.records cimport BATCH_HEADER_BYTES, HAS_HEADERS, Batch, RecordView


def eta_headers(Batch batch not None, uint32_t size_max):
    """Return [(offset, value)] of records whose header is text of at most `size_max` bytes."""
    cdef RecordView record
    cdef HeadersPlace place
    cdef size_t position = BATCH_HEADER_BYTES
    cdef uint64_t offset = batch.base_offset
    cdef const uint8_t* field
    cdef const uint8_t* after
    cdef uint32_t i
    cdef list found = []
    for i in range(batch.count):
        position = batch.view(position, &record)
        if record.flags & HAS_HEADERS and find_headers(record.header, record.header_size, &place):
            field = place.fields
            while field < place.stop:
                after = field_end(field, place.stop)
                if after == NULL:
                    break
                if field_is(field, b"eta", 3):
                    # After the name with its length, the type letter and the length of the text.
                    if field[4] == c"S" and 0 < after - field - 9 <= size_max:
                        found.append((offset, (<const char*>field + 9)[: after - field - 9]))
                    break
                field = after
        offset += 1
    return found
