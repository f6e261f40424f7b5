"""Publish tags of the records in a batch builder, for queues that may refuse some of them.

A nack needs the publisher and the tag of each refused record. The frame reader notes them when it
packs the record; neighbours with consecutive tags form one run.
"""

from libc.stdint cimport uint32_t, uint64_t


cdef class PublishTags:
    """Runs of records by publisher, for publishers that want to be notified."""

    def __init__(self):
        self.runs = []

    cdef int note(self, object publisher, uint64_t tag, uint32_t index) except -1:
        """Note that record `index` of the builder is `publisher`'s publish with number `tag`."""
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
        """Note a record; `note` for callers in Python."""
        self.note(publisher, tag, index)

    def add_run(self, publisher, uint64_t tag, uint32_t first, uint32_t stop):
        """Note records [first, stop) of the builder, the publishes from number `tag` on."""
        self._close()
        self.runs.append((first, stop, publisher, tag))

    cdef void _close(self):
        if self.publisher is not None:
            self.runs.append((self.first, self.stop, self.publisher, self.tag))
            self.publisher = None

    def take(self):
        """Return and clear the runs: [(first index, stop index, publisher, first tag)] in order."""
        self._close()
        runs = self.runs
        self.runs = []
        return runs
