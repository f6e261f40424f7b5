# cython: nonecheck=True
# A field that was not set is an AttributeError, as a slot would be, and not a crash.
"""Read window: a range of a log's batches in memory, which advances as it is read.

Deliveries and dead letters have windows of their own, so that neither evicts the other's batches.

Compiled because with messages that come one by one each is looked for, read and dropped by itself.
"""

from bisect import bisect_right
from operator import attrgetter

from leveret.ports.records cimport Batch

from leveret.errors import CorruptBatchError, StorageError

# Read-ahead: large enough that a read call costs little per message, small enough that a thousand
# queues being drained stay within a few hundred megabytes.
READ_BYTES_MAX = 256 * 1024
# Size of a read for scattered access, and limits of what is kept.
STRETCH_BYTES_MAX = 16 * 1024
STRETCHES_BYTES_MAX = 2 * 1024 * 1024
STRETCHES_MAX = 64


cdef bint _contains(list batches, uint64_t offset) except -1:
    """Whether adjacent batches, which may be none, contain `offset`."""
    cdef Batch first, last
    if not batches:
        return False
    first, last = batches[0], batches[len(batches) - 1]
    return first.base_offset <= offset < last.base_offset + last.count


cdef class LogWindow:
    """The most recently read batches of a log."""

    def __init__(self, log):
        self.log = log
        self.read_bytes_max = READ_BYTES_MAX
        self.batches = []

    @property
    def held(self):
        """All batches kept in memory."""
        return self.batches

    def holds(self, uint64_t offset):
        """Whether the window contains `offset`."""
        return self._find(offset) is not None

    cpdef list at_hand(self, uint64_t offset):
        """Return batches, one of them with `offset`; None if that would take waiting.

        Raises CorruptBatchError.
        """
        cdef list batches = self._find(offset)
        if batches is None:
            batches = self.log.read(offset, self.read_bytes_max)
            if batches is not None:
                self._hold(batches, offset)
        return batches

    async def fill(self, uint64_t offset):
        """Return batches, one of them with `offset`, waiting for the device.

        Raises StorageError.
        """
        cdef list batches = await self.log.fetch(offset, self.read_bytes_max)
        self._hold(batches, offset)
        return batches

    cdef list _find(self, uint64_t offset):
        """Return the batches around `offset` that are kept, or None."""
        return self.batches if _contains(self.batches, offset) else None

    cdef int _hold(self, list batches, uint64_t offset) except -1:
        """Keep the batches read for `offset`, which must be in them: it is ready or leased."""
        if not _contains(batches, offset):
            raise CorruptBatchError(f"offset {offset} is missing from {self.log!r}")
        self.batches = batches
        return 0

    cpdef clear(self):
        """Drop all batches."""
        if self.batches:
            self.batches = []


cdef class ScatteredWindow(LogWindow):
    """Window of several ranges at once, for access to places that are far apart.

    Each range is shorter, and their total is bounded: only the newest may exceed that.
    """

    cdef list stretches         # most recently used first

    def __init__(self, log):
        super().__init__(log)
        self.read_bytes_max = STRETCH_BYTES_MAX
        self.stretches = []

    @property
    def held(self):
        """All batches kept in memory."""
        return [batch for stretch in self.stretches for batch in stretch]

    cdef list _find(self, uint64_t offset):
        cdef list batches
        cdef Py_ssize_t place
        for place, batches in enumerate(self.stretches):
            if _contains(batches, offset):
                if place:
                    self.stretches.insert(0, self.stretches.pop(place))
                return batches
        return None

    cdef int _hold(self, list batches, uint64_t offset) except -1:
        cdef Py_ssize_t place, held_bytes = 0
        LogWindow._hold(self, batches, offset)
        self.stretches.insert(0, batches)
        for place, stretch in enumerate(self.stretches):
            held_bytes += sum([batch.size for batch in stretch])
            if place and (held_bytes > STRETCHES_BYTES_MAX or place >= STRETCHES_MAX):
                del self.stretches[place:]
                break
        return 0

    cpdef clear(self):
        """Drop all batches."""
        LogWindow.clear(self)
        self.stretches = []


cdef class WindowReader:
    """Reading through a window: from memory where possible; `_fetch` reads from the device.

    The fields are those of QueueReader, which sets them.
    """

    cpdef list read(self, uint64_t offset):
        """Return batches, one of them with `offset`; None after starting a device read for it."""
        cdef list batches
        if self.fetching:
            return None
        try:
            batches = self._window.at_hand(offset)
        except StorageError:
            batches = None  # the fetch finds the damage again and handles it
        if batches is None:
            self.fetching = True
            self._spawn(self._fetch(offset))
        return batches

    cpdef batch_at_hand(self, uint64_t offset):
        """Return the batch with `offset` if that takes no waiting, else None."""
        cdef Batch last = self._last
        cdef list batches
        if last is not None and last.base_offset <= offset < last.base_offset + last.count:
            return last
        try:
            batches = self._window.at_hand(offset)
        except CorruptBatchError:
            return None  # handling damage requires waiting
        self._last = None if batches is None else batch_of(batches, offset)
        return self._last

    cpdef clear(self):
        """Drop all batches from memory."""
        self._last = None
        self._window.clear()


def batch_of(list batches not None, uint64_t offset):
    """Return the batch of a window that contains `offset`, which must be in the window."""
    if len(batches) == 1:
        return batches[0]
    return batches[bisect_right(batches, offset, key=_base_offset) - 1]


_base_offset = attrgetter("base_offset")
