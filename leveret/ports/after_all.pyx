"""Waiter for several ends.

Compiled because each group of publisher confirms is one: with publishers that wait for every
confirm, one for each message.
"""

cimport cython


@cython.final
cdef class AfterAll:
    """Waiter for `pending` ends: calls `then` after the last, failed if one of them was.

    `then(failed=…)` gets whether something was lost, or refused. AfterAll may be awaited instead,
    also without a loop of asyncio: it resumes in the next pass.
    """

    cdef readonly Py_ssize_t pending
    cdef readonly bint failed
    cdef object then

    def __init__(self, Py_ssize_t pending, then=None):
        self.pending = pending
        self.then = then

    def done(self, *, bint failed):
        """Note one of the ends."""
        self.failed |= failed
        self.pending -= 1
        if not self.pending and self.then is not None:
            self.then(failed=self.failed)

    def __await__(self):
        while self.pending:
            yield
        return self.failed
