"""Delayed-message stores: internal topics whose records have due times.

A record is added with its due time, and confirmed when the log has committed it. When it is due, it
is passed to the store's user, who settles it as soon as it is safe elsewhere: so at-least-once, and
exactly once unless the node crashes in between.

The due time is in the record (`tag_mask`, see ports.records), so that the log alone is the source
of truth; the state in memory and in the state store can be rebuilt from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.core.logs.log_scan import COMPILED_SLICE_BYTES, LogScan
from leveret.core.logs.log_writer import LogWriter
from leveret.errors import StorageError
from leveret.features.delay.due_index import INTERVAL_MS, DueIndex, remove_index, store_identity
from leveret.features.delay.due_list import DUE_MS_MAX, DueList, DuePage, put_record
from leveret.features.delay.reader import (
    AHEAD_MS,
    GATHER_MS,
    URGENT_MS,
    DelayedMessageReader,
    PendingMessage,
)
from leveret.features.delay.wheel import TimingWheel
from leveret.ports.callbacks import has_failed
from leveret.ports.definitions import is_internal
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from leveret.core.environment import Environment
    from leveret.core.logs.internal_topics import InternalTopics
    from leveret.ports import LogName, StateStore, TopicLog
    from leveret.ports.records import Batch

    OnDue = Callable[[Sequence[PendingMessage]], None]

__all__ = ["DelayedMessageStore", "DelayedMessageStores", "PendingMessage"]

# Maximum records that a scan of the log after a start leaves waiting for the index.
SCANNED_COUNT_MAX = 250_000
DUE_AT_ONCE_MAX = 1000  # records of a store handed out in one pass of the loop
AHEAD_AT_ONCE_MAX = 50_000  # timers of the wheel handled in one pass of the loop
SETTLE_DELAY_MS = 20  # delay of settlements, so that many are passed to the log at once
RETRY_MS = 1000  # after a failed read
STORES_MAX = 1 << 16
OFFSET_BITS = 48  # of a timer's key, below the store's number
OFFSET_MASK = (1 << OFFSET_BITS) - 1


class ScanListener(Protocol):
    """Owner of a store that restores something from its log, too."""

    @property
    def covered(self) -> int:
        """Offset from which it must see unsettled records."""
        ...

    def scanned(self, batch: Batch) -> None:
        """Note a batch, which may also hold other records; called in order."""
        ...

    def scan_ended(self) -> None:
        """Note the end of the scan."""
        ...


class DelayedMessageStore(LogWriter):
    """One topic of delayed records; opened by `DelayedMessageStores`.

    `on_due(records)` gets due records in order of due times, then of addition. It settles them when
    they are safe elsewhere. Until then they are leased, and repeated only after a restart. Records
    that can no longer be read are told to `on_lost`, where those begin that could not be written to
    `on_forgotten`.
    """

    def __init__(
        self,
        log: TopicLog,
        number: int,
        identity: bytes,
        stores: DelayedMessageStores,
        on_due: OnDue,
        *,
        scan_listener: ScanListener | None,
    ) -> None:
        environment = stores.environment
        timers, spawn, report = environment.timers, environment.spawn, environment.report
        super().__init__(log, environment.turn, report)
        self._stores = stores
        self._timers = timers
        self._spawn = spawn
        self._on_due = on_due
        self.on_lost: Callable[[RangeSet], None] | None = None
        self.on_forgotten: Callable[[int], None] | None = None
        self._key = number << OFFSET_BITS
        self._gathered = DueList()  # added, not committed
        self._index = DueIndex(stores.state, identity, log, stores.wheel, self._admit)
        # Handed out, cancelled or settled, as far as not settled in the log; and those to be
        # settled there.
        self._leased = RangeSet()
        self._done = RangeSet()
        self._reader = DelayedMessageReader(
            self, spawn, report, self._waits, self._try_again, self.lose
        )
        self._due_timer = timers.timer(self._hand_out)
        self._settle_timer = timers.timer(self._settle_done)
        self._keep_timer = timers.timer(self._keep_index)
        self._keeping = False
        self._scan_listener = scan_listener
        self._indexed = first = self._index.open()  # records below are in the index
        if scan_listener is not None:
            first = min(first, scan_listener.covered)
        self._scan: LogScan | None = LogScan(  # until it is over
            log,
            self._reader.report,
            self.lose,
            first=first,
            slice_bytes=COMPILED_SLICE_BYTES,
        )
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
        now = self._timers.wall_ms()
        put_record(self.builder, due_ms, flags, now, exchange, routing_key, header, body)
        self._gathered.add(due_ms, offset)
        self._turn.touch(self)
        return offset

    def _show_committed(self) -> None:
        dues = self._gathered.take_below(self.log.committed)
        if self._leased:
            dues.forget(self._leased)  # cancelled meanwhile
        self._add(dues)

    def _add(self, dues: DueList) -> None:
        """Add committed records to the index."""
        if len(dues):
            self._index.add(dues)
            if not self._keeping:
                soon_ms = self._timers.wall_ms() + INTERVAL_MS
                # It may be set to a time hours away.
                if self._keep_timer.due_ms is None or self._keep_timer.due_ms > soon_ms:
                    self._keep_timer.set(soon_ms)

    def _forget_uncommitted(self) -> None:
        self._gathered.truncate(self.log.end)
        self._leased.remove(self.log.end, 1 << 63)
        self._done.remove(self.log.end, 1 << 63)
        if self.on_forgotten is not None:
            self.on_forgotten(self.log.end)
        self._drop_gathered()

    # -- the index

    def _keep_index(self) -> None:
        if not self._keeping and not self.deleted:
            self._keeping = True
            self._spawn(self._keep())

    async def _keep(self) -> None:
        """Update the index, and load near records into the wheel."""
        wakes_ms: int | None = self._timers.wall_ms() + RETRY_MS  # in case of an error
        try:
            while not self.deleted:
                try:
                    await self._read_log()
                    self._settle_done()
                    await self._index.round(self._timers.wall_ms(), self._complete)
                except StorageError as error:
                    self._reader.report(error)
                    wakes_ms = self._timers.wall_ms() + RETRY_MS
                    break
                if self._scan is None and not self._index.hurried:
                    wakes_ms = self._index.wakes_ms(self._timers.wall_ms())
                    break
        finally:
            self._keeping = False
            if not self.deleted:
                self._keep_timer.set(wakes_ms)

    @property
    def _complete(self) -> int:
        """Offset below which all waiting records are in the index."""
        scan = self._scan
        return self.log.committed if scan is None else max(self._indexed, scan.offset)

    async def _read_log(self) -> None:
        """Read records from the log that the index, or the listener, did not know at the start."""
        scan, dues = self._scan, DueList()
        if scan is None:
            return
        try:
            while len(dues) < SCANNED_COUNT_MAX and (batches := await scan.read()):
                for batch in batches:
                    if batch.stop_offset > self._indexed:
                        dues.index(batch, self.log.settled)
                    if self._scan_listener is not None:
                        self._scan_listener.scanned(batch)
        finally:  # the scan goes on behind what it has read
            self._add(dues)
        if scan.is_over:
            self._scan = None
            listener, self._scan_listener = self._scan_listener, None
            if listener is not None:
                listener.scan_ended()

    # -- what is due

    def _admit(self, dues: DueList) -> None:
        """Distribute near records: read those due within seconds, add the others to the wheel."""
        now = self._timers.wall_ms()
        for from_ms, before_ms in ((0, now + URGENT_MS), (now + URGENT_MS, now + AHEAD_MS)):
            soon = dues.between(from_ms, before_ms)
            if len(soon):
                soon.sort()
                self._reader.want(soon.offsets(), urgent=from_ms == 0)
        later = dues.between(now + AHEAD_MS, DUE_MS_MAX + 1)
        if len(later):
            self._stores.wheel.add_all(later, self._key, AHEAD_MS)
            self._stores.look()

    def read_ahead(self, offsets: Iterable[int]) -> None:
        """Read records that the wheel reports as due soon."""
        if not self.deleted:
            self._reader.want(offsets, urgent=False)

    def pump(self) -> bool:
        """Read records that are due soon, and hand out due ones. Returns whether to read more."""
        reads_more = self._reader.work()
        self._hand_out()
        return reads_more

    def _waits(self, offset: int) -> bool:
        return (
            offset < self.log.committed
            and offset not in self._leased
            and offset not in self.log.settled
        )

    def _try_again(self, offsets: Collection[int]) -> None:
        self._read_at(offsets, self._timers.wall_ms() + RETRY_MS)

    def _read_at(self, offsets: Iterable[int], at_ms: int) -> None:
        for offset in offsets:
            self._stores.wheel.add(self._key + offset, at_ms)
        self._stores.look()

    def _hand_out(self) -> None:
        """Lease and hand out records that are due."""
        ready = []
        for raw in self._reader.take_due(self._timers.wall_ms(), DUE_AT_ONCE_MAX):
            offset = raw[1]
            if self._waits(offset):
                self._leased.add(offset, offset + 1)
                ready.append(PendingMessage(*raw))
        self._due_timer.set(self._reader.next_due_ms)
        if ready:
            self._on_due(ready)

    def lose(self, unreadable: RangeSet) -> RangeSet:
        """Settle records that can no longer be read, and return them."""
        for first, stop in unreadable:
            self._leased.remove(first, stop)
            self._done.remove(first, stop)
        if self.on_lost is not None:
            self.on_lost(unreadable)
        return super().lose(unreadable)

    # -- settling

    def settle(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Settle records handed out, as ranges [first, stop), which are safe elsewhere."""
        for first, stop in ranges:
            self._leased.add(first, stop)
            self._done.add(first, stop)
        if self._done and self._settle_timer.due_ms is None:
            self._settle_timer.set(self._timers.wall_ms() + SETTLE_DELAY_MS)

    def cancel(self, offset: int) -> bool:
        """Cancel and settle a waiting record. Returns False if there is none."""
        if not self.waits(offset):
            return False
        self._stores.wheel.cancel(self._key + offset)
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
            self._read_at(range(first, stop), again_ms)

    def _settle_done(self) -> None:
        """Settle committed records in the log, uncommitted ones later."""
        if self.deleted:
            return
        committed = self.log.committed
        told = list(self._done.gaps(0, committed).gaps(0, committed))
        if told:
            self._owned_log.settle(told)
            for first, stop in told:
                self._leased.remove(first, stop)
            self._done.remove(0, committed)
        if self._done:
            self._settle_timer.set(self._timers.wall_ms() + SETTLE_DELAY_MS)

    async def settlements_safe(self) -> None:
        """Wait until all that was settled or cancelled so far is durable. Raises StorageError."""
        self._settle_done()
        if self._done:
            await has_failed(self.await_commit)  # who has failed was never there, and is settled
            self._settle_done()
        await self.log.settlements_safe()

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
            await self._index.write_down(self._timers.wall_ms(), self._complete)
        self._index.closed = True

    def delete(self) -> None:
        """Delete the store with all its records."""
        self._close_publishing()
        self._stop()
        self._spawn(self._remove())

    async def _remove(self) -> None:
        await self._index.remove()
        await self.log.delete()

    def _stop(self) -> None:
        self.deleted = True
        self._due_timer.set(None)
        self._settle_timer.set(None)
        self._keep_timer.set(None)
        self._reader.clear()


