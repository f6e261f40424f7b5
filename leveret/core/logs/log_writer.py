"""The writer of one log: gathers records, appends them, tells waiters when they are committed.

Records gather in the log's builder, a turn appends them as one batch, and whoever waits is told
when the log has committed them. What becomes of committed records is the business of the kinds:
queues that clients know, and topics that only the broker writes to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from leveret.ports.callbacks import call_each
from leveret.ports.counters import PUBLISH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.core.turn import Turn
    from leveret.ports import TopicLog
    from leveret.ports.records import BatchBuilder


class Waiter(Protocol):
    """A waiter for the commit of records: a publisher's confirm, a barrier."""

    def done(self, *, failed: bool) -> None:
        """Called once."""
        ...


class Committing(Protocol):
    """A queue or topic that commits, sooner or later, every record that it was given."""

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything taken so far is committed, perhaps at once."""
        ...


Uncommitted: TypeAlias = "deque[tuple[int, list[Waiter]]]"
Unseen: TypeAlias = "deque[tuple[int, Waiter]]"
Report: TypeAlias = "Callable[[object, Exception], None]"


def tell_each(waiters: Iterable[Waiter], report: Report, *, failed: bool) -> None:
    """Tell all waiters the outcome; `report(waiter, error)` is told of each that raises."""
    for waiter in waiters:
        try:
            waiter.done(failed=failed)
        except Exception as error:  # noqa: BLE001  # one waiter's fault is not another's
            report(waiter, error)


class AfterBoth:
    """Tells waiters when it was told twice: of two logs, each of which has some of the records."""

    def __init__(self, waiters: list[Waiter], report: Report) -> None:
        self._waiters = waiters
        self._report = report
        self._pending = 2
        self._failed = False

    def done(self, *, failed: bool) -> None:
        """See Waiter."""
        self._failed |= failed
        self._pending -= 1
        if not self._pending:
            tell_each(self._waiters, self._report, failed=self._failed)


class Gone:
    """The owner of a deleted queue's builder: publishers that still have the builder hear yes."""

    touched = deleted = True

    def await_commit(self, waiter: Waiter) -> None:
        """See LogWriter: publishers to a deleted queue hear yes."""
        waiter.done(failed=False)


GONE = Gone()


