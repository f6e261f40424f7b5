# cython: nonecheck=True
# A field that was not set is an AttributeError, as a slot would be, and not a crash.
"""Batching of a log's records: the part of a log writer that each turn runs.

Compiled because with a publisher that waits for every confirm each message is a batch of its own:
in Python that was a tenth of the cost of such a message.
"""

from collections import deque

from libc.stdint cimport uint64_t

from leveret.core.turn cimport TouchedQueue
from leveret.ports.after_all cimport notify


cdef class Batching(TouchedQueue):
    """Gathers records in the log's builder, appends them as a batch, notifies waiters of commits.

    The fields are those of LogWriter, which sets them.
    """

    cpdef flush(self):
        """Append the gathered records as one batch, and confirm what is committed by that."""
        cdef list waiting
        log = self.log
        if not self.builder.count or self.deleted:
            return
        if self.held:
            self._begin_release()
            return
        self._prepare()
        waiting, self._waiting = self._waiting, []
        try:
            if self.builder.count:  # otherwise all were refused, and their publishers notified
                log.append(self._turn.serves_one)
        except Exception as error:  # publishers must be nacked, whatever the error
            self._forget_uncommitted()
            self._report(self, error)
            notify(waiting, self._report, True)
            if log.committed == log.end:  # what stands in front of a batch that was not written
                self._show_to([])
            return
        if log.committed == log.end:
            self._show_to(waiting)
        elif waiting and log.is_refusing:  # nothing was appended, and what is there lacks copies
            notify(waiting, self._report, True)
        elif waiting and log.acknowledged == log.end:
            notify(waiting, self._report, False)
        elif waiting:
            self._await_flush(waiting)

    cpdef _begin_release(self):
        """Begin what ends that it is `held`, unless it begins by itself."""

    cpdef _prepare(self):
        """Prepare the builder's records for being appended; some may be refused."""

    cpdef _show_committed(self):
        """Make records below the log's committed offset deliverable."""
        raise NotImplementedError

    cdef int _show_to(self, list waiters) except -1:
        """Make committed records deliverable, and notify the waiters of the commit."""
        try:
            self._show_committed()
        except Exception as error:  # the records are stored: confirm them anyway
            self._report(self, error)
        return notify(waiters, self._report, False)

    cpdef await_commit(self, waiter):
        """Call `waiter.done` when everything published so far is committed, possibly at once.

        It has failed at once while the log refuses: nobody knows when there will be copies.
        """
        self._await_log(waiter)

    cdef int _await_log(self, waiter) except -1:
        if not self.deleted and self.builder.count:
            self._waiting.append(waiter)
            self._turn.touch(self)
            return 0
        return self._await_written(waiter)

    cpdef await_written(self, waiter):
        """Call `waiter.done` when everything that was written so far is committed, as above.

        What is gathered, or written from now on, is not waited for.
        """
        self._await_written(waiter)

    cdef int _await_written(self, waiter) except -1:
        if self.deleted:
            waiter.done(failed=False)
        elif self.log.is_refusing:
            waiter.done(failed=True)
        elif self.log.committed < self.log.end:
            self._await_flush([waiter])
        else:
            waiter.done(failed=False)
        return 0

    cdef int _await_flush(self, list waiters) except -1:
        """Notify waiters once everything now in the log is committed."""
        self._uncommitted = self._uncommitted or deque()
        self._uncommitted.append((self.log.end, waiters))
        return 0

    @property
    def is_caught_up(self):
        """Whether everything published so far is committed, or refused for lack of copies."""
        return self._is_log_caught_up()

    cdef bint _is_log_caught_up(self) except -1:
        if self.builder.count:
            return False
        return self.log.committed == self.log.end or self.log.is_refusing

    def _committed(self):
        """Handle an advance of the committed offset outside of `append`."""
        if self.deleted:
            return
        cdef uint64_t committed = self.log.committed
        cdef uint64_t acknowledged = self.log.acknowledged
        cdef list waiters = []
        while self._uncommitted and self._uncommitted[0][0] <= acknowledged:
            waiters += self._uncommitted.popleft()[1]
        while self._unseen and self._unseen[0][0] <= committed:
            waiters.append(self._unseen.popleft()[1])
        self._show_to(waiters)
        self._turn.touch(self)
