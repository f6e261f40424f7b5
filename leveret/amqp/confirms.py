"""Publisher confirms: which of a channel's messages are committed, answered in ranges.

One group covers all the publishes that one read brought on one channel. It is complete when every
queue they went to has committed them; groups are answered in the order of their tags, so that one
basic.ack with `multiple` covers many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.ports.after_all import AfterAll
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable


class Confirms:
    """The unanswered groups of one channel.

    `answer(tag, multiple, nack)` writes one basic.ack or basic.nack.
    """

    def __init__(self, answer: Callable[[int, bool, bool], None]) -> None:
        self._answer = answer
        self._groups: deque[tuple[int, AfterAll]] = deque()  # with the last tag of each
        self._answered = 0
        self._refused = RangeSet()  # unanswered

    @property
    def answered(self) -> int:
        """Tag of the last answered publish; all before it were answered, too."""
        return self._answered

    def open(self, last: int, pending: int) -> AfterAll:
        """Open the group that ends with tag `last`; return the waiter for its `pending` commits.

        With nothing pending it is complete.
        """
        commits = AfterAll(pending, self._settle)
        self._groups.append((last, commits))
        if not pending:
            self._settle()
        return commits

    def refuse(self, first: int, stop: int) -> None:
        """Nack the messages [first, stop) because a queue has refused them, whatever others did."""
        self._refused.add(first, stop)

    def _settle(self, *, failed: bool = False) -> None:  # noqa: ARG002  # as each group has it
        """Answer each complete group at the front; adjoining ones of one result share an answer."""
        groups = self._groups
        while groups and not groups[0][1].pending:
            last, commits = groups.popleft()
            while groups and not groups[0][1].pending and groups[0][1].failed == commits.failed:
                last, commits = groups.popleft()
            if self._refused and not commits.failed:
                self._answer_around_refused(last)
            self._answer_up_to(last, nack=commits.failed)

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