class LogWriter(ABC):
    """One log that is appended to: by way of its builder, and by atomic writes (core.logs.atomic).

    `report(subject, error)` is told of records that could not be stored, and of waiters that
    raise: each is told, whatever becomes of the others. Of the records that
    become committed, those of writes that were undone are settled already: they are to be ignored.
    """

    # CPython keeps an instance's attributes in a dictionary of its own where they are more than
    # thirty, and what a queue is asked for in each turn would be looked up by its hash.
    __slots__ = (
        "_opened_at",
        "_release_waiters",
        "_report",
        "_turn",
        "_uncommitted",
        "_unseen",
        "_waiting",
        "builder",
        "deleted",
        "held",
        "log",
        "passed_over_in",
        "searches",
        "touched",
    )

    settles_in_log = True  # whether the log is told of what is settled

    def __init__(self, log: TopicLog, turn: Turn, report: Report) -> None:
        self.log = log
        self.builder: BatchBuilder = log.builder
        self.builder.owner = self
        self.touched = False
        self.deleted = False
        self.passed_over_in = 0  # see turn.TouchedQueue
        self.searches = False
        self.held = False  # what must be known to append is being learned: records wait
        self._turn = turn
        self._report = report
        self._opened_at = log.end
        self._waiting: list[Waiter] = []  # for records that are still in the builder
        # An empty deque takes 600 bytes: they are made where something waits for a flush.
        self._uncommitted: Uncommitted | tuple[()] = ()  # (stop offset, whose waiters)
        self._unseen: Unseen | tuple[()] = ()  # the same of parts of atomic writes
        self._release_waiters: list[Callable[[], None]] = []
        log.on_commit(self._committed)
        log.on_failure(self._failed)

    @property
    def turn(self) -> Turn:
        """The turn that works it off."""
        return self._turn

    @property
    def appended_count(self) -> int:
        """Records that were written since the log was opened."""
        return max(self.log.end - self._opened_at, 0)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published so far is committed, perhaps at once."""
        self._await_log(waiter)

    def _await_log(self, waiter: Waiter) -> None:
        if self.deleted:
            waiter.done(failed=False)
        elif self.builder.count:
            self._waiting.append(waiter)
            self._turn.touch(self)
        elif self.log.committed < self.log.end:
            self._await_flush([waiter])
        else:
            waiter.done(failed=False)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published so far is committed."""
        return not self.builder.count and self.log.committed == self.log.end

    def flush(self) -> None:
        """Write what has gathered as one batch, and confirm what that commits."""
        builder, log = self.builder, self.log
        if not builder.count or self.deleted or self.held:
            return
        self._prepare()
        waiting, self._waiting = self._waiting, []
        try:
            if builder.count:  # else all of it was refused, and those concerned have heard of it
                log.append()
        except Exception as error:  # noqa: BLE001  # whatever it is, publishers must hear no
            self._forget_uncommitted()
            self._report(self, error)
            tell_each(waiting, self._report, failed=True)
            return
        if log.committed == log.end:
            self._show_to(waiting)
        elif waiting:
            self._await_flush(waiting)

    def _await_flush(self, waiters: list[Waiter]) -> None:
        """Tell them once what the log has now is committed."""
        self._uncommitted = self._uncommitted or deque()
        self._uncommitted.append((self.log.end, waiters))

    def _await_also(self, other: Committing) -> None:
        """Whoever waits for what has gathered waits for what `other` has, too."""
        if self._waiting:
            both = AfterBoth(self._waiting, self._report)
            self._waiting = [both]
            other.await_commit(both)

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

    def _show_to(self, waiters: Sequence[Waiter]) -> None:
        """Make committed records deliverable, and tell the waiters that theirs are committed."""
        try:
            self._show_committed()
        except Exception as error:  # noqa: BLE001  # stored they are: those who wait hear yes
            self._report(self, error)
        if waiters:
            tell_each(waiters, self._report, failed=False)

    def _committed(self) -> None:
        """The log's committed offset has moved later than during `append`."""
        if self.deleted:
            return
        committed = self.log.committed
        waiters: list[Waiter] = []
        while self._uncommitted and self._uncommitted[0][0] <= committed:
            waiters += self._uncommitted.popleft()[1]
        while self._unseen and self._unseen[0][0] <= committed:
            waiters.append(self._unseen.popleft()[1])
        self._show_to(waiters)
        self._turn.touch(self)

    def _failed(self, error: Exception) -> None:
        """Records that were written could not be flushed: whoever waits for them hears no."""
        self._forget_uncommitted()
        self._report(self, error)
        while self._unseen and self._unseen[-1][0] > self.log.end:
            self._unseen.pop()
        self._refuse_waiting(self.log.end + 1)

    def _refuse_waiting(self, stop: int) -> None:
        """Whoever waits until all before `stop`, or more, is committed hears no."""
        refused: list[Waiter] = []
        while self._uncommitted and self._uncommitted[-1][0] >= stop:
            refused[:0] = self._uncommitted.pop()[1]
        tell_each(refused, self._report, failed=True)

    # -- atomic writes

    def has_room(self, records: BatchBuilder) -> bool:  # noqa: ARG002  # most kinds have no limits
        """Whether all of the records may be appended."""
        return True

    def when_released(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once this is not `held` any more, or deleted."""
        self._release_waiters.append(go_on)

    def _release(self) -> None:
        self.held = False
        waiters, self._release_waiters = self._release_waiters, []
        call_each(waiters, self._report)

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        seen: Waiter,
    ) -> None:
        """Write down a part of an atomic write (see TopicLog.prepare). May raise StorageError.

        `take_in` was called. `seen` is told when its records are committed.
        """
        record_count = records.count
        has_records = record_count > 0
        try:
            self.log.prepare(transaction, records, ranges, prepared)
        except BaseException:
            self._forget_uncommitted()
            raise
        if has_records:
            if self.builder.counters is not None:
                self.builder.counters.count(PUBLISH, record_count)
            self._unseen = self._unseen or deque()
            self._unseen.append((self.log.end, seen))

    def take_in(self, records: BatchBuilder) -> None:  # noqa: B027
        """The records are about to be appended; some may be left out that are here already."""

    def carry_out(self, transaction: int, ranges: Sequence[tuple[int, int]]) -> None:
        """An atomic write has committed, which settles `ranges` here."""
        if ranges:
            self.settle(ranges)
        self.log.resolve(transaction, committed=True)

    def undo(self, transaction: int, first: int, stop: int) -> None:  # noqa: ARG002
        """An atomic write has failed, whose records here were [first, stop)."""
        self.log.resolve(transaction, committed=False)

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The records are done with."""
        self.log.settle(ranges)

    def _let_publishers_go(self) -> None:
        """It is deleted: whoever waits for a commit hears yes, and nobody refers to it any more."""
        self.deleted = True
        self.builder.clear()
        self.builder.owner = GONE
        waiters = self._waiting
        for _, more in self._uncommitted:
            waiters += more
        self._waiting, self._uncommitted = [], ()
        unseen, self._unseen = self._unseen, ()
        tell_each([*waiters, *(part for _, part in unseen)], self._report, failed=False)
        self._release()
