"""Account of the journals: what is missing, out of order, early, half there, or there twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.harness.cluster_load.journal import (
    ACKED,
    CONFIRMED,
    CONNECTED,
    ERROR,
    GOT,
    REFUSED,
    SENT,
    STRANGE,
    read_journals,
)
from tests.harness.cluster_load.topology import (
    JAVA,
    LATE,
    LEFT,
    MAILS,
    OF_EACH,
    PLAIN,
    TX,
    VIEWS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.harness.cluster_load.journal import Event

DRAIN = "drain"
QUEUES_OF = {"pika": (PLAIN,), "aio-pika": (PLAIN,), "mails": (MAILS,), "late": (LATE,)}
QUEUES_OF |= {"java": (JAVA,), TX: (LEFT, VIEWS)}
TOLD_CONNECTIONS = ("pika", "mails", TX)  # publishers that tell of each of their connections
CLOCK_MS = 2  # the broker counts whole milliseconds
SHOWN = 20


class MessageKey(NamedTuple):
    queue: str
    publisher: str
    number: int
    place: int = 0  # in its transaction


class LoadAccount:
    """Account of what the clients of a directory have seen until now."""

    def __init__(self, directory: Path) -> None:
        self.events = read_journals(directory)
        self.sent: set[tuple[str, int]] = set()
        self.confirmed: dict[tuple[str, int], float] = {}  # when
        self.due: dict[tuple[str, int], int] = {}
        self.refused: set[tuple[str, int]] = set()
        self.got: dict[MessageKey, list[Event]] = defaultdict(list)
        self.settled: set[MessageKey] = set()
        self.errors: Counter[str] = Counter()
        self._connected: Counter[str] = Counter()
        self._connection: dict[tuple[str, int], int] = {}  # on which of its client's it was sent
        for event in self.events:
            self._take(event)

    def _take(self, event: Event) -> None:
        message = event.publisher, event.number
        if event.kind == SENT:
            self._take_sent(event)
        elif event.kind == CONFIRMED:
            self.confirmed[message] = event.at
        elif event.kind == REFUSED:
            self.refused.add(message)
        elif event.kind in (GOT, ACKED):
            key = key_of(event)
            if event.kind == GOT:
                self.got[key].append(event)
            if event.kind == ACKED or event.client == DRAIN:
                self.settled.add(key)
        elif event.kind == CONNECTED:
            self._connected[event.client] += 1
        elif event.kind in (ERROR, STRANGE):
            self.errors[f"{event.client}: {event.more[0].rstrip(':')}"] += 1

    def _take_sent(self, event: Event) -> None:
        message = event.publisher, event.number
        self.sent.add(message)
        if event.publisher in TOLD_CONNECTIONS:
            self._connection[message] = self._connected[event.client]
        if event.publisher == LATE:
            self.due[message] = int(event.more[0])

    def expected(self) -> Iterable[MessageKey]:
        """Return all that is confirmed, in each of its queues."""
        for publisher, number in self.confirmed:
            for queue in QUEUES_OF[publisher]:
                for place in range(OF_EACH if publisher == TX else 1):
                    yield MessageKey(queue, publisher, number, place)

    def missing(self) -> list[MessageKey]:
        """Return what is confirmed, and was neither acknowledged nor drained."""
        return sorted(key for key in self.expected() if key not in self.settled)

    def problems(self) -> list[str]:
        """Return all that must not be."""
        return [
            *told("confirmed, and missing", self.missing()),
            *told("never sent", [key for key in self.got if key[1:3] not in self.sent]),
            *told("not in the order of publishing", self._out_of_order()),
            *told("half a transaction", self._half()),
            *told("early", self._early()),
            *told("stored twice in the stream", self._stored_twice()),
            *told("not in the order of the stream", self._offsets_out_of_order()),
        ]

    def _firsts(self, queue: str) -> list[tuple[MessageKey, Event]]:
        """Return the first delivery of each message of a queue, in the order of time.

        All messages of the stream are drained, although they were read.
        """
        found = [(key, events[0]) for key, events in self.got.items() if key.queue == queue]
        return sorted(found, key=lambda one: one[1].at)

    def _out_of_order(self) -> list[str]:
        """Return messages that come after later ones although they were before them for sure.

        What was not confirmed may be stored at any later time, if its connection is not the one of
        what came first: the node that passes it on may have been stopped meanwhile.
        """
        wrong = []
        for queue in (PLAIN, MAILS, LEFT, VIEWS, JAVA):
            last: dict[str, tuple[MessageKey, Event]] = {}
            for key, event in self._firsts(queue):
                before = last.get(key.publisher)
                if before is None or before[0] < key:
                    last[key.publisher] = key, event
                elif self._is_before(key, before[0]):
                    wrong.append(f"{key} at {event.at:.3f} after {before[0]} at {before[1].at:.3f}")
        return wrong

    def _is_before(self, one: MessageKey, other: MessageKey) -> bool:
        message = one.publisher, one.number
        connection = self._connection.get(message)
        is_same = connection is not None and connection == self._connection[other[1:3]]
        return message in self.confirmed or is_same

    def _half(self) -> list[str]:
        """Return transactions of which some is there; all that was sent is looked at."""
        there = Counter(key.number for key in self.got if key.publisher == TX)
        whole = OF_EACH * len(QUEUES_OF[TX])
        return [
            f"{number}: {count} of {whole}" for number, count in there.items() if count != whole
        ]

    def _early(self) -> list[str]:
        return [
            f"{key}: {self.due[key[1:3]] - event.at * 1000:.0f} ms"
            for key, events in self.got.items()
            if key.queue == LATE
            for event in events
            if event.at * 1000 < self.due[key[1:3]] - CLOCK_MS
        ]

    def _stored_twice(self) -> list[str]:
        """Return messages that are at several offsets of the stream."""
        wrong = []
        for key, events in self.got.items():
            offsets = {event.more[3] for event in events if key.queue == VIEWS}
            if len(offsets) > 1:
                wrong.append(f"{key}: at {sorted(offsets)}")
        return wrong

    def _offsets_out_of_order(self) -> list[str]:
        wrong, last = [], -1
        for key, event in self._firsts(VIEWS):
            offset = int(event.more[3])
            if offset < last:
                wrong.append(f"{key} at {offset} after {last}")
            last = max(last, offset)
        return wrong

    def duplicates(self) -> dict[str, tuple[int, int, int]]:
        """Return for each queue: deliveries, those that are not the first, and those not flagged.

        A mail that was rejected comes again without a flag, and is no duplicate.
        """
        found = {}
        for queue in (PLAIN, LATE, MAILS, LEFT, VIEWS, JAVA):
            all_, again, silent = 0, 0, 0
            for key, drained in self.got.items():
                events = [one for one in drained if one.client != DRAIN or queue != VIEWS]
                if key.queue == queue and events:
                    retried = {one.more[4] if len(one.more) > 4 else "0" for one in events}
                    more = max(0, len(events) - len(retried))
                    all_ += len(events)
                    again += more
                    silent += max(0, more - sum(one.more[2] == "1" for one in events))
            found[queue] = all_, again, silent
        return found

    def confirms(self, *publishers: str) -> list[float]:
        """Return when something was confirmed, to some publishers or to anybody."""
        wanted = publishers or tuple(QUEUES_OF)
        return sorted(at for (name, _), at in self.confirmed.items() if name in wanted)


def key_of(event: Event) -> MessageKey:
    queue = event.more[0]
    place = int(event.more[1]) if event.publisher == TX else 0
    return MessageKey(queue, event.publisher, event.number, place)


def told(what: str, wrong: list[object] | list[str] | list[MessageKey]) -> list[str]:
    """Return a line for each of the first of what is wrong, and their number."""
    if not wrong:
        return []
    return [f"{len(wrong)} {what}:", *(f"    {one}" for one in wrong[:SHOWN])]


def longest_gap(times: list[float], start: float, end: float) -> float:
    """Return the longest time without any of some events that touches a time."""
    inside = [at for at in times if start <= at <= end]
    before = max((at for at in times if at < start), default=start)
    after = min((at for at in times if at > end), default=end)
    points = [before, *inside, after]
    return max(late - early for early, late in pairwise(points))
