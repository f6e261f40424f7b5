"""All delayed-message stores of a node: they share two timing wheels and their timers.

Opened by the features that delay messages. The stores of a queue or of a virtual host are deleted
with it, by `delete`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from leveret.core.logs.internal_topics import INCARNATION
from leveret.errors import StorageError
from leveret.features.delay.store.index import STORE_BYTES
from leveret.features.delay.store.prefetch import GATHER_MS
from leveret.features.delay.store.store import (
    STORE_BITS,
    DelayedMessageStore,
    PendingMessage,
    StoreServices,
)
from leveret.features.delay.store.wheel import TimingWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from leveret.core.logs.internal_topics import InternalTopics
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.ports import StateStore

__all__ = ["DelayedMessageStores", "PendingMessage", "store_identity"]

# Timers of each wheel handled in one turn of the loop.
DUE_AT_ONCE_MAX = 1000
SOON_AT_ONCE_MAX = 50_000
ROOMS_MAX = 1 << 16
OFFSET_BITS = (1 << STORE_BITS) - 1


def store_identity(vhost: str, topic: str, incarnation: str = INCARNATION) -> bytes:
    """Return the name of a store in the state store, STORE_BYTES long."""
    name = f"{vhost}\0{topic}\0{incarnation}"
    return blake2b(name.encode(), digest_size=STORE_BYTES).digest()


class DelayedMessageStores:
    """Opens, finds and deletes the delayed-message stores of a node."""

    def __init__(  # noqa: PLR0917  # what the node has one of each
        self,
        topics: InternalTopics,
        state: StateStore,
        turn: Turn,
        timers: Timers,
        spawn: Callable[[Coroutine[object, object, None]], object],
        report: Callable[[object, Exception], None],
    ) -> None:
        self._topics = topics
        self._timers = timers
        self._due_timer = timers.timer(self._hand_out)
        self._soon_timer = timers.timer(self._read_ahead)
        self._soon = TimingWheel(timers.wall_ms())
        self._due = TimingWheel(timers.wall_ms())
        self._handing_out = False
        self._read_ms = 0  # time of the last read-ahead
        self._services = StoreServices(
            turn, spawn, report, timers, state, self._soon, self._due, self._look_now
        )
        self._rooms: dict[int, DelayedMessageStore] = {}  # by number
        self._names: dict[tuple[str, str, str], int] = {}
        self._number = 0

    def open(
        self,
        vhost: str,
        topic: str,
        on_due: Callable[[Sequence[PendingMessage]], None],
        incarnation: str = INCARNATION,
    ) -> DelayedMessageStore:
        """Create or recover a store. Raises StorageError.

        A store that belongs to one queue has that queue's incarnation.
        """
        log = self._topics.open(vhost, topic, incarnation)
        number = self._free_number()
        identity = store_identity(vhost, topic, incarnation)
        store = DelayedMessageStore(log, number, identity, self._services, on_due)
        self._rooms[number] = store
        self._names[vhost, topic, incarnation] = number
        return store

    def _free_number(self) -> int:
        """Return a number not used recently: the wheel may still have timers of a deleted store."""
        for _ in range(ROOMS_MAX):
            self._number = (self._number + 1) % ROOMS_MAX
            if self._number not in self._rooms:
                return self._number
        raise AssertionError("no node has so many stores")

    def find(
        self, vhost: str, topic: str, incarnation: str = INCARNATION
    ) -> DelayedMessageStore | None:
        """Return the store if it is open, else None."""
        number = self._names.get((vhost, topic, incarnation))
        return None if number is None else self._rooms[number]

    def exists(self, vhost: str, topic: str, incarnation: str = INCARNATION) -> bool:
        """Whether a store was left by an earlier run, or is open."""
        return self._topics.exists(vhost, topic, incarnation)

    def delete(self, vhost: str, topic: str, incarnation: str = INCARNATION) -> None:
        """Delete a store with all its records, even if only an earlier run had opened it."""
        if self._names.get((vhost, topic, incarnation)) is None:
            if not self.exists(vhost, topic, incarnation):
                return
            self.open(vhost, topic, lambda _: None, incarnation)
        store = self._rooms.pop(self._names.pop((vhost, topic, incarnation)))
        store.delete()

    def delete_of_vhost(self, vhost: str) -> None:
        """Delete the open stores of a virtual host that is being deleted.

        Those of single queues are deleted with their queues.
        """
        shared = [name for name in self._names if name[0] == vhost and name[2] == INCARNATION]
        for name in shared:
            self.delete(*name)

    async def close(self) -> None:
        """Stop delivering: the node stops. The logs are closed by their store."""
        self._due_timer.set(None)
        self._soon_timer.set(None)
        for store in self._rooms.values():
            try:
                await store.close()
            except StorageError as error:
                self._services.report(store, error)
        self._rooms.clear()
        self._names.clear()

    @property
    def opened(self) -> list[DelayedMessageStore]:
        """All open stores."""
        return list(self._rooms.values())

    # -- the wheels

    def _look_now(self) -> None:
        """Check the wheels after timers were added."""
        wakes_ms = self._due.wakes_ms
        if wakes_ms is not None and wakes_ms <= self._timers.wall_ms() and not self._handing_out:
            self._hand_out()
        else:
            self._look()

    def _look(self) -> None:
        self._due_timer.set(self._due.wakes_ms)
        wakes_ms = self._soon.wakes_ms
        if wakes_ms is not None and self._read_ms <= self._timers.wall_ms():
            # Not more often than necessary: larger reads read fewer batches twice.
            wakes_ms = max(wakes_ms, self._read_ms + GATHER_MS)
        self._soon_timer.set(wakes_ms)

    def _hand_out(self) -> None:
        """Hand out due records of each store."""
        self._handing_out = True
        try:
            for store, offsets in self._expired(self._due, DUE_AT_ONCE_MAX):
                store.due(offsets)
        finally:
            self._handing_out = False
            self._look()

    def _read_ahead(self) -> None:
        """Let each store read what will be due soon."""
        for store, offsets in self._expired(self._soon, SOON_AT_ONCE_MAX):
            self._read_ms = self._timers.wall_ms()
            store.soon(offsets)
        self._look()

    def _expired(
        self, wheel: TimingWheel, count_max: int
    ) -> Iterator[tuple[DelayedMessageStore, list[int]]]:
        found: dict[int, list[int]] = {}
        for key in wheel.expire(self._timers.wall_ms(), count_max):
            found.setdefault(key >> STORE_BITS, []).append(key & OFFSET_BITS)
        for number, offsets in found.items():
            store = self._rooms.get(number)
            if store is not None:
                yield store, offsets
