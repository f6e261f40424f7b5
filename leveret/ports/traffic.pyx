"""How much has gone one way so far: counted where messages pass, in compiled code."""


cdef class Traffic:
    """Messages and their bytes: content header, body and address, as they are stored."""

    cdef void add(self, uint64_t messages, uint64_t stored) noexcept:
        self.messages += messages
        self.bytes += stored

    def count(self, uint64_t messages, uint64_t stored):
        """The same as `add`, for callers in Python."""
        self.add(messages, stored)
