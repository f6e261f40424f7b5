"""Received messages, as ranges, so that a hundred million cost as little as ten."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from leveret.ports.ranges import RangeSet


cdef class Verifier:
    """Received messages: sequences of each queue slot, publisher and number, as ranges.

    A slot is a queue where each queue gets every message (fanout); otherwise there is one slot,
    and it does not matter which consumer got what.
    """

    def __cinit__(self, size_t publishers, size_t numbers, size_t slots):
        self.publishers, self.numbers, self.slots = publishers, numbers, slots
        self.runs = <Run*>calloc(publishers * numbers * slots, sizeof(Run))
        if self.runs == NULL:
            raise MemoryError
        self.ranges = {}

    def __dealloc__(self):
        free(self.runs)

    cdef int note(self, size_t slot, uint64_t identity) except -1:
        """Count a message; the layout of `identity` is drawn in `publisher.pyx`."""
        cdef size_t publisher = identity >> 52
        cdef size_t number = (identity >> 32) & 0xFFFFF
        cdef uint32_t sequence = <uint32_t>identity
        cdef size_t stream
        cdef Run* run
        if slot >= self.slots or publisher >= self.publishers or number >= self.numbers:
            self.foreign += 1
            return 0
        stream = (slot * self.publishers + publisher) * self.numbers + number
        run = &self.runs[stream]
        if run.stop != sequence or run.first == run.stop:
            self._store(stream)
            run.first = sequence
        run.stop = <uint64_t>sequence + 1
        return 0

    cdef int _store(self, size_t stream) except -1:
        """Move the stream's current run into its ranges; overlaps are duplicates."""
        cdef Run* run = &self.runs[stream]
        if run.first < run.stop:
            ranges = self.ranges.get(stream)
            if ranges is None:
                ranges = self.ranges[stream] = RangeSet()
            self.duplicates += run.stop - run.first - <uint64_t>ranges.add(run.first, run.stop)
        run.first = run.stop = 0
        return 0

    def record(self, size_t slot, uint64_t publisher, uint64_t number, uint64_t sequence):
        """Count one message."""
        self.note(slot, (publisher << 52) | (number << 32) | sequence)

    def received(self):
        """Return each stream's sequences so far as half-open ranges, by the stream's index."""
        cdef size_t stream
        for stream in range(self.publishers * self.numbers * self.slots):
            self._store(stream)
        return {stream: list(ranges) for stream, ranges in self.ranges.items()}
