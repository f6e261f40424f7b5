"""Admission of connections to the handshake: limits per address and in all, and waiting lines.

Until the login a socket's peer is unknown, here called a stranger. So the number of handshakes in
progress is limited, per address and in all; those beyond wait in their address's line until they
hang up, and the lines are served in turn: a fleet that reconnects from behind one balancer gets in
one after the other, and keeps out no client from elsewhere. Input of strangers is processed in the
order in which it came, for one connection's share of each turn.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.config import HandshakeSettings

__all__ = ["Handshakes", "Stranger"]


class Stranger(Protocol):
    """Socket whose peer has not opened its AMQP connection yet."""

    def admit(self) -> None:
        """Begin the handshake: process what the peer sends."""
        ...

    def turn_away(self) -> None:
        """Close the socket, because no place to wait is left."""
        ...

    def serve(self) -> None:
        """Process what the peer has sent."""
        ...


class Handshakes:
    """The strangers of one listener.

    `schedule(callback)` calls back in the next turn; `monotonic_ns` is a clock, `turn_ns` the share
    of a turn. `no_room(address)` is called for each that is closed because too many wait.
    """

    def __init__(
        self,
        settings: HandshakeSettings,
        schedule: Callable[[Callable[[], None]], object],
        monotonic_ns: Callable[[], int],
        turn_ns: int,
        no_room: Callable[[str], None],
    ) -> None:
        self._max = settings.handshakes_max
        self._per_address_max = settings.handshakes_per_address_max
        self._waiting_max = settings.handshakes_waiting_max
        self._schedule = schedule
        self._monotonic_ns = monotonic_ns
        self._turn_ns = turn_ns
        self._no_room = no_room
        self._under_way: dict[Stranger, str] = {}  # by address
        self._counts: Counter[str] = Counter()  # of these, by address
        self._lines: dict[str, OrderedDict[Stranger, None]] = {}  # waiting ones; never empty
        self._next: OrderedDict[str, None] = OrderedDict()  # addresses whose first one may come
        self._waiting: dict[Stranger, str] = {}
        self._heard: deque[Stranger] = deque()  # those that have sent something
        self._scheduled = False

    def __len__(self) -> int:
        """Number of handshakes under way."""
        return len(self._under_way)

    @property
    def waiting_count(self) -> int:
        """Number of strangers that wait for admission."""
        return len(self._waiting)

    # -- admission

    def begin(self, stranger: Stranger, address: str) -> None:
        """Admit a stranger, make it wait, or turn it away if too many wait."""
        if self._has_room(address) and address not in self._lines:
            self._admit(stranger, address)
        elif self._make_room(address):
            if address not in self._lines:
                self._lines[address] = OrderedDict()
            self._lines[address][stranger] = None
            self._waiting[stranger] = address
            self._follow(address)
        else:
            self._no_room(address)
            stranger.turn_away()

    def end(self, stranger: Stranger) -> None:
        """End a handshake or its wait, and admit others. A second call does nothing."""
        address = self._under_way.pop(stranger, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]
            self._follow(address)
        else:
            self._leave(stranger)
        while self._next and len(self._under_way) < self._max:
            address, _ = self._next.popitem(last=False)
            first = next(iter(self._lines[address]))
            self._leave(first)
            self._admit(first, address)

    def _admit(self, stranger: Stranger, address: str) -> None:
        self._under_way[stranger] = address
        self._counts[address] += 1
        self._follow(address)
        stranger.admit()

    def _has_room(self, address: str) -> bool:
        full = len(self._under_way) >= self._max
        return not full and self._counts[address] < self._per_address_max

    def _leave(self, stranger: Stranger) -> None:
        """Remove a stranger from its waiting line."""
        address = self._waiting.pop(stranger, None)
        if address is not None:
            del self._lines[address][stranger]
            if not self._lines[address]:
                del self._lines[address]
            self._follow(address)

    def _follow(self, address: str) -> None:
        """Queue an address for admission behind the others, if its limit allows a handshake."""
        if address in self._lines and self._counts[address] < self._per_address_max:
            self._next.setdefault(address)
        else:
            self._next.pop(address, None)

    def _make_room(self, address: str) -> bool:
        """Return whether another may wait; if too many do, drop the last of the longest line."""
        if len(self._waiting) < self._waiting_max:
            return True
        line = self._lines.get(address)
        if line is not None and len(line) * len(self._lines) >= len(self._waiting):
            return False  # no line is much longer than its own
        longest = max(self._lines, key=lambda other: len(self._lines[other]))
        last = next(reversed(self._lines[longest]))
        self._leave(last)
        self._no_room(longest)
        last.turn_away()
        return True

    # -- what they send

    def hear(self, stranger: Stranger) -> None:
        """Note that an admitted stranger has sent something; it is served in its turn."""
        self._heard.append(stranger)
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._serve)

    def _serve(self) -> None:
        stop_ns = self._monotonic_ns() + self._turn_ns
        while self._heard:
            self._heard.popleft().serve()
            if self._monotonic_ns() >= stop_ns:
                break
        self._scheduled = bool(self._heard)
        if self._scheduled:
            self._schedule(self._serve)
