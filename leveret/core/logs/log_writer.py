"""Log writer: gathers records, appends them as batches, notifies waiters of commits.

Records gather in the log's builder, a turn appends them as one batch, and waiters are notified when
the log has committed them (core.logs.batching). Subclasses handle committed records: queues of
clients, and topics that only the broker writes to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from leveret.core.logs.batching import Batching
from leveret.core.logs.unopened_log import UNOPENED_LOG
from leveret.core.turn import TouchedQueue
from leveret.errors import NotEnoughCopiesError
from leveret.ports.after_all import AfterAll, tell_each
from leveret.ports.callbacks import call_each
from leveret.ports.counters import PUBLISH
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from leveret.core.turn import Turn
    from leveret.ports import TopicLog
    from leveret.ports.ranges import RangeSet


class Waiter(Protocol):
    """Waiter for the commit of records, such as a publisher's confirm or a barrier."""

    def done(self, *, failed: bool) -> None:
        """Handle the commit, or its failure. Called once."""
        ...


class PatientWaiter:
    """Waiter that would only have the same written again: a lack of copies does not fail it.

    What was written by then is committed once there are copies again.
    """

    def held_up(self) -> None:
        """Note that there are too few copies, for nobody knows how long."""


class PatientForTwo(AfterAll, PatientWaiter):
    """Waits for two commits in the place of a patient waiter."""

    def __init__(self, done: Callable[..., None], held_up: Callable[[], None]) -> None:
        super().__init__(2, done)
        self._held_up = held_up

    def held_up(self) -> None:
        """Pass it on."""
        self._held_up()


def waiter_for_two(waiter: Waiter) -> AfterAll:
    """Return what waits for two commits in the place of `waiter`, and as patiently."""
    if isinstance(waiter, PatientWaiter):
        return PatientForTwo(waiter.done, waiter.held_up)
    return AfterAll(2, waiter.done)


class Committing(Protocol):
    """Queue or topic that eventually commits every record it was given."""

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything taken so far is committed, possibly at once."""
        ...


Report: TypeAlias = "Callable[[object, Exception], None]"


class PendingCommit:
    """Something that is committed, or fails, once; and those that wait for it (see Committing).

    `failed` is None until then.
    """

    def __init__(self, report: Report) -> None:
        self.failed: bool | None = None
        self._waiters: list[Waiter] = []
        self._report = report

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` at the end, possibly at once."""
        if self.failed is None:
            self._waiters.append(waiter)
        else:
            waiter.done(failed=self.failed)

    def finish(self, *, failed: bool) -> None:
        """Notify the waiters of the end."""
        self.failed = failed
        waiters, self._waiters = self._waiters, []
        tell_each(waiters, self._report, failed=failed)


