"""Whose publishes stand in a batch builder: for queues that may refuse some of them.

A confirm says of each publish whether it was taken. The frame reader notes here, next to the record
that it packs, which publisher waits for which confirm; neighbours with consecutive tags are one run.
"""

from libc.stdint cimport uint32_t, uint64_t


cdef class PublishTags:
    """Runs of records by the publishers who want to hear of them; others are not noted."""

    def __init__(self):
        self.runs = []

    cdef int note(self, object publisher, uint64_t tag, uint32_t index) except -1:
        """Record `index` of the builder is `publisher`'s publish number `tag`."""
        if publisher is self.publisher and index == self.stop and tag == self.tag + (index - self.first):
            self.stop += 1
            return 0
        self._close()
        self.publisher = publisher
        self.first = index
        self.stop = index + 1
        self.tag = tag
        return 0

    def add(self, publisher, uint64_t tag, uint32_t index):
        """The same as `note`, for callers in Python."""
        self.note(publisher, tag, index)

    cdef void _close(self):
        if self.publisher is not None:
            self.runs.append((self.first, self.stop, self.publisher, self.tag))
            self.publisher = None

    def take(self):
        """[(first index, stop index, publisher, first tag)] in order; nothing is noted then."""
        self._close()
        runs = self.runs
        self.runs = []
        return runs
