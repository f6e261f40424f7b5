"""What all that is appended to has in common: a log, and those who wait until it has committed.

Records gather in the log's builder, a turn appends them as one batch, and whoever waits is told
when the log has committed them. What becomes of committed records is the business of the kinds:
queues that clients know, and topics that only the broker writes to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.turn import Turn
    from leveret.ports import TopicLog
    from leveret.ports.records import BatchBuilder


class Waiter(Protocol):
    """Whoever waits until records are committed: a publisher's confirm, a barrier."""

    def done(self, *, failed: bool) -> None:
        """Called once."""
        ...


class Committing(Protocol):
    """What commits sooner or later all that it was given."""

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything taken so far is committed, perhaps at once."""
        ...


class Appender(ABC):
    """One log that is appended to, by way of its builder.

    `report(appender, error)` is told of records that could not be stored.
    """

    def __init__(
        self, log: TopicLog, turn: Turn, report: Callable[[Appender, Exception], None]
    ) -> None:
        self.log = log
        self.builder: BatchBuilder = log.builder
        self.builder.owner = self
        self.touched = False
        self.deleted = False
        self.held = False  # what must be known to append is being learned: records wait
        self._turn = turn
        self._report = report
        self._opened_at = log.end
        self._waiting: list[Waiter] = []  # for records that are still in the builder
        self._uncommitted: deque[tuple[int, list[Waiter]]] = deque()  # (stop offset, whose waiters)
        log.on_commit(self._committed)
        log.on_failure(self._failed)

    @property
    def appended_count(self) -> int:
        """Records that were written since the log was opened."""
        return max(self.log.end - self._opened_at, 0)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published so far is committed, perhaps at once."""
        if self.deleted:
            waiter.done(failed=False)
        elif self.builder.count:
            self._waiting.append(waiter)
            self._turn.touch(self)
        elif self.log.committed < self.log.end:
            self._uncommitted.append((self.log.end, [waiter]))
        else:
            waiter.done(failed=False)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published so far is committed."""
        return not self.builder.count and self.log.committed == self.log.end

    def flush(self) -> None:
        """Write what has gathered as one batch, and confirm what that commits."""
        if not self.builder.count or self.deleted or self.held:
            return
        self._prepare()
        waiting, self._waiting = self._waiting, []
        if not self.builder.count:  # all of it was refused, and those concerned have heard of it
            self._tell_when_committed(waiting)
            return
        try:
            self.log.append()
        except Exception as error:  # noqa: BLE001  # whatever it is, publishers must hear no
            self._forget_uncommitted()
            self._report(self, error)
            for waiter in waiting:
                waiter.done(failed=True)
            return
        if self.log.committed == self.log.end:
            self._show_committed()
        self._tell_when_committed(waiting)

    def _tell_when_committed(self, waiting: list[Waiter]) -> None:
        """Nothing waits in the builder any more; what was appended may still wait for a flush."""
        if self.log.committed == self.log.end:
            for waiter in waiting:
                waiter.done(failed=False)
        elif waiting:
            self._uncommitted.append((self.log.end, waiting))

    def _prepare(self) -> None:  # noqa: B027  # most kinds have nothing to prepare
        """The builder's records are about to be appended; some may be refused."""

    def _forget_uncommitted(self) -> None:  # noqa: B027
        """Records from the log's end on, of which `_prepare` knew, are lost."""

    def pump(self) -> bool:
        """Go on with what is committed. Returns whether another turn could do more."""
        return False

    @abstractmethod
    def _show_committed(self) -> None:
        """The log's committed offset has moved: its records may be delivered."""

    def _committed(self) -> None:
        """The log's committed offset has moved later than during `append`."""
        if self.deleted:
            return
        committed = self.log.committed
        self._show_committed()
        while self._uncommitted and self._uncommitted[0][0] <= committed:
            for waiter in self._uncommitted.popleft()[1]:
                waiter.done(failed=False)
        self._turn.touch(self)

    def _failed(self, error: Exception) -> None:
        """Records that were written could not be flushed: whoever waits for them hears no."""
        self._forget_uncommitted()
        self._report(self, error)
        uncommitted, self._uncommitted = self._uncommitted, deque()
        for _, waiters in uncommitted:
            for waiter in waiters:
                waiter.done(failed=True)

    def _let_publishers_go(self) -> None:
        """It is deleted: whoever waits for a commit hears yes."""
        self.deleted = True
        self.builder.clear()
        waiters = self._waiting
        for _, more in self._uncommitted:
            waiters += more
        self._waiting, self._uncommitted = [], deque()
        for waiter in waiters:
            waiter.done(failed=False)
