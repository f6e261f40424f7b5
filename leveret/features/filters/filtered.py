"""Delivery for a queue with filtering consumers.

Created when the first such consumer comes; it delivers while there is one, so that other queues pay
nothing. It replaces the queue's usual round of offers. In each line of equal priority, consumers
take steps in turn: one without a filter is offered the lowest ready offsets, one with a filter
scans a range of the backlog from its own position on (`FilterScan`), and takes what matches. Lower
priorities are served when the higher ones have nothing left to scan.

Scanning reads ahead of deliveries, in windows shared by searches at the same position. The scan of
a turn is bounded, so that a long backlog delays neither other queues nor sockets.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from leveret.core.logs.window import LogWindow
from leveret.core.names import resource
from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX
from leveret.core.queues.sending import count
from leveret.errors import ChannelError, StorageError
from leveret.features.filters.rules import (
    FILTER_SQL,
    FILTER_TAGS,
    FILTER_UNMATCHED,
    SKIP,
    record_filter,
)
from leveret.features.filters.search import FilterScan
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.core.queues.sending import Runs
    from leveret.features.filters.search import ScanRange
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

Wanted: TypeAlias = tuple[Any, ...]  # the arguments of a consumer's filter

FILTER_ARGUMENTS = (FILTER_TAGS, FILTER_SQL, FILTER_UNMATCHED)

# Recently read windows kept in memory, also for searches at other positions: 256 KiB each.
WINDOWS_MAX = 4
# Searches kept for consumers that come again.
IDLE_SEARCHES_MAX = 16
# Scanning a record in compiled code takes this fraction of a delivery. The time of records
# evaluated in Python is measured by the turn's clock instead.
LOOKS_PER_DELIVERY = 8


class ConsumerFilters(ExtensionKind):
    """Filters of the consumers of a node's queues."""

    def follow(
        self,
        queue: Queue,
        present: FilteredDelivery | None,
        demand: Demand,
    ) -> FilteredDelivery | None:
        """See ExtensionKind. A queue that had a filtering consumer keeps its searches."""
        consumer = demand.consumer
        if present is not None or consumer is None or record_filter(consumer.arguments) is None:
            return present
        return FilteredDelivery(queue)


