"""Stream: records stay in the log, and any number of consumers read them independently.

The second kind of queue beside `Queue`, with the same callers. Nothing is leased: a consumer is a
cursor with credit; acknowledgements of any kind only give credit. Records removed by retention or
lost are settled in the log; cursors skip them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.log_scan import LogScan, quarantine
from leveret.core.logs.window import LogWindow
from leveret.core.queues.consumer import QueueConsumer, say_farewell
from leveret.core.queues.extensions import Demand
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX, OpenQueue
from leveret.core.queues.stream_offsets import (
    STREAM_OFFSET,
    FromAge,
    FromOffset,
    FromTime,
    Place,
    parse_start,
)
from leveret.errors import CorruptBatchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from leveret.core.queues.discarding import Reason
    from leveret.core.queues.extensions import ExtensionKind
    from leveret.core.queues.services import QueueServices, StreamFilter
    from leveret.core.queues.settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch

# Recently read windows stay in memory for consumers close to each other: otherwise a hundred of
# them at the same position would read it a hundred times.
SHARED_WINDOWS_MAX = 4


class Cursor:
    """Read position of one consumer."""

    __slots__ = ("asked", "consumer", "filter", "offset", "waits", "window")

    def __init__(
        self, consumer: QueueConsumer, wanted: StreamFilter | None, window: LogWindow
    ) -> None:
        self.consumer = consumer
        self.filter = wanted
        self.offset = 0  # next record to read
        self.asked = 0  # offset named by the client: nothing below it is delivered
        self.waits = False  # waits for a device read
        self.window = window  # window read last, possibly shared; its deliveries continue there


class Stream(OpenQueue):
    """An open stream of a virtual host."""

    settles_in_log = False  # records stay for other consumers

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        log: TopicLog,
        services: QueueServices,
    ) -> None:
        super().__init__(definition, settings, None, log, services)
        self._wall_ms = services.timers.wall_ms
        self._cursors: dict[QueueConsumer, Cursor] = {}
        self._ready: dict[Cursor, None] = {}  # cursors to be served, in order
        self._nothing = LogWindow(log)  # shared by cursors that hold nothing
        self._shared: deque[LogWindow] = deque(maxlen=SHARED_WINDOWS_MAX)
        self._errors = ErrorThrottle(self, services.report)
        self._held_up = False  # whether a consumer waits for capacity shared with other queues
        self._extend(Demand(opening=True))
        if any(extension.recovers for extension in self._extensions):
            self._spawn(self._recover())

    async def _recover(self) -> None:
        """Let extensions restore what an earlier run has left."""
        try:
            first = await self.recover_extensions()
            if first is not None:
                scan = LogScan(self.log, self._errors.report, first=first, all_from=first)
                while not self.deleted and (batches := await scan.read()):
                    for batch in batches:
                        self.scanned(batch)
        except StorageError as error:
            self._errors.report(error)
        self.log_scanned()

    def _extension_kinds(self) -> Sequence[ExtensionKind]:
        return [kind for kind in self.services.extensions if kind.for_streams]

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, retention included."""
        super().reconfigure(settings)
        if not self.deleted:
            self.log.retention = settings.retention
            self._extend()
            for extension in self._extensions:
                extension.reconfigure(settings)

    # -- contents

    @property
    def first(self) -> int:
        """Offset of the oldest record kept."""
        settled = self.log.settled
        return next(iter(settled))[1] if settled.first == 0 else 0

    @property
    def message_count(self) -> int:
        """Number of messages a new consumer could read, those gathered in this turn included."""
        return self.builder.count + self.log.end - self.log.settled.count

    @property
    def leased_count(self) -> int:
        """Zero: consumers lease nothing."""
        return 0

    @property
    def consumer_count(self) -> int:
        """Number of consumers, with or without capacity."""
        return len(self._cursors)

    @property
    def held_bytes(self) -> int:
        """Estimated memory in bytes, see OpenQueue. Shared windows count once."""
        windows = {*self._shared, *(cursor.window for cursor in self._cursors.values())}
        read = [batch for window in windows for batch in window.held]
        peek = self.log.peek
        return super().held_bytes + sum(
            batch.size for batch in read if peek(batch.base_offset) is not batch
        )

    # -- publishing

    def _show_committed(self) -> None:
        self._ready.update((cursor, None) for cursor in self._cursors.values() if not cursor.waits)

    def _failed(self, error: Exception) -> None:
        super()._failed(error)
        for cursor in self._cursors.values():
            cursor.offset = max(min(cursor.offset, self.log.end), cursor.asked)

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:  # noqa: ARG002  # it means nothing here
        """Whether `add_consumer` may be called: always."""
        return True

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:  # noqa: ARG002
        """Add `consumer` at the position its validated arguments ask for."""
        cursor = self._cursors[consumer] = Cursor(
            consumer,
            self.services.stream_filter(consumer.arguments, self._turn.is_over),
            self._nothing,
        )
        self.searches = self.searches or cursor.filter is not None
        match parse_start(consumer.arguments.get(STREAM_OFFSET, Place.NEXT.value)):
            case FromOffset(offset):
                cursor.offset = cursor.asked = offset
            case FromTime(time_ms):
                self._wait_for(cursor, self._find_time(cursor, time_ms))
            case FromAge(age_ms):
                self._wait_for(cursor, self._find_time(cursor, max(self._wall_ms() - age_ms, 0)))
            case Place.FIRST:
                cursor.offset = self.first
            case place:
                end = self.log.end + self.builder.count
                cursor.offset = max(end - (place is Place.LAST), 0)
        self.wake(consumer)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove `consumer`; nothing more is delivered to it."""
        cursor = self._cursors.pop(consumer)
        self._ready.pop(cursor, None)
        if cursor.filter is not None:
            self.searches = any(other.filter is not None for other in self._cursors.values())

    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """Note that this consumer, or any, may have more capacity."""
        if consumer is None:
            woken = list(self._cursors.values())
        else:
            cursor = self._cursors.get(consumer)
            woken = [] if cursor is None else [cursor]
        self._ready.update((cursor, None) for cursor in woken if not cursor.waits)
        if self._ready:
            self._turn.touch(self)

    def pump(self) -> bool:
        """Advance cursors round-robin. Returns whether another turn could do more."""
        passed = 0
        if self.settings.is_paused:
            return False
        self._held_up = False
        while self._ready and passed < PUMP_RECORDS_MAX:
            if passed and self.searches and self._turn.is_over():
                break
            cursor = next(iter(self._ready))
            del self._ready[cursor]
            count = self._advance(cursor)
            if count:
                self._ready[cursor] = None
                passed += count
        self._note_pump(delivered=passed > 0, held_up=self._held_up)
        return bool(self._ready)

    def _advance(self, cursor: Cursor) -> int:
        """Deliver the next records from one window. Returns how many the cursor has passed."""
        capacity = cursor.consumer.capacity()
        if capacity <= 0:
            self._held_up = self._held_up or capacity < 0
            return 0  # the consumer wakes the stream when it has capacity
        kept = self._kept_from(cursor.offset)
        if kept is None:
            cursor.window = self._nothing
            if not self._ready:
                self._shared.clear()
            return 0
        begin = cursor.offset
        cursor.offset, stop = kept
        batches = self._window(cursor)
        if batches is None:
            return 0  # continues when the read has completed
        self._deliver(cursor, batches, min(stop, batches[-1].stop_offset), capacity)
        return cursor.offset - begin

    def _kept_from(self, offset: int) -> tuple[int, int] | None:
        """Return the next range of readable records at or after `offset`, or None."""
        committed = self.log.committed
        if offset >= committed:
            return None
        return next(iter(self.log.settled.gaps(offset, committed)), None)

    def _deliver(self, cursor: Cursor, batches: list[Batch], stop: int, capacity: int) -> None:
        """Send matching records before `stop`, at most `capacity`, as one run."""
        first = cursor.offset
        if cursor.filter is not None:
            first, stop = cursor.filter.run(batches, first, stop)
        stop = min(stop, first + capacity)
        cursor.offset = stop
        if first < stop:
            cursor.offset = cursor.consumer.send(batches, first, stop, redelivered=False)

    # -- reading

    def _window(self, cursor: Cursor) -> list[Batch] | None:
        """Return batches from the cursor's position on; None after starting a read for them."""
        offset = cursor.offset
        for window in (cursor.window, *self._shared):
            if window.holds(offset):
                cursor.window = window
                return window.at_hand(offset)
        window = LogWindow(self.log)
        try:
            batches = window.at_hand(offset)
        except StorageError:
            batches = None  # the fetch finds the damage again and handles it
        if batches is None:
            self._wait_for(cursor, self._fetch(cursor, window))
        else:
            self._share(cursor, window)
        return batches

    def _share(self, cursor: Cursor, window: LogWindow) -> None:
        cursor.window = window
        self._shared.appendleft(window)

    def _wait_for(self, cursor: Cursor, work: Coroutine[object, object, None]) -> None:
        """Suspend the cursor until a device read completes."""
        cursor.waits = True
        self._spawn(self._resume(cursor, work))

    async def _resume(self, cursor: Cursor, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except StorageError as error:
            self._errors.report(error)
            return  # continues when it is woken the next time
        finally:
            cursor.waits = False
        self.wake(cursor.consumer)

    async def _find_time(self, cursor: Cursor, time_ms: int) -> None:
        """Move the cursor to the first record stored at `time_ms` or later."""
        try:
            cursor.offset = await self.log.offset_at(time_ms)
        except StorageError as error:
            cursor.offset = self.first  # deliver too much rather than too little
            self._errors.report(error)

    async def _fetch(self, cursor: Cursor, window: LogWindow) -> None:
        """Read at the cursor's position, unless that was settled meanwhile."""
        settled = self.log.settled
        if cursor.offset in settled:
            return
        try:
            await window.fill(cursor.offset)
        except CorruptBatchError:
            if cursor.offset in settled:
                return
            await quarantine(self.log, cursor.offset, self._errors.report)
            if self.deleted or cursor.offset in settled:
                return
            await window.fill(cursor.offset)
        self._share(cursor, window)
        self._errors.end()

    # -- settling: only gives credit to the consumer; records stay

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: records stay for other consumers."""

    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
    ) -> None:
        """Do nothing: a consumer that wants records again must ask for them."""

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: records stay for other consumers."""

    # -- the end

    def mark_deleted(self) -> None:
        """Stop the stream: confirm waiting publishers, and notify its consumers."""
        self._let_publishers_go()
        self._close_extensions()
        self._shared.clear()
        self._ready.clear()
        consumers = list(self._cursors)
        self._cursors.clear()
        self._errors.close()
        say_farewell(self._turn, consumers)