class DelayedMessageStores:
    """Opens, finds and deletes the delayed-message stores of a node."""

    def __init__(self, topics: InternalTopics, state: StateStore, environment: Environment) -> None:
        self.environment = environment
        self.state = state
        self.wheel = TimingWheel(environment.timers.wall_ms())  # when to read records
        self._topics = topics
        self._timer = environment.timers.timer(self._read_ahead)
        self._read_ms = 0  # time of the last read-ahead
        self._opened: dict[int, DelayedMessageStore] = {}  # by number
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._number = 0

    def open(
        self,
        vhost: str,
        topic: str,
        on_due: OnDue,
        incarnation: str,
        *,
        scan_listener: ScanListener | None = None,
    ) -> DelayedMessageStore:
        """Open a store, new or recovered; its log is read in the background. StorageError."""
        log = self._topics.open(vhost, topic, incarnation)
        number = self._free_number()
        identity = store_identity(vhost, topic, incarnation)
        store = DelayedMessageStore(
            log, number, identity, self, on_due, scan_listener=scan_listener
        )
        self._opened[number] = store
        self._numbers[vhost, topic, incarnation] = number
        return store

    def _free_number(self) -> int:
        """Return a number not used recently: the wheel may still have timers of a deleted store."""
        for _ in range(STORES_MAX):
            self._number = (self._number + 1) % STORES_MAX
            if self._number not in self._opened:
                return self._number
        raise AssertionError("no node has so many stores")

    def find(self, vhost: str, topic: str, incarnation: str) -> DelayedMessageStore | None:
        """Return the store if it is open, else None."""
        number = self._numbers.get((vhost, topic, incarnation))
        return None if number is None else self._opened[number]

    def exists(self, vhost: str, topic: str, incarnation: str) -> bool:
        """Whether a store was left by an earlier run, or is open."""
        return self._topics.exists(vhost, topic, incarnation)

    def logs(self, vhost: str, topic: str, incarnation: str) -> Sequence[LogName]:
        """Return the log of a store, if there is one."""
        exists = self.exists(vhost, topic, incarnation)
        return [self._topics.name(vhost, topic, incarnation)] if exists else ()

    def delete(self, vhost: str, topic: str, incarnation: str) -> None:
        """Delete a store with all its records, even if only an earlier run had opened it."""
        number = self._numbers.pop((vhost, topic, incarnation), None)
        if number is not None:
            self._opened.pop(number).delete()
        elif self.exists(vhost, topic, incarnation):
            self.environment.spawn(self._delete_left(vhost, topic, incarnation))

    async def _delete_left(self, vhost: str, topic: str, incarnation: str) -> None:
        await remove_index(self.state, store_identity(vhost, topic, incarnation))
        await self._topics.delete(vhost, topic, incarnation)

    def delete_of_vhost(self, vhost: str) -> None:
        """Delete the open stores of a virtual host that is being deleted.

        Those of single queues are deleted with their queues.
        """
        shared = [name for name in self._numbers if name[0] == vhost and is_internal(name[2])]
        for name in shared:
            self.delete(*name)

    async def close(self) -> None:
        """Stop delivering: the node stops. The logs are closed by their store."""
        self._timer.set(None)
        for store in self._opened.values():
            try:
                await store.close()
            except StorageError as error:
                self.environment.report(store, error)
        self._opened.clear()
        self._numbers.clear()

    @property
    def opened(self) -> list[DelayedMessageStore]:
        """All open stores."""
        return list(self._opened.values())

    # -- the wheel

    def look(self) -> None:
        """Set the timer anew after timers were added to the wheel."""
        wakes_ms = self.wheel.wakes_ms
        if wakes_ms is not None and self._read_ms <= self.environment.timers.wall_ms():
            # Not more often than necessary: larger reads read fewer batches twice.
            wakes_ms = max(wakes_ms, self._read_ms + GATHER_MS)
        self._timer.set(wakes_ms)

    def _read_ahead(self) -> None:
        """Let each store read what will be due soon."""
        now = self.environment.timers.wall_ms()
        found: dict[int, list[int]] = {}
        for key in self.wheel.expire(now, AHEAD_AT_ONCE_MAX):
            found.setdefault(key >> OFFSET_BITS, []).append(key & OFFSET_MASK)
        for number, offsets in found.items():
            if number in self._opened:
                self._read_ms = now
                self._opened[number].read_ahead(offsets)
        self.look()
