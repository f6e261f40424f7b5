"""Stream: records stay in the log, and any number of consumers read them independently.

The second kind of queue beside `Queue`, with the same callers. The state (`StreamState`) decides
who reads what next. Nothing is leased: acknowledgements of any kind only give credit. Records
removed by retention or lost are settled in the log; cursors skip them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.log_restore import RETRY_MS, LogRestore
from leveret.core.logs.log_scan import LogScan, quarantine
from leveret.core.logs.window import LogWindow
from leveret.core.queues.consumer import QueueConsumer, say_farewell
from leveret.core.queues.extensions import Demand
from leveret.core.queues.open_queue import OPEN_QUEUE_SLOTS, PUMP_RECORDS_MAX, OpenQueue
from leveret.core.queues.stream_state import StreamState
from leveret.core.settings.stream_offsets import (
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

    from leveret.core.queues.extensions import ExtensionKind
    from leveret.core.queues.offers import Deliver
    from leveret.core.queues.open_queue import PartOf
    from leveret.core.queues.services import QueueServices, StreamFilter
    from leveret.core.settings.discard_reasons import Reason
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch

# Recently read windows stay in memory for consumers close to each other: otherwise a hundred of
# them at the same position would read it a hundred times.
SHARED_WINDOWS_MAX = 4


class StreamReader:
    """Reading of the log for one consumer."""

    __slots__ = ("filter", "window")

    def __init__(self, wanted: StreamFilter | None, window: LogWindow) -> None:
        self.filter = wanted
        self.window = window  # window read last, possibly shared; its deliveries continue there


class Stream(OpenQueue):
    """An open stream of a virtual host."""

    __slots__ = (
        *OPEN_QUEUE_SLOTS,
        "_empty_window",
        "_errors",
        "_extensions",
        "_readers",
        "_shared",
        "_wall_ms",
        "state",
    )

    settles_in_log = False  # records stay for other consumers

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        log: TopicLog,
        services: QueueServices,
        *,
        part_of: PartOf | None = None,
    ) -> None:
        super().__init__(definition, settings, None, log, services, part_of=part_of)
        self._wall_ms = services.timers.wall_ms
        log.require_copies(settings.copies_min, waits=settings.waits_for_copies)
        self.state = StreamState(log.committed)
        self._readers: dict[QueueConsumer, StreamReader] = {}
        self._empty_window = LogWindow(log)  # shared by readers that hold nothing
        self._shared: deque[LogWindow] = deque(maxlen=SHARED_WINDOWS_MAX)
        self._errors = ErrorThrottle(self, services.report)
        self._extend(Demand(opening=True))
        if any(extension.recovers for extension in self._extensions):
            self._begin_recovery()

    def _begin_recovery(self) -> None:
        self._spawn(self._recover())

    async def _recover(self) -> None:
        """Let extensions restore what an earlier run has left; until then publishers wait."""
        try:
            first = await self.recover_extensions()
        except StorageError as error:
            self._errors.report(error)
            self.services.timers.after(RETRY_MS, self._begin_recovery)
            return
        if first is None:
            self.log_scanned()
            return
        scan = LogScan(self.log, self._errors.report, self.lose, first=first, all_from=first)
        LogRestore(self, self.services, scan, self.scanned, self.log_scanned).start()

    def _extension_kinds(self) -> Sequence[ExtensionKind]:
        return [kind for kind in self.services.extensions if kind.for_streams]

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, retention included."""
        super().reconfigure(settings)
        if not self.deleted:
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
        own = self.state.consumer_count
        return own + sum(each.consumer_count for each in self._extensions)

    @property
    def held_bytes(self) -> int:
        """Estimated memory in bytes, see OpenQueue. Shared windows count once."""
        windows = {*self._shared, *(reader.window for reader in self._readers.values())}
        read = [batch for window in windows for batch in window.held]
        peek = self.log.peek
        return super().held_bytes + sum(
            batch.size for batch in read if peek(batch.base_offset) is not batch
        )

    # -- publishing

    def _show_committed(self) -> None:
        self.state.commit(self.log.committed)
        for extension in self._extensions:
            extension.committed()

    def _forget_uncommitted(self) -> None:
        self.state.truncate(self.log.end)
        super()._forget_uncommitted()

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:  # noqa: ARG002  # it means nothing here
        """Whether `add_consumer` may be called: always."""
        return True

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:  # noqa: ARG002
        """Add `consumer` at the position its validated arguments ask for."""
        wanted = self.services.stream_filter(consumer.arguments, self._turn.is_over)
        self._readers[consumer] = StreamReader(wanted, self._empty_window)
        self.searches = self.searches or wanted is not None
        state = self.state
        match parse_start(consumer.arguments.get(STREAM_OFFSET, Place.NEXT.value)):
            case FromOffset(offset):
                state.add_consumer(consumer, offset, least=offset)
            case FromTime(time_ms):
                self._add_at_time(consumer, time_ms)
            case FromAge(age_ms):
                self._add_at_time(consumer, max(self._wall_ms() - age_ms, 0))
            case Place.FIRST:
                state.add_consumer(consumer, self.first)
            case place:
                end = self.log.end + self.builder.count
                state.add_consumer(consumer, max(end - (place is Place.LAST), 0))
        self.wake(consumer)

    def _add_at_time(self, consumer: QueueConsumer, time_ms: int) -> None:
        """Add a consumer that begins with the first record stored at `time_ms` or later."""
        self.state.add_consumer(consumer, 0)
        self._wait_for(consumer, self._find_time(consumer, time_ms))

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove `consumer`; nothing more is delivered to it."""
        self.state.remove_consumer(consumer)
        if self._readers.pop(consumer).filter is not None:
            self.searches = any(each.filter is not None for each in self._readers.values())

    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """Note that this consumer, or any, may have more capacity."""
        self.state.wake(consumer)
        if self.state.has_next:
            self._turn.touch(self)

    def pump(self) -> bool:
        """Advance cursors round-robin. Returns whether another turn could do more."""
        passed = 0
        if self.settings.is_paused:
            return False
        state = self.state
        state.begin_round()
        while passed < PUMP_RECORDS_MAX and not (passed and self.searches and self._turn.is_over()):
            consumer: QueueConsumer | None = state.next()  # type: ignore[assignment]  # added so
            if consumer is None:
                break
            passed += self._advance(consumer)
        self._note_pump(delivered=passed > 0, held_up=state.is_held_up)
        return state.has_next

    def _advance(self, consumer: QueueConsumer) -> int:
        """Deliver the next records from one window. Returns how many the cursor has passed."""
        state, reader = self.state, self._readers[consumer]
        capacity = consumer.capacity()
        offer = state.credit(consumer, capacity, self.log.settled)
        if offer is None:
            if capacity > 0:  # it has read everything
                reader.window = self._empty_window
                if not state.has_next:
                    self._shared.clear()
            return 0
        batches = self._window(consumer, reader, offer.first)
        if batches is None:
            return 0  # continues when the read has completed
        return state.deliver(offer, self._send(offer, batches, reader.filter))

    def _send(self, offer: Deliver, batches: list[Batch], wanted: StreamFilter | None) -> int:
        """Send matching records of an offer as one run. Returns the first offset not passed."""
        first, stop = offer.first, min(offer.stop, batches[-1].stop_offset)
        if wanted is not None:
            first, stop = wanted.run(batches, first, stop)
        stop = min(stop, first + offer.limit)
        if first == stop:
            return stop
        consumer: QueueConsumer = offer.consumer  # type: ignore[assignment]  # by add_consumer
        return consumer.send(batches, first, stop, redelivered=False)

    # -- reading

    def _window(
        self, consumer: QueueConsumer, reader: StreamReader, offset: int
    ) -> list[Batch] | None:
        """Return the batches from `offset` on; None after starting a read for them."""
        for window in (reader.window, *self._shared):
            if window.holds(offset):
                reader.window = window
                return window.at_hand(offset)
        window = LogWindow(self.log)
        try:
            batches = window.at_hand(offset)
        except StorageError:
            batches = None  # the fetch finds the damage again and handles it
        if batches is None:
            self._wait_for(consumer, self._fetch(reader, window, offset))
        else:
            self._share(reader, window)
        return batches

    def _share(self, reader: StreamReader, window: LogWindow) -> None:
        reader.window = window
        self._shared.appendleft(window)

    def _wait_for(self, consumer: QueueConsumer, work: Coroutine[object, object, None]) -> None:
        """Suspend a consumer until a device read completes."""
        self.state.suspend(consumer)
        self._spawn(self._resume(consumer, work))

    async def _resume(self, consumer: QueueConsumer, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except StorageError as error:
            self._errors.report(error)
            return  # continues when it is woken the next time
        finally:
            self.state.resume(consumer)
        self.wake(consumer)

    async def _find_time(self, consumer: QueueConsumer, time_ms: int) -> None:
        """Move a cursor to the first record stored at `time_ms` or later."""
        try:
            offset = await self.log.offset_at(time_ms)
        except StorageError as error:
            offset = self.first  # deliver too much rather than too little
            self._errors.report(error)
        self.state.seek(consumer, offset)

    async def _fetch(self, reader: StreamReader, window: LogWindow, offset: int) -> None:
        """Read the batches at `offset`, unless it was settled meanwhile."""
        settled = self.log.settled
        if offset in settled:
            return
        try:
            await window.fill(offset)
        except CorruptBatchError:
            if offset in settled:
                return
            await quarantine(self.log, offset, self._errors.report, self.lose)
            if self.deleted or offset in settled:
                return
            await window.fill(offset)
        self._share(reader, window)
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
        self._close_publishing()
        self._close_extensions()
        self._shared.clear()
        consumers = list(self._readers)
        self._readers.clear()
        self.state.clear()
        self._errors.close()
        say_farewell(self._turn, consumers)
