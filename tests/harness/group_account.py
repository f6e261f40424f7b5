"""Account of what members of consumer groups know of each message, and of what must not happen.

A message is known by its key and its number among the messages of that key, a place by partition
and offset. Each group has a `GroupAccount`. Members tell it what they do before they do it (hold
nothing any more, then acknowledge), so that whatever another member gets afterwards can be judged.

An acknowledgement is *sent*, then *read* by the broker (a later method on its channel was
answered), and *safe* once the broker had its settle interval and has answered twice since: the
interval is that of docs/storage-format.md. What is safe never comes again; what was only read may,
after a kill.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from tests.harness.kills import Events
from tests.harness.traffic import SETTLE_INTERVAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TRIPS_UNTIL_SAFE = 2
TROUBLES_MAX = 50


class Message(NamedTuple):
    key: str
    number: int

    @classmethod
    def of(cls, body: bytes) -> Message:
        key, number = body.decode().rsplit(" ", 1)
        return cls(key, int(number))

    @property
    def body(self) -> bytes:
        return f"{self.key} {self.number}".encode()


class Place(NamedTuple):
    partition: int
    offset: int


class Account:
    """Account of everything that was published, and of the groups that read it."""

    def __init__(self, groups: Iterable[str]) -> None:
        self.lock = threading.RLock()
        self.sent: Counter[str] = Counter()  # by key: its messages are numbered from 0 on
        self.confirmed: set[Message] = set()
        self.events = Events()  # confirms, deliveries, and what else clients were answered
        self.places: dict[Place, Message] = {}
        self.found_at: dict[Message, Place] = {}
        self.troubles: list[str] = []
        self.groups = {name: GroupAccount(self, name) for name in groups}

    def __str__(self) -> str:
        groups = ", ".join(map(str, self.groups.values()))
        return f"sent {self.sent.total()}, confirmed {len(self.confirmed)}; {groups}"

    def trouble(self, text: str) -> None:
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(text)

    def next(self, key: str) -> Message:
        """Note that the next message of a key is about to be published."""
        with self.lock:
            number = self.sent[key]
            self.sent[key] += 1
        return Message(key, number)

    def located(self, message: Message, place: Place) -> None:
        """Note where a message lies, which is the same place for all groups and for ever."""
        if self.places.setdefault(place, message) != message:
            self.trouble(f"{place} was {self.places[place]} and is {message}")
        if self.found_at.setdefault(message, place) != place:
            self.trouble(f"{message} was at {self.found_at[message]} and is at {place}")
        if message.number >= self.sent[message.key]:
            self.trouble(f"{message}: invented")

    def answered(self, began: float) -> None:
        """Note that a method was answered that was sent at `began`, to whomever."""
        with self.lock:
            for group in self.groups.values():
                group.answered(began)

    def killed(self) -> None:
        """Note that the broker is gone, and all members with it."""
        with self.lock:
            for group in self.groups.values():
                group.killed()

    def missing(self) -> dict[str, set[Message]]:
        with self.lock:
            groups = self.groups.items()
            return {name: self.confirmed - group.seen.keys() for name, group in groups}


class GroupAccount:
    """Account of one group. What it is told of must not have had any effect yet."""

    def __init__(self, account: Account, name: str) -> None:
        self.account = account
        self.name = name
        self.seen: Counter[Message] = Counter()  # deliveries of each
        self.held: dict[Message, object] = {}  # by which member
        self.settling: set[Message] = set()  # acknowledged, but not safe
        self.safe: set[Message] = set()
        self.redelivered = 0
        self._returns: Counter[Message] = Counter()  # reasons for another delivery
        self._last_numbers: dict[tuple[int, str], int] = {}  # by partition and key
        self._last_offsets: dict[int, int] = defaultdict(lambda: -1)
        self._read: deque[tuple[float, int, list[Message]]] = deque()

    def __str__(self) -> str:
        return f"{self.name}: {len(self.seen)} and {self.redelivered} again"

    def delivered(
        self, member: object, message: Message, place: Place, *, redelivered: bool
    ) -> None:
        """Note a delivery, and what is wrong with it."""
        with self.account.lock:
            self.account.located(message, place)
            what = f"group {self.name}, {message} at {place}"
            self._check_alone(member, place, what)
            if message in self.held or message in self.settling or message in self.safe:
                state = "held" if message in self.held else "acknowledged"
                state = "safely acknowledged" if message in self.safe else state
                self.account.trouble(f"{what}: delivered again while {state}")
            if message in self.seen:
                self._check_again(message, what, redelivered=redelivered)
            else:
                self._check_order(message, place, what)
            self.seen[message] += 1
            self.held[message] = member
        self.account.events()

    def _check_alone(self, member: object, place: Place, what: str) -> None:
        for other, owner in self.held.items():
            same = self.account.found_at[other].partition == place.partition
            if same and owner is not member:
                self.account.trouble(f"{what}: while another member holds {other}")
                return

    def _check_again(self, message: Message, what: str, *, redelivered: bool) -> None:
        self.redelivered += 1
        if not redelivered:
            self.account.trouble(f"{what}: delivered again without the flag")
        if self.seen[message] > self._returns[message]:
            self.account.trouble(f"{what}: delivered again without a reason")

    def _check_order(self, message: Message, place: Place, what: str) -> None:
        of_key = place.partition, message.key
        if self._last_numbers.get(of_key, -1) >= message.number:
            self.account.trouble(f"{what}: after number {self._last_numbers[of_key]} of its key")
        if self._last_offsets[place.partition] >= place.offset:
            self.account.trouble(f"{what}: after offset {self._last_offsets[place.partition]}")
        self._last_numbers[of_key] = message.number
        self._last_offsets[place.partition] = place.offset

    # -- what members do

    def settles(self, messages: Collection[Message]) -> None:
        """Note that a member is about to acknowledge what it holds."""
        with self.account.lock:
            for message in messages:
                del self.held[message]
                self.settling.add(message)

    def returns(self, messages: Collection[Message]) -> None:
        """Note that what a member holds is about to come back, since it says so or leaves."""
        with self.account.lock:
            for message in messages:
                del self.held[message]
                self._returns[message] += 1

    def read(self, messages: list[Message]) -> None:
        """Note that the broker has read the acknowledgement of these messages."""
        if messages:
            with self.account.lock:
                due = time.monotonic() + SETTLE_INTERVAL_SECONDS
                self._read.append((due, TRIPS_UNTIL_SAFE, messages))

    # -- what the broker does

    def answered(self, began: float) -> None:
        for _ in range(len(self._read)):
            due, trips, messages = self._read.popleft()
            trips -= began >= due
            if trips:
                self._read.append((due, trips, messages))
                continue
            for message in messages:
                self.settling.remove(message)
                self.safe.add(message)

    def killed(self) -> None:
        for message in (*self.held, *self.settling):
            self._returns[message] += 1
        self.held.clear()
        self.settling.clear()
        self._read.clear()
