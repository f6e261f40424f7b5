"""A stream: records stay where they are, and any number of consumers read them, each at its place.

The second kind of queue beside `Queue`, called by the same callers. Nothing is leased: a consumer
is a cursor with credit, acknowledgements of whatever kind give credit and change nothing else. What
is gone, by retention or by damage, is settled in the log; cursors pass over it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.core.filtering.arguments import record_filter
from leveret.core.logs.data_loss import loss_error
from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.window import LogWindow
from leveret.core.queues.farewell import say_farewell
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX, OpenQueue, QueueConsumer
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

    from leveret.core.dead_letters.worker import Reason
    from leveret.core.filtering.filters import RecordFilter
    from leveret.core.queues.queue import QueueServices
    from leveret.core.queues.settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch

# What was read last stays at hand for consumers that follow closely: without this, a hundred of
# them at the same place would read it a hundred times.
SHARED_WINDOWS_MAX = 4


class Cursor:
    """How far one consumer has read."""

    __slots__ = ("asked", "consumer", "filter", "offset", "waits", "window")

    def __init__(
        self, consumer: QueueConsumer, wanted: RecordFilter | None, window: LogWindow
    ) -> None:
        self.consumer = consumer
        self.filter = wanted
        self.offset = 0  # of the record to look at next
        self.asked = 0  # the offset that the client named: nothing below it is delivered
        self.waits = False  # for a device
        self.window = window  # what was read last, perhaps shared; deliveries go on from there


class Stream(OpenQueue):
    """One stream of a virtual host, open."""

    settles_in_log = False  # it stays for others

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
        self._ready: dict[Cursor, None] = {}  # who may have something to get, in order of service
        self._nothing = LogWindow(log)  # what cursors hold that have not read or caught up
        self._shared: deque[LogWindow] = deque(maxlen=SHARED_WINDOWS_MAX)
        self._errors = ErrorThrottle(self, services.report)
        self._held_up = False  # whether somebody waits for what other queues' consumers take, too

    def reconfigure(self, settings: QueueSettings) -> None:
        """Keep as much as these settings say from now on."""
        super().reconfigure(settings)
        if not self.deleted:
            self.log.retention = settings.retention

    # -- what it holds

    @property
    def first(self) -> int:
        """Offset of the oldest record that is kept."""
        settled = self.log.settled
        return next(iter(settled))[1] if settled.first == 0 else 0

    @property
    def message_count(self) -> int:
        """Messages that a new consumer could read, those gathered in this turn included."""
        return self.builder.count + self.log.end - self.log.settled.count

    @property
    def leased_count(self) -> int:
        """Nothing: what consumers hold is there for all others as well."""
        return 0

    @property
    def consumer_count(self) -> int:
        """Consumers, whether or not they can take anything now."""
        return len(self._cursors)

    @property
    def held_bytes(self) -> int:
        """See OpenQueue. What several consumers share counts once."""
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
        """Whoever comes may read."""
        return True

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:  # noqa: ARG002
        """Let `consumer` read what its arguments ask for; they have been checked."""
        cursor = self._cursors[consumer] = Cursor(
            consumer, record_filter(consumer.arguments, self._turn.is_over), self._nothing
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
        """Deliver nothing more to `consumer`."""
        cursor = self._cursors.pop(consumer)
        self._ready.pop(cursor, None)
        if cursor.filter is not None:
            self.searches = any(other.filter is not None for other in self._cursors.values())

    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """A consumer can take more: this one, or any."""
        if consumer is None:
            woken = list(self._cursors.values())
        else:
            cursor = self._cursors.get(consumer)
            woken = [] if cursor is None else [cursor]
        self._ready.update((cursor, None) for cursor in woken if not cursor.waits)
        if self._ready:
            self._turn.touch(self)

    def pump(self) -> bool:
        """Let cursors move on in turn. Returns whether another turn could do more."""
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
            return 0  # it says when it can take more
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
            return 0  # it goes on when they have come
        self._deliver(cursor, batches, min(stop, batches[-1].stop_offset), capacity)
        return cursor.offset - begin

    def _kept_from(self, offset: int) -> tuple[int, int] | None:
        """The next run of records at or behind `offset` that can be read."""
        committed = self.log.committed
        if offset >= committed:
            return None
        return next(iter(self.log.settled.gaps(offset, committed)), None)

    def _deliver(self, cursor: Cursor, batches: list[Batch], stop: int, capacity: int) -> None:
        """Send what is wanted before `stop`, at most `capacity` records, in one run."""
        first = cursor.offset
        if cursor.filter is not None:
            first, stop = cursor.filter.run(batches, first, stop)
        stop = min(stop, first + capacity)
        cursor.offset = stop
        if first < stop:
            cursor.offset = cursor.consumer.send(batches, first, stop, redelivered=False)

    # -- reading

    def _window(self, cursor: Cursor) -> list[Batch] | None:
        """Batches from the cursor's place on; None after asking for them where not at hand."""
        offset = cursor.offset
        for window in (cursor.window, *self._shared):
            if window.holds(offset):
                cursor.window = window
                return window.at_hand(offset)
        window = LogWindow(self.log)
        try:
            batches = window.at_hand(offset)
        except StorageError:
            batches = None  # whoever fetches meets it again, and deals with it
        if batches is None:
            self._wait_for(cursor, self._fetch(cursor, window))
        else:
            self._share(cursor, window)
        return batches

    def _share(self, cursor: Cursor, window: LogWindow) -> None:
        cursor.window = window
        self._shared.appendleft(window)

    def _wait_for(self, cursor: Cursor, work: Coroutine[object, object, None]) -> None:
        """Let the cursor rest until something has come from a device."""
        cursor.waits = True
        self._spawn(self._resume(cursor, work))

    async def _resume(self, cursor: Cursor, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except StorageError as error:
            self._errors.report(error)
            return  # it goes on when it is woken the next time
        finally:
            cursor.waits = False
        self.wake(cursor.consumer)

    async def _find_time(self, cursor: Cursor, time_ms: int) -> None:
        """Move to the first record that came at `time_ms` or later."""
        try:
            cursor.offset = await self.log.offset_at(time_ms)
        except StorageError as error:
            cursor.offset = self.first  # rather too much than too little
            self._errors.report(error)

    async def _fetch(self, cursor: Cursor, window: LogWindow) -> None:
        """Read at the cursor's place, unless that was given up meanwhile."""
        settled = self.log.settled
        if cursor.offset in settled:
            return
        try:
            await window.fill(cursor.offset)
        except CorruptBatchError:
            if cursor.offset in settled:
                return
            await self._set_aside(cursor.offset)
            if self.deleted or cursor.offset in settled:
                return
            await window.fill(cursor.offset)
        self._share(cursor, window)
        self._errors.end()

    async def _set_aside(self, offset: int) -> None:
        """Give up what can be read no more, and say so."""
        damage = await self.log.set_aside(offset)
        if self.deleted:
            return
        self.log.settle(list(damage.lost))
        if damage.lost or damage.kept:
            self._errors.report(loss_error(damage.lost, damage.kept))

    # -- settling: credit is the consumer's business, and the record stays

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Nothing changes."""

    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
    ) -> None:
        """Nothing changes: nobody gets a record twice without asking."""

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Nothing changes."""

    # -- the end

    def mark_deleted(self) -> None:
        """Nothing more happens here: publishers hear yes, consumers that the stream is gone."""
        self._let_publishers_go()
        self._shared.clear()
        self._ready.clear()
        consumers = list(self._cursors)
        self._cursors.clear()
        self._errors.close()
        say_farewell(self._turn, consumers)
