"""Order by key where failed messages are tried again: whoever follows one waits with it.

A message's key is its group (`x-message-group`), else its routing key. From its first failure until
it is acknowledged or a dead letter, a message holds its key: those of the same key that are met
meanwhile are parked, leased to nobody, in their place. Only while a key is held are records looked
at one by one, in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import StoredMessage
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.queue import Queue
    from leveret.ports.records import Batch

__all__ = ["KeyOrder", "key_of"]

GROUP = "x-message-group"


def key_of(flags: int, exchange: bytes, routing_key: bytes, header: bytes) -> bytes:
    """What a message must not be overtaken within."""
    if flags & RecordFlag.HAS_GROUP:
        group = StoredMessage(exchange, routing_key, header, b"", flags).headers.get(GROUP)
        if isinstance(group, str):
            return b"group " + group.encode()
    return b"key " + routing_key


class KeyOrder:
    """The keys of one queue that are held, and what is parked for them."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._parked: dict[bytes, RangeSet] = {}  # by each key that is held
        self._holders: dict[bytes, int] = {}  # where in the queue who holds it is, or was
        self._keys: dict[int, bytes] = {}  # of holders that are in the queue, by offset
        self._away: dict[int, bytes] = {}  # of holders in the retry topic, by their offset there

    @property
    def parked_count(self) -> int:
        """How many messages wait for another one."""
        return sum(parked.count for parked in self._parked.values()) if self._parked else 0

    def has_parked(self, offset: int) -> bool:
        """Whether a message waits for another one of its key."""
        return any(offset in parked for parked in self._parked.values())

    # -- who holds

    def failed(self, offset: int, key: bytes) -> bool:
        """Whether a message that failed may be tried again by itself; else it is parked."""
        holder = self._holders.setdefault(key, offset)
        parked = self._parked.setdefault(key, RangeSet())
        if holder == offset:
            return True
        parked.add(offset, offset + 1)
        return False

    def left(self, offset: int, key: bytes, room_offset: int) -> None:
        """Who holds a key waits in the retry topic, and will not be in the queue any more."""
        self._keys.pop(offset, None)
        self._away[room_offset] = key

    def found_away(self, room_offset: int, key: bytes) -> None:
        """An earlier run has left a message in the retry topic."""
        self._holders.setdefault(key, -1)
        self._parked.setdefault(key, RangeSet())
        self._away[room_offset] = key

    def learn(self, batch: Batch, settled: RangeSet | None) -> None:
        """Messages that came back hold their keys where they are now."""
        for offset, flags, _, exchange, routing_key, header, _ in batch.records():
            if flags & RecordFlag.RETRIED and (settled is None or offset not in settled):
                key = key_of(flags, exchange, routing_key, header)
                if self._holders.get(key) not in self._keys:
                    self._holders[key] = offset
                    self._keys[offset] = key
                    self._parked.setdefault(key, RangeSet())

    def forget(self, offset: int) -> None:
        """Records from `offset` on are lost; who should have come back is still away."""
        for lost in [at for at in self._keys if at >= offset]:
            del self._keys[lost]

    # -- who passes

    def let_pass(self, runs: list[tuple[int, int]], batches: list[Batch]) -> list[tuple[int, int]]:
        """What of these ready runs waits for nobody; the others are parked."""
        if not self._parked:
            return runs
        passing = RangeSet()
        for first, stop in runs:
            for batch in batches:
                for offset in range(max(first, batch.base_offset), min(stop, batch.stop_offset)):
                    if not self.parks(batch, offset):
                        passing.add(offset, offset + 1)
        return list(passing)

    def parks(self, batch: Batch, offset: int) -> bool:
        """Whether a record, ready or just leased, waits for another one; it is parked then."""
        if not self._parked:
            return False
        flags, _, exchange, routing_key, header, _ = batch.record(offset)
        key = key_of(flags, exchange, routing_key, header)
        if self._holders.get(key, offset) == offset:
            return False
        self._queue.machine.withdraw([(offset, offset + 1)])
        self._parked[key].add(offset, offset + 1)
        return True

    # -- the end of a hold

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Some are done with: the keys that they held are free."""
        if self._keys:
            for first, stop in ranges:
                for offset in [at for at in self._keys if first <= at < stop]:
                    self._free(self._keys.pop(offset))

    def came_back(self, room_offset: int) -> None:
        """Who waited in the retry topic is in the queue again."""
        self._away.pop(room_offset, None)

    def cancelled(self, room_offset: int) -> None:
        """Who waited in the retry topic never comes back."""
        key = self._away.pop(room_offset, None)
        if key is not None:
            self._free(key)

    def end(self) -> None:
        """Order does not matter any more."""
        self._keys.clear()
        self._away.clear()
        for key in list(self._parked):
            self._free(key)

    def _free(self, key: bytes) -> None:
        self._holders.pop(key, None)
        parked = self._parked.pop(key, None)
        if parked:
            self._queue.unpark(list(parked))
