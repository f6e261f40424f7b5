cimport cython
from libc.stdint cimport uint64_t


cdef struct Range:
    uint64_t first
    uint64_t stop


cdef struct Block:
    char* runs
    Py_ssize_t size
    Py_ssize_t start            # index of its first run, relative to that of the first block


cdef class Runs:
    cdef Py_ssize_t width       # bytes of a run
    cdef Py_ssize_t size        # number of runs
    cdef char* room             # the allocation; the space before `flat` allows growth to the front
    cdef char* flat
    cdef Py_ssize_t capacity    # of runs, from `flat` on
    cdef Block* blocks          # NULL while all runs are in `flat`
    cdef Py_ssize_t block_count
    cdef Py_ssize_t block_room
    cdef Py_ssize_t recent      # the block found by the last lookup
    cdef char* spare            # an empty block kept for reuse

    cdef char* _far(self, Py_ssize_t i) noexcept
    cdef Py_ssize_t _block_of(self, Py_ssize_t i) noexcept
    cdef Py_ssize_t _find(self, uint64_t offset) noexcept
    cdef Py_ssize_t _find_far(self, uint64_t offset) noexcept
    cdef int _splice(self, Py_ssize_t at, Py_ssize_t removed, void* put, Py_ssize_t added) except -1
    cdef int _splice_flat(
        self, Py_ssize_t at, Py_ssize_t removed, void* put, Py_ssize_t added
    ) except -1
    cdef int _reserve(self, Py_ssize_t extra) except -1
    cdef int _reserve_before(self, Py_ssize_t extra) except -1
    cdef int _move_to(self, Py_ssize_t room, Py_ssize_t before) except -1
    cdef int _prepare_block(self) except -1
    cdef void _enter_block(self, Py_ssize_t k, Py_ssize_t start) noexcept
    cdef void _leave_block(self, Py_ssize_t k) noexcept
    cdef void _shift(self, Py_ssize_t k, Py_ssize_t change) noexcept
    cdef void _remove_far(self, Py_ssize_t at, Py_ssize_t removed) noexcept
    cdef int _insert_far(self, Py_ssize_t at, void* put, Py_ssize_t added) except -1
    cdef void _unite(self, Py_ssize_t k) noexcept
    cdef int _adopt(self, char* runs, Py_ssize_t size) except -1
    cdef int _to_blocks(self) except -1
    cdef void _to_flat(self) noexcept
    cdef void _copy_to(self, char* target) noexcept
    cdef void _give_back(self) noexcept


@cython.final
cdef class RangeSet(Runs):
    cdef readonly uint64_t count

    cpdef uint64_t add(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF
    cpdef uint64_t remove(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF
    cpdef bint contains(self, uint64_t first, uint64_t stop) noexcept


cdef inline Range* range_at(RangeSet ranges, Py_ssize_t i) noexcept:
    """Return a pointer to range `i`, valid until the set changes."""
    return (<Range*>ranges.flat) + i if ranges.blocks == NULL else <Range*>ranges._far(i)
