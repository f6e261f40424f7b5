"""A queue some of whose consumers want only what passes their filters.

Made for a queue when the first such consumer comes, and given up with the last: until then nothing
of this costs anything. It takes the place of the queue's usual round of offers. In each line of
equal priority everybody takes a step in turn: who takes everything is offered the lowest ready
offsets, who has a filter looks at a stretch of the backlog from its own place on (`Search`), and
takes what it wants of it. Lower priorities come after the higher ones have nothing left to look at.

Looking reads ahead of what is delivered, in windows that searches at the same place share. What a
turn looks at is bounded, so that a long backlog keeps neither other queues nor sockets waiting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from leveret.core.filtering.arguments import FILTER_SQL, FILTER_TAGS, FILTER_UNMATCHED, SKIP
from leveret.core.filtering.search import Search
from leveret.core.logs.window import LogWindow
from leveret.core.names import resource
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX
from leveret.core.queues.sending import count
from leveret.errors import ChannelError, StorageError
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.filtering.filters import RecordFilter
    from leveret.core.filtering.search import Stretch
    from leveret.core.queues.open_queue import OpenQueue, QueueConsumer
    from leveret.core.queues.queue import Queue
    from leveret.core.queues.sending import Runs
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

Wanted: TypeAlias = tuple[Any, ...]  # what a consumer's arguments say of its filter

FILTER_ARGUMENTS = (FILTER_TAGS, FILTER_SQL, FILTER_UNMATCHED)

# What was read last stays at hand, also for searches that are somewhere else: 256 KiB each.
WINDOWS_MAX = 4
# Searches that are kept for whoever comes again.
IDLE_SEARCHES_MAX = 16
# Looking at a record that compiled code passes over takes this part of what delivering takes. Those
# that Python judges take what they take: the turn's clock is looked at.
LOOKS_PER_DELIVERY = 8


class FilteredDelivery:
    """The searches of one queue's consumers, and the rounds in which they are served.

    Consumers with the same filter share a search: what one of them does not want, no other does. A
    few searches are kept when their last consumer has gone, for the next one: whoever pulls comes
    again and again.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._machine = queue.machine
        self._searches: dict[Wanted, Search] = {}  # whoever came last, last
        self._taking: dict[QueueConsumer, Search] = {}
        self._windows: deque[LogWindow] = deque(maxlen=WINDOWS_MAX)
        self._delivered = 0  # in this turn
        self.is_held_up = False  # whether somebody waits for what other queues' consumers take, too
        self._next: QueueConsumer | None = None  # whose turn it is where the last turn was over
        self._machine.ledger.came_back = RangeSet()

    # -- who looks

    def add(self, consumer: QueueConsumer, wanted: RecordFilter) -> None:
        """Give a consumer its place: before everything that is ready, unless others have looked."""
        arguments = consumer.arguments
        key = tuple(arguments.get(name) for name in FILTER_ARGUMENTS)
        skips = arguments.get(FILTER_UNMATCHED) == SKIP
        search = self._searches.pop(key, None) or Search(wanted, skips=skips)
        self._searches[key] = self._taking[consumer] = search
        self._let_go()

    def remove(self, consumer: QueueConsumer) -> bool:
        """Let a consumer go. Returns whether others are left that look."""
        self._taking.pop(consumer, None)
        self._let_go()
        if not self._taking:
            self._windows.clear()
        return bool(self._taking)

    def _let_go(self) -> None:
        """Keep as many searches that nobody needs as are worth it."""
        needed = set(map(id, self._taking.values()))
        idle = [key for key, search in self._searches.items() if id(search) not in needed]
        for key in idle[: max(len(idle) - IDLE_SEARCHES_MAX, 0)]:
            del self._searches[key]

    def looks_on(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer has not looked at everything yet."""
        search = self._taking.get(consumer)
        return search is not None and search.next(self._machine.ledger) is not None

    # -- a turn

    def pump(self) -> tuple[int, bool]:
        """Serve everybody: (records sent, whether another turn could do more)."""
        self._note_returns()
        self._delivered = 0
        self.is_held_up = False
        left = PUMP_RECORDS_MAX
        lines: list[list[QueueConsumer]] = self._machine.lines  # type: ignore[assignment]
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
                break  # what it may want is not for those behind it
        if not self._machine.ready_count:
            self._queue.reader.clear()
        if self._windows and self._is_caught_up:
            self._windows.clear()
        return self._delivered, False

    def _serve_line(self, line: list[QueueConsumer]) -> int:
        """Let everybody of one priority take a step, as far as the turn's time lasts.

        Returns the cost in deliveries; 0: there was nothing to do. Where time was over before all
        had their step, `_next` is who comes first in the next turn.
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
        """Whether everybody has looked at everything."""
        ledger = self._machine.ledger
        return all(search.next(ledger) is None for search in self._searches.values())

    def _note_returns(self) -> None:
        """What came back since the last turn is looked at again by everybody."""
        returned = self._machine.ledger.came_back
        if returned is None:  # too much to be told
            for search in self._searches.values():
                search.start_over()
            self._machine.ledger.came_back = RangeSet()
        elif returned:
            for search in self._searches.values():
                search.came_back(returned)
            returned.clear()

    def _waits(self, consumer: QueueConsumer) -> bool:
        search = self._taking.get(consumer)
        return self._queue.reader.fetching if search is None else search.waits

    def _serve(self, consumer: QueueConsumer) -> int:
        """Let one consumer take a step. Returns its cost in deliveries; 0: there was none."""
        capacity = consumer.capacity()
        if capacity <= 0:
            self.is_held_up = self.is_held_up or capacity < 0
            return 0
        search = self._taking.get(consumer)
        if search is None:
            return self._offer(consumer)
        if search.waits:
            return 0
        stretch = search.next(self._machine.ledger)
        if stretch is None:
            return 0
        batches = self._batches(search, stretch.first)
        return 0 if batches is None else self._look(consumer, capacity, search, stretch, batches)

    def _offer(self, consumer: QueueConsumer) -> int:
        """Give what comes first to a consumer that takes everything."""
        offer = self._machine.offer_to(consumer)
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
        search: Search,
        stretch: Stretch,
        batches: list[Batch],
    ) -> int:
        """Look at what of a stretch is at hand, and deliver what is wanted."""
        _, ready, first, stop = stretch
        limit = self._machine.share(consumer, capacity, stop - first)
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
        """What is left of a stretch counts as consumed by whoever did not want it."""
        unwanted = list(ready.gaps(first, stop).gaps(first, stop))
        if unwanted:
            self._queue.log.settle(self._machine.lose(unwanted))

    # -- sending

    def _deliver(
        self, consumer: QueueConsumer, runs: Runs, batches: list[Batch], reached: int
    ) -> int:
        """Send runs of wanted records. Returns how far all was dealt with: `reached`, or less."""
        for run, redelivered in self._alike(self._queue.alive(runs, batches)):
            sent = self._queue.send_runs(consumer, run, batches, redelivered=redelivered)
            self._delivered += count(sent)
            stop = sent[-1][1] if sent else run[0][0]
            if stop < run[-1][1]:
                return stop
        return reached

    def _alike(self, runs: Runs) -> list[tuple[Runs, bool]]:
        """Gather runs that follow each other by whether they were delivered before."""
        ledger = self._machine.ledger
        found: list[tuple[Runs, bool]] = []
        for first, stop in runs:
            at = first
            while at < stop:
                end, redelivered = ledger.kind(at, stop)
                if not found or found[-1][1] != redelivered:
                    found.append(([], redelivered))
                found[-1][0].append((at, end))
                at = end
        return found

    # -- reading

    def _batches(self, search: Search, offset: int) -> list[Batch] | None:
        """Batches of which one holds `offset`; None after asking for it where it is not at hand."""
        for window in self._windows:
            if window.holds(offset):
                return window.at_hand(offset)
        window = LogWindow(self._queue.log)
        try:
            batches = window.at_hand(offset)
        except StorageError:
            batches = None  # whoever fetches meets it again, and deals with it
        if batches is None:
            search.waits = True
            self._queue.services.spawn(self._fetch(search, window, offset))
        else:
            self._windows.appendleft(window)
        return batches

    async def _fetch(self, search: Search, window: LogWindow, offset: int) -> None:
        queue = self._queue
        try:
            if await queue.reader.fill(window, offset):
                self._windows.appendleft(window)
        except StorageError as error:
            queue.reader.errors.report(error)
            return  # it goes on when the queue is touched the next time
        finally:
            search.waits = False
        queue.touch()


def check_filterable(queue: OpenQueue, arguments: Arguments) -> None:
    """Raise 406 for a filter on a queue whose messages wait for others of their group.

    Who passes over a group's first message would take the second out of its order.
    """
    if queue.settings.group_ordering:
        for key in (FILTER_TAGS, FILTER_SQL):
            if key in arguments:
                name = resource("queue", queue.name, queue.definition.vhost)
                raise ChannelError(406, f"invalid arg '{key}' for {name}: it keeps groups in order")
