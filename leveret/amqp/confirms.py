"""Publisher confirms: which of a channel's messages are committed, answered in ranges.

One group covers all the publishes that one read brought on one channel. It is complete when every
queue they went to has committed them; groups are answered in the order of their tags, so that one
basic.ack with `multiple` covers many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable


class ConfirmGroup:
    """The publishes up to tag `last` that are not in an earlier group."""

    __slots__ = ("_ready", "failed", "last", "pending")

    def __init__(self, last: int, pending: int, ready: Callable[[], None]) -> None:
        """`pending` is the number of queues that must commit; `ready` is called after the last."""
        self.last = last
        self.pending = pending
        self.failed = False
        self._ready = ready

    def done(self, *, failed: bool) -> None:
        """Note that one queue has committed its part, or has failed to."""
        self.pending -= 1
        self.failed |= failed
        if self.pending <= 0:
            self._ready()


class Confirms:
    """The unanswered groups of one channel.

    `answer(tag, multiple, nack)` writes one basic.ack or basic.nack.
    """

    def __init__(self, answer: Callable[[int, bool, bool], None]) -> None:
        self._answer = answer
        self._groups: deque[ConfirmGroup] = deque()
        self._answered = 0
        self._refused = RangeSet()  # unanswered

    @property
    def answered(self) -> int:
        """Tag of the last answered publish; all before it were answered, too."""
        return self._answered

    def open(self, last: int, pending: int) -> ConfirmGroup:
        """Open the group that ends with tag `last`. With nothing pending it is complete."""
        group = ConfirmGroup(last, pending, self.settle)
        self._groups.append(group)
        if not pending:
            self.settle()
        return group

    def refuse(self, first: int, stop: int) -> None:
        """Nack the messages [first, stop) because a queue has refused them, whatever others did."""
        self._refused.add(first, stop)

    def settle(self) -> None:
        """Answer each complete group at the front; adjoining ones of one result share an answer."""
        groups = self._groups
        while groups and groups[0].pending <= 0:
            group = groups.popleft()
            while groups and groups[0].pending <= 0 and groups[0].failed == group.failed:
                group = groups.popleft()
            if self._refused and not group.failed:
                self._answer_around_refused(group.last)
            self._answer_up_to(group.last, nack=group.failed)

    def _answer_around_refused(self, last: int) -> None:
        """Answer refused messages, and those before them, in the order of the tags."""
        refused = self._refused.gaps(0, last + 1).gaps(0, last + 1)
        self._refused.remove(0, last + 1)
        for first, stop in refused:
            self._answer_up_to(first - 1, nack=False)
            self._answer_up_to(stop - 1, nack=True)

    def _answer_up_to(self, last: int, *, nack: bool) -> None:
        if last > self._answered:
            self._answer(last, nack or last - self._answered > 1, nack)  # as RabbitMQ does
            self._answered = last

    def forget(self) -> None:
        """Drop all groups, because the channel is gone."""
        self._groups.clear()
        self._answer = _nobody


def _nobody(_tag: int, _multiple: bool, _nack: bool) -> None:  # the answer's shape
    """Ignore an answer: the channel is gone."""
