"""Per-key ordering during retries: messages wait behind a failed one with the same key.

A message's key is its group (`x-message-group`), else its routing key. From its first failure until
it is acknowledged or dead-lettered, a message blocks its key: later messages with the key are
parked, i.e. leased to no consumer, in their place. Records are inspected one by one, in Python,
only while a key is blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.extensions import QueueExtension
from leveret.core.routing.message import StoredMessage
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.extensions import Demand
    from leveret.core.queues.queue import Queue
    from leveret.ports.records import Batch

__all__ = ["KeyOrder", "key_of"]

GROUP = "x-message-group"


def key_of(flags: int, exchange: bytes, routing_key: bytes, header: bytes) -> bytes:
    """Return the key within which a message must not be overtaken."""
    if flags & RecordFlag.HAS_GROUP:
        group = StoredMessage(exchange, routing_key, header, b"", flags).headers.get(GROUP)
        if isinstance(group, str):
            return b"group " + group.encode()
    return b"key " + routing_key


class KeyOrder(QueueExtension):
    """Blocked keys of one queue, and the messages parked for them."""

    indexed_features = RecordFlag.RETRIED
    needs_backlog = True  # a key may be blocked by a message in it

    @classmethod
    def follow(
        cls,
        queue: Queue,
        present: QueueExtension | None,
        demand: Demand,  # noqa: ARG003
    ) -> QueueExtension | None:
        """See ExtensionKind.

        A message group waits for its blocked messages, and would block those that are retried.
        """
        settings = queue.settings
        if settings.retry is None or not settings.retry.keeps_order or settings.group_ordering:
            return None
        return cls(queue) if present is None else present

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._parked: dict[bytes, RangeSet] = {}  # by blocked key
        self._holders: dict[bytes, int] = {}  # present or former offset of the blocking message
        self._keys: dict[int, bytes] = {}  # blocked keys by the message's offset in the queue
        # Blocked keys by offset in the retry topic, with the offset that the message had before.
        self._away: dict[int, tuple[bytes, int]] = {}

    @property
    def parked_count(self) -> int:  # type: ignore[override]
        """Number of parked messages."""
        return sum(parked.count for parked in self._parked.values()) if self._parked else 0

    def holds_back(self, offset: int) -> bool:
        """Whether a message is parked."""
        return any(offset in parked for parked in self._parked.values())

    # -- blocking

    def failed(self, offset: int, key: bytes) -> bool:
        """Whether a failed message may be retried now; otherwise it is parked."""
        holder = self._holders.setdefault(key, offset)
        parked = self._parked.setdefault(key, RangeSet())
        if holder == offset:
            return True
        parked.add(offset, offset + 1)
        return False

    def left(self, offset: int, key: bytes, topic_offset: int) -> None:
        """Note that a message that blocks a key has moved to the retry topic."""
        self._keys.pop(offset, None)
        self._away[topic_offset] = key, offset

    def stayed(self, stop: int) -> None:
        """Note that what was to stand from `stop` on in the retry topic was not stored there.

        It is where it was, and blocks its key until it is settled.
        """
        for lost in [at for at in self._away if at >= stop]:
            key, offset = self._away.pop(lost)
            self._keys[offset] = key

    def found_away(self, topic_offset: int, key: bytes) -> None:
        """Block the key of a message that an earlier run has left in the retry topic."""
        self._holders.setdefault(key, -1)
        self._parked.setdefault(key, RangeSet())
        self._away[topic_offset] = key, -1

    def appended(self, batch: Batch, settled: RangeSet | None) -> None:
        """Block the keys of retried messages that are back in the queue."""
        for offset, flags, _, exchange, routing_key, header, _ in batch.records():
            if flags & RecordFlag.RETRIED and (settled is None or offset not in settled):
                key = key_of(flags, exchange, routing_key, header)
                holder = self._holders.get(key, -1)
                if holder not in self._keys or holder > offset:
                    # The first of several copies blocks; the backlog is read after what has come.
                    self._keys.pop(holder, None)
                    self._holders[key] = offset
                    self._keys[offset] = key
                    self._parked.setdefault(key, RangeSet())

    def truncated(self, offset: int) -> None:
        """Forget records from `offset` on, which were lost.

        Their originals are in the retry topic.
        """
        for lost in [at for at in self._keys if at >= offset]:
            del self._keys[lost]

    # -- delivery

    def filter_ready(
        self, runs: list[tuple[int, int]], batches: list[Batch]
    ) -> list[tuple[int, int]]:
        """Return the part of these ready runs that is not blocked; the rest is parked."""
        if not self._parked:
            return runs
        passing = RangeSet()
        for first, stop in runs:
            for batch in batches:
                for offset in range(max(first, batch.base_offset), min(stop, batch.stop_offset)):
                    if not self.withholds(batch, offset):
                        passing.add(offset, offset + 1)
        return list(passing)

    def withholds(self, batch: Batch, offset: int) -> bool:
        """Whether a record, ready or just leased, is blocked by its key; if so, park it."""
        if not self._parked:
            return False
        flags, _, exchange, routing_key, header, _ = batch.record(offset)
        key = key_of(flags, exchange, routing_key, header)
        if self._holders.get(key, offset) == offset:
            return False
        self._queue.state.withdraw([(offset, offset + 1)])
        self._parked[key].add(offset, offset + 1)
        return True

    # -- unblocking

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Free the keys of settled messages."""
        if self._keys:
            for first, stop in ranges:
                for offset in [at for at in self._keys if first <= at < stop]:
                    self._free(self._keys.pop(offset))

    def let_go(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Make ready what is parked of these records: they block nothing, and are erased."""
        for parked in self._parked.values():
            found = [part for each in ranges for part in parked.gaps(*each).gaps(*each)]
            for first, stop in found:
                parked.remove(first, stop)
            self._queue.state.unblock(found)

    def came_back(self, topic_offset: int) -> None:
        """Note that a message has moved from the retry topic back to the queue."""
        self._away.pop(topic_offset, None)

    @property
    def away(self) -> list[int]:
        """Offsets in the retry topic of messages that block their keys."""
        return list(self._away)

    def cancelled(self, topic_offset: int) -> None:
        """Free the key of a message that was removed from the retry topic."""
        away = self._away.pop(topic_offset, None)
        if away is not None:
            self._free(away[0])

    def close(self) -> None:
        """Free all keys: ordering was disabled, or the queue deleted."""
        self._keys.clear()
        self._away.clear()
        if not self._queue.deleted:
            for key in list(self._parked):
                self._free(key)

    def _free(self, key: bytes) -> None:
        self._holders.pop(key, None)
        parked = self._parked.pop(key, None)
        if parked:
            self._queue.unpark(list(parked))