class FilteredDelivery(QueueExtension):
    """Searches of one queue's consumers, and the rounds that serve them.

    Consumers with the same filter share a search: what does not match for one does not for the
    others. A few searches are kept when their last consumer has left, for the next one: pulling
    clients come again and again.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._state = queue.state
        self._searches: dict[Wanted, FilterScan] = {}  # most recently used last
        self._taking: dict[QueueConsumer, FilterScan] = {}
        self._windows: deque[LogWindow] = deque(maxlen=WINDOWS_MAX)
        self._delivered = 0  # in this turn
        self.is_held_up = False  # whether a consumer waits for capacity shared with other queues
        self._next: QueueConsumer | None = None  # who is served first in the next turn
        self._state.track_returns()

    # -- searches

    @property
    def delivers(self) -> bool:  # type: ignore[override]
        """Whether a consumer has a filter."""
        return bool(self._taking)

    def consumer_added(self, consumer: QueueConsumer) -> None:
        """Start the search of a consumer with a filter, or continue one of the same filter.

        A new search starts at the head.
        """
        arguments = consumer.arguments
        wanted = record_filter(arguments, self._queue.services.turn.is_over) if arguments else None
        if wanted is None:
            return
        key = tuple(arguments.get(name) for name in FILTER_ARGUMENTS)
        skips = arguments.get(FILTER_UNMATCHED) == SKIP
        search = self._searches.pop(key, None) or FilterScan(wanted, skips=skips)
        self._searches[key] = self._taking[consumer] = search
        self._drop_idle()

    def consumer_removed(self, consumer: QueueConsumer) -> None:
        """End the search of a consumer; some are kept for the next ones."""
        self._taking.pop(consumer, None)
        self._drop_idle()
        if not self._taking:
            self._windows.clear()

    def _drop_idle(self) -> None:
        """Drop unused searches beyond IDLE_SEARCHES_MAX, the least recently used first."""
        needed = set(map(id, self._taking.values()))
        idle = [key for key, search in self._searches.items() if id(search) not in needed]
        for key in idle[: max(len(idle) - IDLE_SEARCHES_MAX, 0)]:
            del self._searches[key]

    def may_offer(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer's search has not reached the end."""
        search = self._taking.get(consumer)
        return search is not None and search.next(self._state) is not None

    # -- a turn

    def pump(self) -> tuple[int, bool]:
        """Serve all consumers. Returns (records sent, whether another turn could do more)."""
        self._note_returns()
        self._delivered = 0
        self.is_held_up = False
        left = PUMP_RECORDS_MAX
        lines: list[list[QueueConsumer]] = self._state.lines  # type: ignore[assignment]
        for line in lines:
            while left > 0:
                cost = self._serve_line(line)
                if not cost:
                    break
                left -= cost
                if self._queue.services.turn.is_over():
                    return self._delivered, True
            if left <= 0:
                return self._delivered, True
            if any(self._waits(consumer) for consumer in line):
                break  # what they may match is not for lower priorities
        if not self._state.ready_count:
            self._queue.reader.clear()
        if self._windows and self._is_caught_up:
            self._windows.clear()
        return self._delivered, False

    def _serve_line(self, line: list[QueueConsumer]) -> int:
        """Give each consumer of one priority a step, as far as the turn's time lasts.

        Returns the cost in deliveries; 0 if there was nothing to do. If the time ended early,
        `_next` comes first in the next turn.
        """
        begin = line.index(self._next) if self._next in line else 0
        self._next = None
        cost = 0
        for consumer in (*line[begin:], *line[:begin]):
            if cost and self._queue.services.turn.is_over():
                self._next = consumer
                break
            cost += self._serve(consumer)
        return cost

    @property
    def _is_caught_up(self) -> bool:
        """Whether all searches have reached the end."""
        return all(search.next(self._state) is None for search in self._searches.values())

    def _note_returns(self) -> None:
        """Have all searches scan the offsets again that were returned since the last turn."""
        returned = self._state.take_returned()
        if returned == []:
            return
        for search in self._searches.values():
            if returned is None:
                search.start_over()
            else:
                search.came_back(returned)

    def _waits(self, consumer: QueueConsumer) -> bool:
        search = self._taking.get(consumer)
        return self._queue.reader.fetching if search is None else search.waits

    def _serve(self, consumer: QueueConsumer) -> int:
        """Give one consumer a step. Returns its cost in deliveries; 0 if it had none."""
        capacity = consumer.capacity()
        if capacity <= 0:
            self.is_held_up = self.is_held_up or capacity < 0
            return 0
        search = self._taking.get(consumer)
        if search is None:
            return self._offer(consumer, capacity)
        if search.waits:
            return 0
        stretch = search.next(self._state)
        if stretch is None:
            return 0
        batches = self._batches(search, stretch.first)
        return 0 if batches is None else self._look(consumer, capacity, search, stretch, batches)

    def _offer(self, consumer: QueueConsumer, capacity: int) -> int:
        """Offer the next records to a consumer without a filter."""
        offer = self._state.offer_to(consumer, capacity)
        batches = None if offer is None else self._queue.reader.read(offer.first)
        if offer is None or batches is None:
            return 0
        sent = self._queue.deliver(offer, batches)
        self._delivered += sent
        return sent

    def _look(
        self,
        consumer: QueueConsumer,
        capacity: int,
        search: FilterScan,
        stretch: ScanRange,
        batches: list[Batch],
    ) -> int:
        """Scan the part of a range that is in memory, and deliver what matches."""
        _, ready, first, stop = stretch
        limit = self._state.share(consumer, capacity, stop - first)
        wanted = search.filter
        runs, reached = wanted.find(batches, ready, first, stop, limit)
        feature_counters = self._queue.services.feature_counters
        feature_counters.filter_looks += reached - first
        feature_counters.filter_finds += count(runs)
        cost = (reached - first) // LOOKS_PER_DELIVERY + 1 - self._delivered
        if runs:
            reached = self._deliver(consumer, runs, batches, reached)
        search.looked(stretch, reached)
        if search.skips:
            self._skip(ready, first, reached)
        return cost + self._delivered

    def _skip(self, ready: RangeSet, first: int, stop: int) -> None:
        """Settle the unmatched records of a range, for a consumer that skips them."""
        unwanted = ready.gaps(first, stop).gaps(first, stop)
        if unwanted:
            self._queue.lose(unwanted)

    # -- sending

    def _deliver(
        self, consumer: QueueConsumer, runs: Runs, batches: list[Batch], reached: int
    ) -> int:
        """Send runs of matching records. Returns how far all was handled: `reached`, or less."""
        for run, redelivered in self._alike(self._queue.alive(runs, batches)):
            sent = self._queue.send_runs(consumer, run, batches, redelivered=redelivered)
            self._delivered += count(sent)
            stop = sent[-1][1] if sent else run[0][0]
            if stop < run[-1][1]:
                return stop
        return reached

    def _alike(self, runs: Runs) -> list[tuple[Runs, bool]]:
        """Group consecutive runs by whether they were delivered before."""
        found: list[tuple[Runs, bool]] = []
        for first, stop in runs:
            at = first
            while at < stop:
                end, redelivered = self._state.alike(at, stop)
                if not found or found[-1][1] != redelivered:
                    found.append(([], redelivered))
                found[-1][0].append((at, end))
                at = end
        return found

    # -- reading

    def _batches(self, search: FilterScan, offset: int) -> list[Batch] | None:
        """Return batches, one of them with `offset`; None after starting a device read for it."""
        for window in self._windows:
            if window.holds(offset):
                return window.at_hand(offset)
        window = LogWindow(self._queue.log)
        try:
            batches = window.at_hand(offset)
        except StorageError:
            batches = None  # the fetch finds the damage again and handles it
        if batches is None:
            search.waits = True
            self._queue.services.spawn(self._fetch(search, window, offset))
        else:
            self._windows.appendleft(window)
        return batches

    async def _fetch(self, search: FilterScan, window: LogWindow, offset: int) -> None:
        queue = self._queue
        try:
            if await queue.reader.fill(window, offset):
                self._windows.appendleft(window)
        except StorageError as error:
            queue.reader.errors.report(error)
            return  # continues when the queue is touched the next time
        finally:
            search.waits = False
        queue.touch()


def check_filterable(queue: DeclaredQueue, arguments: Arguments) -> None:
    """Raise 406 for a filter on a queue with message groups.

    Skipping the first message of a group would deliver the second out of order.
    """
    if queue.settings.group_ordering:
        for key in (FILTER_TAGS, FILTER_SQL):
            if key in arguments:
                name = resource("queue", queue.name, queue.definition.vhost)
                raise ChannelError(406, f"invalid arg '{key}' for {name}: it keeps groups in order")
