"""Publisher confirms: which of a channel's messages are committed, answered in ranges.

One group covers all the publishes that one read brought on one channel. It is complete when every
queue they went to has committed them; groups are answered in the order of their tags, so that one
basic.ack with `multiple` covers many.

A queue that cannot write tells only those that wait already. So where something is flushed before
its group can be opened, as a message to very many queues is, the group waits all the same.

Compiled because a publisher that waits for every confirm makes a group of each message.
"""

cimport cython
from libc.stdint cimport uint64_t

from leveret.amqp.deliveries cimport Outbox
from leveret.amqp.frames cimport ChannelSlot
from leveret.ports.after_all cimport AfterAll

from leveret.ports.ranges import RangeSet

cdef enum:
    ANSWERED_MAX = 64   # groups that are kept after their answer, until others are removed as well


@cython.final
cdef class ConfirmGroup(AfterAll):
    """Waiter for the commits of one group's publishes."""

    cdef int end(self) except -1:
        return self.confirms.settle()


@cython.final
cdef class Confirms:
    """The unanswered groups of one channel.

    Answers are written to `outbox`, and `touch()` is called for each.
    """

    def __init__(self, ChannelSlot slot not None, Outbox outbox not None, touch):
        self.slot = slot
        self.outbox = outbox
        self.touch = touch
        self.groups = []
        self.opened = self.answered = slot.published
        self.others = {}

    cdef int collect(self) except -1:
        """Make a group of the publishes since the last one, if there are any."""
        if self.slot is not None and self.slot.published != self.opened:
            self.open(self.slot.published)
        return 0

    def open(self, uint64_t last):
        """Open the group that ends with tag `last`; return the waiter for its commits.

        It waits for the queues that the slot has touched, and `wait_also`. With none of them it is
        complete.
        """
        cdef ConfirmGroup group = self.await_so_far()
        self.coming = None
        group.last = last
        self.opened = last
        self.groups.append(group)
        group.note(False)
        return group

    cdef ConfirmGroup await_so_far(self):
        """Have the next group wait for what was published so far, before any of it is flushed."""
        cdef ConfirmGroup group = self.coming
        cdef set touched = self.slot.take_touched()
        cdef dict others = self.others
        if group is None:
            group = self.coming = ConfirmGroup.__new__(ConfirmGroup)
            group.confirms = self
            group.pending = 1       # until it is opened
        group.pending += len(touched) + len(others)
        if others:
            self.others = {}
        for builder in touched:
            builder.owner.await_commit(group)
        for committing in others:
            committing.await_commit(group)
        return group

    def wait_also(self, committing):
        """Have the next group wait for the commits of others than the touched queues."""
        self.others.update(dict.fromkeys(committing))

    def refuse(self, uint64_t first, uint64_t stop):
        """Nack the messages [first, stop) because a queue has refused them, whatever others did."""
        if self.refused is None:
            self.refused = RangeSet()
        self.refused.add(first, stop)

    cdef int settle(self) except -1:
        """Answer each complete group at the front; adjoining ones of one result share an answer."""
        cdef ConfirmGroup group
        cdef uint64_t last = 0
        cdef bint failed
        while self.front < len(self.groups):
            group = self.groups[self.front]
            if group.pending:
                break
            failed = group.failed
            while not group.pending and group.failed == failed:
                last = group.last
                self.front += 1
                if self.front == len(self.groups):
                    break
                group = self.groups[self.front]
            if self.refused is not None and not failed:
                self._answer_around_refused(last)
            self._answer_up_to(last, failed)
        if self.front == len(self.groups):
            self.groups.clear()
            self.front = 0
        elif self.front >= ANSWERED_MAX and 2 * self.front >= len(self.groups):
            del self.groups[: self.front]
            self.front = 0
        return 0

    cdef int _answer_around_refused(self, uint64_t last) except -1:
        """Answer refused messages, and those before them, in the order of the tags."""
        refused = self.refused.gaps(0, last + 1).gaps(0, last + 1)
        self.refused.remove(0, last + 1)
        if not self.refused:
            self.refused = None
        for first, stop in refused:
            self._answer_up_to(first - 1, False)
            self._answer_up_to(stop - 1, True)
        return 0

    cdef int _answer_up_to(self, uint64_t last, bint nack) except -1:
        if last > self.answered and self.slot is not None:
            # As RabbitMQ, it says `multiple` only of several.
            self.outbox.confirm(self.slot, last, nack or last - self.answered > 1, nack)
            self.answered = last
            self.touch()
        return 0

    def forget(self):
        """Drop all groups, because the channel is gone."""
        self.groups.clear()
        self.front = 0
        self.coming = None
        self.slot = None
        self.touch = None
