"""Account of what clients of a cluster have published, got confirmed, and been delivered."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class MessageId(NamedTuple):
    """A message: number `number` of a publisher."""

    publisher: int
    number: int

    def to_body(self) -> bytes:
        return b"%d %d " % self + bytes(200)

    @classmethod
    def of(cls, body: bytes) -> MessageId:
        publisher, number, _ = body.split(b" ", 2)
        return cls(int(publisher), int(number))

    @property
    def key(self) -> str:
        """Key by which a partitioned queue places it."""
        return f"{self.publisher}-{self.number % 7}"


class Pause(NamedTuple):
    """Time in which a publisher got no confirm, in seconds."""

    began: float
    seconds: float
    publisher: int
    node: int  # that the publisher was connected with before


class Interruption(NamedTuple):
    """Longest times without a confirm, and without a delivery, of one queue, in seconds."""

    confirms: float
    deliveries: float


@dataclass
class QueueAccount:
    """Messages of one queue."""

    confirmed: set[MessageId] = field(default_factory=set)
    uncertain: set[MessageId] = field(default_factory=set)  # sent again after later ones, perhaps
    delivered: Counter[MessageId] = field(default_factory=Counter)
    last: dict[object, dict[object, int]] = field(default_factory=lambda: defaultdict(dict))
    confirm_times: list[float] = field(default_factory=list)
    delivery_times: list[float] = field(default_factory=list)

    @property
    def missing(self) -> set[MessageId]:
        return self.confirmed - self.delivered.keys()

    @property
    def duplicates(self) -> int:
        return self.delivered.total() - len(self.delivered)


class Account:
    """Account of all clients, which are threads."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = {name: QueueAccount() for name in queues}
        self.pauses: list[Pause] = []
        self.troubles: list[str] = []
        self.errors: Counter[str] = Counter()
        self.nacks = 0
        self._confirmed_at: dict[int, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def confirmed(self, queue: str, message: MessageId, node: int) -> None:
        """Note a confirm that a publisher got by a node."""
        now = time.monotonic()
        with self._lock:
            before, its_node = self._confirmed_at.get(message.publisher, (now, node))
            self._confirmed_at[message.publisher] = (now, node)
            self.pauses.append(Pause(before, now - before, message.publisher, its_node))
            account = self.queues[queue]
            account.confirmed.add(message)
            account.confirm_times.append(now)

    def uncertain(self, queue: str, messages: Iterable[MessageId]) -> None:
        """Note messages that failed, and are sent again behind later ones perhaps."""
        with self._lock:
            self.queues[queue].uncertain.update(messages)

    def delivered(
        self, queue: str, message: MessageId, session: object, *, redelivered: bool, key: str = ""
    ) -> None:
        """Note a delivery. `session` is a consumer on one channel that is to see an order."""
        with self._lock:
            account = self.queues[queue]
            account.delivery_times.append(time.monotonic())
            account.delivered[message] += 1
            if redelivered or account.delivered[message] > 1 or message in account.uncertain:
                return
            last = account.last[session]
            before = last.get((message.publisher, key), -1)
            if session is not None and before > message.number:
                self.troubles.append(f"{queue}: {message} came first after {before}")
            last[message.publisher, key] = message.number

    def error(self, who: str, error: BaseException) -> None:
        """Note that a client was told of an error, which is no trouble by itself."""
        with self._lock:
            self.errors[f"{who}: {type(error).__name__} {str(error)[:90]}"] += 1

    def trouble(self, text: str) -> None:
        with self._lock:
            self.troubles.append(text)

    def counts(self) -> dict[int, int]:
        """Return how many messages each publisher has had confirmed."""
        with self._lock:
            return Counter(
                message.publisher
                for queue in self.queues.values()
                for message in list(queue.confirmed)
            )

    def pauses_since(self, began: float, until: float) -> list[Pause]:
        """Return the longest pause of each publisher that overlaps a time."""
        longest: dict[int, Pause] = {}
        with self._lock:
            for pause in reversed(self.pauses):
                if pause.began + pause.seconds < began:
                    break
                if pause.began <= until and pause.seconds > (
                    longest[pause.publisher].seconds if pause.publisher in longest else 0
                ):
                    longest[pause.publisher] = pause
        return list(longest.values())

    def interruptions(self, began: float, until: float) -> dict[str, Interruption]:
        """Return the interruptions of each queue within a time; 0 of what never comes."""
        with self._lock:
            return {
                name: Interruption(
                    longest_gap(queue.confirm_times, began, until),
                    longest_gap(queue.delivery_times, began, until),
                )
                for name, queue in self.queues.items()
            }


def longest_gap(times: Sequence[float], began: float, until: float) -> float:
    """Return the longest time between successive events that overlaps [began, until]."""
    found = [
        after - before for before, after in pairwise(times) if after >= began and before <= until
    ]
    return max(found, default=0)


def quantiles(seconds: Sequence[float]) -> str:
    """Return p50, p99 and the greatest as text."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    at = [ordered[min(int(len(ordered) * each), len(ordered) - 1)] for each in (0.5, 0.99)]
    return f"p50 {at[0]:.2f} s, p99 {at[1]:.2f} s, max {ordered[-1]:.2f} s of {len(ordered)}"