class JointCommit:
    """The commits of several, each of which is waited for from when it is added (see Committing).

    A log that cannot write tells only those that wait already: where records are gathered over some
    turns, those of the first may have been lost before the last are there.
    """

    def __init__(self) -> None:
        self._pending = 1  # until no more is added
        self._failed = False
        self._waiter: Waiter | None = None

    def add(self, committing: Collection[Committing]) -> None:
        """Wait, from now on, for the commits of these as well."""
        self._pending += len(committing)
        for each in committing:
            each.await_commit(self)

    def done(self, *, failed: bool) -> None:
        """Note one of the commits (see Waiter)."""
        self._failed = self._failed or failed
        self._pending -= 1
        if not self._pending and self._waiter is not None:
            self._waiter.done(failed=self._failed)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` after the last one, possibly at once. Called once all are added."""
        self._waiter = waiter
        self.done(failed=False)


class Gone(TouchedQueue):
    """Owner of a deleted queue's builder: publishes into it are confirmed."""

    def __init__(self) -> None:
        self.touched = self.deleted = True

    def await_commit(self, waiter: Waiter) -> None:
        """Confirm at once: the queue was deleted."""
        waiter.done(failed=False)


GONE = Gone()


class LogWriter(Batching, ABC):
    """Log that is appended to through its builder, and by atomic writes (core.logs.atomic).

    `report(subject, error)` gets records that could not be stored and exceptions of waiters; all
    waiters are notified in any case. Committed records of undone atomic writes are settled already
    and must be ignored.
    """

    __slots__ = ()

    settles_in_log = True  # whether settlements are written to the log

    def __init__(self, log: TopicLog | None, turn: Turn, report: Report) -> None:
        """Write to a log. Without one it is `held`, and `_attach` is called once there is."""
        self.log = self._owned_log = UNOPENED_LOG
        self.builder = BatchBuilder() if log is None else log.builder
        self.builder.owner = self
        self._turn = turn
        self._report = report
        self._waiting = []
        self._uncommitted = ()
        self._unseen = ()
        self.held = log is None
        if log is not None:
            self._attach(log)

    def _attach(self, log: TopicLog) -> None:
        """Have a log from now on."""
        self.log = self._owned_log = log
        if log.builder is not self.builder:
            log.builder = self.builder  # type: ignore[misc]  # an attribute of each log
        self._opened_at = log.end
        log.on_commit(self._committed)
        log.on_failure(self._failed)

    @property
    def turn(self) -> Turn:
        """Turn that flushes and pumps it."""
        return self._turn

    @property
    def lacks_copies(self) -> bool:
        """Whether nothing can be published to it, since too few nodes are in sync."""
        return self.log.is_refusing

    @property
    def appended_count(self) -> int:
        """Number of records written since the log was opened."""
        return max(self.log.end - self._opened_at, 0)

    def _await_also(self, other: Committing) -> None:
        """Make waiters for gathered records wait for those of `other` as well."""
        patient = [waiter for waiter in self._waiting if isinstance(waiter, PatientWaiter)]
        others = [waiter for waiter in self._waiting if not isinstance(waiter, PatientWaiter)]
        self._waiting = [waiter_for_two(waiter) for waiter in patient]
        if others:
            self._waiting.append(AfterAll(2, partial(tell_each, others, self._report)))
        for both in self._waiting:
            other.await_commit(both)

    def _forget_uncommitted(self) -> None:
        """Drop state of records from the log's end on, which were lost after `_prepare`."""

    def _drop_gathered(self) -> None:
        """Drop what is gathered, for those who know it by offsets that it would not have any more.

        Called where records before it were lost.
        """
        self.builder.clear()
        waiting, self._waiting = self._waiting, []
        tell_each(waiting, self._report, failed=True)

    @abstractmethod
    def _show_committed(self) -> None:
        """Make records below the log's committed offset deliverable."""

    def _failed(self, error: Exception) -> None:
        """Handle a failed flush of written records: fail their waiters."""
        if isinstance(error, NotEnoughCopiesError):
            self._refuse_impatient()
            unseen, self._unseen = self._unseen, ()
            tell_each([part for _, part in unseen], self._report, failed=True)
            return
        self._forget_uncommitted()
        self._report(self, error)
        while self._unseen and self._unseen[-1][0] > self.log.end:
            self._unseen.pop()
        self._refuse_waiting(self.log.end + 1)

    def _refuse_impatient(self) -> None:
        """Fail the waiters for commits that need not wait for ever."""
        refused: list[Waiter] = []
        patient: list[PatientWaiter] = []
        uncommitted, self._uncommitted = self._uncommitted, ()
        for stop, waiters in uncommitted:
            staying: list[Waiter] = []
            for waiter in waiters:
                if isinstance(waiter, PatientWaiter):
                    staying.append(waiter)
                    patient.append(waiter)
                else:
                    refused.append(waiter)
            if staying:
                self._uncommitted = self._uncommitted or deque()
                self._uncommitted.append((stop, staying))
        tell_each(refused, self._report, failed=True)
        call_each([waiter.held_up for waiter in patient], self._report)

    def _refuse_waiting(self, stop: int) -> None:
        """Fail the waiters for commits up to `stop` or more."""
        refused: list[Waiter] = []
        while self._uncommitted and self._uncommitted[-1][0] >= stop:
            refused[:0] = self._uncommitted.pop()[1]
        tell_each(refused, self._report, failed=True)

    # -- atomic writes

    @property
    def outlived_by_whole(self) -> bool:
        """Whether it was a partition, and what clients publish to is still there."""
        return False

    @property
    def limited_with(self) -> LogWriter:
        """One of the logs whose limits hold for all of them together, the same for each."""
        return self

    def has_room(self, count: int, body_bytes: int) -> bool:  # noqa: ARG002  # most have no limits
        """Whether the limits allow so many more records, with so many bytes in their bodies."""
        return True

    def when_released(self, go_on: Callable[[Exception | None], None]) -> None:
        """Call `go_on(None)` once this is no longer `held`, or is deleted.

        If its log cannot be opened, `go_on` gets the error, and it is still held.
        """
        if self._release_waiters is None:
            self._release_waiters = []
        self._release_waiters.append(go_on)
        self._begin_release()

    def _release(self) -> None:
        self.held = False
        self._notify_release(None)

    def _notify_release(self, error: Exception | None) -> None:
        waiters, self._release_waiters = self._release_waiters, None
        call_each([partial(go_on, error) for go_on in waiters or ()], self._report)

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        seen: Waiter,
        *,
        erases: bool = False,
    ) -> None:
        """Write a part of an atomic write (see TopicLog.prepare). May raise StorageError.

        `take_in` must have been called. `seen` is notified when its records are committed, or
        lack copies: those of a write that was decided will be, but nobody knows when.
        """
        record_count = records.count
        has_records = record_count > 0
        try:
            self.log.prepare(transaction, records, ranges, prepared, erases=erases)
        except BaseException:
            self._forget_uncommitted()
            raise
        if has_records:
            if self.builder.counters is not None:
                self.builder.counters.count(PUBLISH, record_count)
            self._unseen = self._unseen or deque()
            self._unseen.append((self.log.end, seen))

    def take_in(self, records: BatchBuilder) -> None:
        """Prepare records for being appended; duplicates may be dropped."""

    def carry_out(
        self, transaction: int, ranges: Sequence[tuple[int, int]], *, erases: bool = False
    ) -> None:
        """Apply a committed atomic write, which settles or `erases` ranges here."""
        if ranges and erases:
            self.erase(ranges)
        elif ranges:
            self.settle(ranges)
        self.log.resolve(transaction, committed=True)

    def undo(self, transaction: int, first: int, stop: int) -> None:  # noqa: ARG002
        """Undo a failed atomic write, whose records here are [first, stop)."""
        self.log.resolve(transaction, committed=False)

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle records."""
        self._owned_log.settle(ranges)

    def erase(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle records, and let nobody read them any more."""
        self._owned_log.erase(ranges)

    def with_copies(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return ranges to be erased, and where else the log has the same messages."""
        return list(ranges)

    def lose(self, unreadable: RangeSet) -> RangeSet:
        """Settle records that can no longer be read; return those that are lost by that."""
        self._owned_log.settle(list(unreadable))
        return unreadable

    def _close_publishing(self) -> None:
        """Mark it deleted: confirm all waiters, and drop references to it."""
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
