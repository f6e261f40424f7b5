"""Waiters for ends, such as the commits of what a publisher's confirm is about.

Compiled because each group of publisher confirms is one: with publishers that wait for every
confirm, one for each message.
"""


cdef class AfterAll:
    """Waiter for `pending` ends: calls `then` after the last, failed if one of them was.

    `then(failed=…)` gets whether something was lost, or refused. AfterAll may be awaited instead,
    also without a loop of asyncio: it resumes in the next pass.
    """

    def __init__(self, Py_ssize_t pending, then=None):
        self.pending = pending
        self.then = then

    def done(self, *, bint failed):
        """Note one of the ends."""
        self.note(failed)

    cdef int note(self, bint failed) except -1:
        self.failed |= failed
        self.pending -= 1
        if not self.pending:
            self.end()
        return 0

    cdef int end(self) except -1:
        if self.then is not None:
            self.then(failed=self.failed)
        return 0

    def __await__(self):
        while self.pending:
            yield
        return self.failed


def tell_each(waiters, report, *, bint failed):
    """Notify all waiters of the outcome; exceptions are reported with `report(waiter, error)`."""
    notify(list(waiters), report, failed)


cdef int notify(list waiters, report, bint failed) except -1:
    """Implement `tell_each`, for compiled callers."""
    for waiter in waiters:
        try:
            if isinstance(waiter, AfterAll):
                (<AfterAll>waiter).note(failed)
            else:
                waiter.done(failed=failed)
        except Exception as error:      # one waiter's fault is not another's
            report(waiter, error)
    return 0
