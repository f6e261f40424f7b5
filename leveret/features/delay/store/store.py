"""Delayed-message store: an internal topic whose records have due times.

A record is added with its due time, and confirmed when the log has committed it. When it is due, it
is passed to the store's user, who settles it as soon as it is safe elsewhere: so at-least-once, and
exactly once unless the node crashes in between.

The due time is in the record (`tag_mask`, see ports.records), so that the log alone is the source
of truth; the state in memory and in the state store can be rebuilt from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.core.logs.log_scan import LogScan
from leveret.core.logs.log_writer import LogWriter
from leveret.errors import StorageError
from leveret.features.delay.store.due_list import DUE_MS_MAX, DueList, DuePage, put_record
from leveret.features.delay.store.index import INTERVAL_MS, DueIndex
from leveret.features.delay.store.prefetch import AHEAD_MS, URGENT_MS, PrefetchBuffer
from leveret.features.delay.store.reader import (
    DelayedMessageReader,
    PendingMessage,
    by_due_time,
)
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence

    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.features.delay.store.reader import Raw
    from leveret.features.delay.store.wheel import TimingWheel
    from leveret.ports import StateStore, TopicLog

__all__ = ["DelayedMessageStore", "PendingMessage", "StoreServices"]

# Maximum records that a scan of the log after a start leaves waiting for the index.
SCANNED_COUNT_MAX = 250_000
SETTLE_DELAY_MS = 20  # delay of settlements, so that many are passed to the log at once
RETRY_MS = 1000  # after a failed read
STORE_BITS = 48  # bits of a timer's key for the offset, below the store's number


@dataclass(frozen=True, slots=True)
class StoreServices:
    """Services shared by the delayed-message stores of a node.

    `look()` makes the wheels' timers be checked again.
    """

    turn: Turn
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[object, Exception], None]
    timers: Timers
    state: StateStore
    soon: TimingWheel  # read-ahead wheel: when to read records
    due: TimingWheel  # delivery wheel: when to hand out records
    look: Callable[[], None]


class DelayedMessageStore(LogWriter):
    """One topic of delayed records; opened by `DelayedMessageStores`.

    `on_due(records)` gets due records in order of due times, then of addition. It settles them when
    they are safe elsewhere. Until then they are leased, and repeated only after a restart.
    """

    def __init__(
        self,
        log: TopicLog,
        number: int,
        identity: bytes,
        services: StoreServices,
        on_due: Callable[[Sequence[PendingMessage]], None],
    ) -> None:
        super().__init__(log, services.turn, services.report)
        self._services = services
        self._on_due = on_due
        self._key = number << STORE_BITS
        self._gathered = DueList()  # added, not committed
        self._index = DueIndex(services.state, identity, log, services.soon, self._admit)
        # Handed out, cancelled or settled, as far as not settled in the log; and those to be
        # settled there.
        self._leased = RangeSet()
        self._done = RangeSet()
        self._reader = DelayedMessageReader(self, services.report, self.lose)
        self._prefetch = PrefetchBuffer(
            self._reader,
            waits=self._waits,
            staged=self._staged,
            retry=self._try_again,
            spawn=services.spawn,
            touch=lambda: self._turn.touch(self),
        )
        self._settle_timer = services.timers.timer(self._settle_done)
        self._keep_timer = services.timers.timer(self._keep_index)
        self._keeping = False
        # Reads what the index does not cover.
        self._scan = LogScan(log, self._reader.report, self.lose, first=self._index.open())
        self._keep_index()

    def __repr__(self) -> str:
        return f"DelayedMessageStore({self.log!r})"

    # -- adding

    def add(  # noqa: PLR0917  # the fields of a record
        self,
        due_ms: int,
        flags: int,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
    ) -> int:
        """Add a record that is due at `due_ms`; `await_commit` tells when it is safe.

        Returns its offset. Due times are in ms since 1970; past ones mean now.
        """
        due_ms = min(max(due_ms, 0), DUE_MS_MAX)
        offset = self.log.end + self.builder.count
        now = self._services.timers.wall_ms()
        put_record(self.builder, due_ms, flags, now, exchange, routing_key, header, body)
        self._gathered.add(due_ms, offset)
        self._turn.touch(self)
        return offset

    def _show_committed(self) -> None:
        dues = self._gathered.take_below(self.log.committed)
        if self._leased:
            dues.forget(self._leased)  # cancelled meanwhile
        self._learn(dues)

    def _learn(self, dues: DueList) -> None:
        """Add committed records to the index."""
        if len(dues):
            self._index.learn(dues)
            if not self._keeping:
                soon_ms = self._services.timers.wall_ms() + INTERVAL_MS
                # It may be set to a time hours away.
                if self._keep_timer.due_ms is None or self._keep_timer.due_ms > soon_ms:
                    self._keep_timer.set(soon_ms)

    def _forget_uncommitted(self) -> None:
        self._gathered.cut(self.log.end)
        self._leased.remove(self.log.end, 1 << 63)
        self._done.remove(self.log.end, 1 << 63)

    # -- the index

    def _keep_index(self) -> None:
        if not self._keeping and not self.deleted:
            self._keeping = True
            self._services.spawn(self._keep())

    async def _keep(self) -> None:
        """Update the index, and load near records into the wheel."""
        timers = self._services.timers
        wakes_ms: int | None = timers.wall_ms() + RETRY_MS  # in case of an error
        try:
            while not self.deleted:
                try:
                    if not self._scan.is_over:
                        await self._read_log()
                    self._settle_done()
                    await self._index.round(timers.wall_ms(), self._complete)
                except StorageError as error:
                    self._reader.report(error)
                    wakes_ms = timers.wall_ms() + RETRY_MS
                    break
                if self._scan.is_over and not self._index.hurried:
                    wakes_ms = self._index.wakes_ms(timers.wall_ms())
                    break
        finally:
            self._keeping = False
            if not self.deleted:
                self._keep_timer.set(wakes_ms)

    @property
    def _complete(self) -> int:
        """Offset below which all waiting records are in the index."""
        return self.log.committed if self._scan.is_over else self._scan.offset

    async def _read_log(self) -> None:
        """Read records from the log that the index did not cover at the start."""
        dues = DueList()
        while len(dues) < SCANNED_COUNT_MAX and (batches := await self._scan.read()):
            for batch in batches:
                dues.learn(batch, self.log.settled)
        self._learn(dues)

    # -- what is due

    def _admit(self, dues: DueList) -> None:
        """Distribute near records: read those due within seconds, add the others to the wheel."""
        now = self._services.timers.wall_ms()
        for from_ms, before_ms in ((0, now + URGENT_MS), (now + URGENT_MS, now + AHEAD_MS)):
            soon = dues.between(from_ms, before_ms)
            if len(soon):
                soon.sort()
                self._prefetch.want(soon.offsets(), urgent=from_ms == 0)
        later = dues.between(now + AHEAD_MS, DUE_MS_MAX + 1)
        if len(later):
            self._services.soon.add_all(later, self._key, AHEAD_MS)
            self._services.look()

    def soon(self, offsets: Iterable[int]) -> None:
        """Read records that the wheel reports as due soon."""
        if not self.deleted:
            self._prefetch.want(offsets, urgent=False)

    def pump(self) -> bool:
        """Read records that are due soon. Returns whether there are more."""
        return self._prefetch.work()

    def _waits(self, offset: int) -> bool:
        return (
            offset < self.log.committed
            and offset not in self._leased
            and offset not in self.log.settled
        )

    def _staged(self, found: list[Raw]) -> None:
        """Put records that were read into the delivery wheel, by their own due times."""
        dues = DueList()
        for raw in found:
            dues.add(raw[1], raw[0])
        self._services.due.add_all(dues, self._key)
        self._services.look()

    def _try_again(self, offsets: Collection[int]) -> None:
        later = self._services.timers.wall_ms() + RETRY_MS
        for offset in offsets:
            self._services.soon.add(self._key + offset, later)
        self._services.look()

    def due(self, offsets: Iterable[int]) -> None:
        """Lease and hand out records that the wheel reports as due."""
        taken = (self._prefetch.take(offset) for offset in offsets if self._waits(offset))
        ready = sorted((raw for raw in taken if raw is not None), key=by_due_time)
        if ready and not self.deleted:
            for raw in ready:
                self._leased.add(raw[0], raw[0] + 1)
            self._on_due([PendingMessage(*raw) for raw in ready])

    def lose(self, lost: RangeSet) -> RangeSet:
        """Drop records that can no longer be read, and return them."""
        for first, stop in lost:
            self._leased.remove(first, stop)
            self._done.remove(first, stop)
        return lost

    # -- settling

    def settle(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Settle records handed out, as ranges [first, stop), which are safe elsewhere."""
        for first, stop in ranges:
            self._leased.add(first, stop)
            self._done.add(first, stop)
        if self._done and self._settle_timer.due_ms is None:
            self._settle_timer.set(self._services.timers.wall_ms() + SETTLE_DELAY_MS)

    def cancel(self, offset: int) -> bool:
        """Cancel and settle a waiting record. Returns False if there is none."""
        if not 0 <= offset < self.log.end + self.builder.count:
            return False
        if offset in self._leased or offset in self.log.settled:
            return False
        self._services.soon.cancel(self._key + offset)
        self._services.due.cancel(self._key + offset)
        self._prefetch.take(offset)
        self.settle([(offset, offset + 1)])
        return True

    def waits(self, offset: int) -> bool:
        """Whether a record waits, committed or not: neither handed out nor cancelled."""
        return (
            self.log.first <= offset < self.log.end + self.builder.count
            and offset not in self._leased
            and offset not in self.log.settled
        )

    def retry_later(self, ranges: Iterable[tuple[int, int]], again_ms: int) -> None:
        """Retry records handed out that could not be delivered; they are due at `again_ms`."""
        for first, stop in ranges:
            self._leased.remove(first, stop)
            for offset in range(first, stop):
                self._services.soon.add(self._key + offset, again_ms)
        self._services.look()

    def _settle_done(self) -> None:
        """Settle committed records in the log, uncommitted ones later."""
        if self.deleted:
            return
        committed = self.log.committed
        told = list(self._done.gaps(0, committed).gaps(0, committed))
        if told:
            self.log.settle(told)
            for first, stop in told:
                self._leased.remove(first, stop)
            self._done.remove(0, committed)
        if self._done:
            self._settle_timer.set(self._services.timers.wall_ms() + SETTLE_DELAY_MS)

    # -- reading

    @property
    def pending_count(self) -> int:
        """Number of waiting records, uncommitted ones included."""
        held = self.log.end + self.builder.count - self.log.settled.count
        return held - self._leased.count

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the first waiting record, or None."""
        first = self.scan(None, None, 1)
        return first[0][0] if first else None

    def scan(
        self, after: tuple[int, int] | None, before_ms: int | None, count_max: int
    ) -> list[tuple[int, int]]:
        """Return (due time, offset) of waiting records in this order, at most `count_max`.

        If given, only those after `after` and due before `before_ms`.
        """
        page = DuePage(after, before_ms, count_max)
        page.look(self._gathered, self.log.settled, self._leased)
        after_ms = 0 if after is None else after[0]
        self._index.look(page, after_ms, before_ms, self.log.settled, self._leased)
        return page.page()

    async def read(self, offsets: Sequence[int]) -> list[PendingMessage]:
        """Return committed records that wait, in order of offsets; other offsets are skipped.

        Raises StorageError.
        """
        wanted = sorted({offset for offset in offsets if self._waits(offset)})
        return [PendingMessage(*raw) for raw in await self._reader.fetch(wanted)]

    # -- the end

    async def close(self) -> None:
        """Write the index: the node stops. The log is closed by its store."""
        self._settle_done()
        self._stop()
        if not self._keeping:  # otherwise the next start reads more of the log
            self._keeping = True
            await self._index.write_down(self._services.timers.wall_ms(), self._complete)
        self._index.closed = True

    def delete(self) -> None:
        """Delete the store with all its records."""
        self._let_publishers_go()
        self._stop()
        self._services.spawn(self._remove())

    async def _remove(self) -> None:
        await self._index.remove()
        await self.log.delete()

    def _stop(self) -> None:
        self.deleted = True
        self._settle_timer.set(None)
        self._keep_timer.set(None)
        self._prefetch.clear()
