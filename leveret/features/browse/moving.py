"""Deleting, copying and moving selected messages.

Messages leased by a consumer are skipped, and counted. A move, and a copy to several queues, is one
atomic write: after a crash a message is in exactly one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from leveret.core.routing.message import StoredMessage
from leveret.features.browse.message_filter import MessageState
from leveret.features.dead_letter.redrive import MOVED_AT_ONCE_MAX, MOVED_BYTES_MAX
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from leveret.core.logs.atomic import AtomicWrite, AtomicWrites
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.queue import Queue
    from leveret.core.vhost import Vhost
    from leveret.features.browse.browsing import BrowsedMessage

__all__ = ["Destination", "MoveCounts", "Mover", "delete", "portions"]


class Destination(NamedTuple):
    """Target of a copy or a move."""

    exchange: str
    routing_key: str | None  # None: that of each message


@dataclass(slots=True)
class MoveCounts:
    """Counts of the selected messages by result."""

    done: int = 0  # deleted, copied or moved
    skipped: int = 0  # leased by a consumer
    unroutable: int = 0  # no queue is bound to take them
    refused: int = 0  # a target queue or the disk was full
    error: Exception | None = None  # error of the disk


def portions(seen: list[BrowsedMessage]) -> Iterator[list[BrowsedMessage]]:
    """Yield portions that fit into one atomic write."""
    portion: list[BrowsedMessage] = []
    size = 0
    for one in seen:
        portion.append(one)
        size += len(one.message.body)
        if len(portion) >= MOVED_AT_ONCE_MAX or size >= MOVED_BYTES_MAX:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def delete(queue: Queue, seen: list[BrowsedMessage], outcome: MoveCounts) -> None:
    """Erase the messages that are ready, or that are settled and kept."""
    erased = RangeSet(queue.state.withdraw(_ranges(seen)))
    erased.add_all(_ranges([one for one in seen if one.state is MessageState.SETTLED]))
    queue.erase(list(erased))
    count = erased.count
    outcome.done += count
    outcome.skipped += len(seen) - count


class Mover:
    """Copies or moves messages of one queue to a destination; None: to its own tail.

    `carry_out(write)` commits an atomic write, and returns whether it took effect.
    """

    def __init__(
        self,
        writes: AtomicWrites,
        vhost: Vhost,
        queue: OpenQueue,
        destination: Destination | None,
        carry_out: Callable[[AtomicWrite], Awaitable[bool]],
    ) -> None:
        self._writes = writes
        self._vhost = vhost
        self._queue = queue
        self._destination = destination
        self._carry_out = carry_out

    async def copy(self, seen: list[BrowsedMessage], outcome: MoveCounts) -> None:
        """Publish one portion, atomically."""
        write = self._writes.begin()
        published = [one for one in seen if self._publish(write, one)]
        outcome.unroutable += len(seen) - len(published)
        await self._commit(write, published, outcome)

    async def move(self, seen: list[BrowsedMessage], outcome: MoveCounts) -> None:
        """Publish one portion elsewhere and erase it here, atomically; skip what is settled."""
        queue = cast("Queue", self._queue)
        withdrawn = RangeSet(queue.state.withdraw(_ranges(seen)))
        taken = [one for one in seen if one.offset in withdrawn]
        outcome.skipped += len(seen) - len(taken)
        write = self._writes.begin()
        published = [one for one in taken if self._publish(write, one)]
        moved = RangeSet(_ranges(published))
        write.erase(queue, list(moved))
        stays = [one for one in taken if one.offset not in moved]
        if stays:
            outcome.unroutable += len(stays)
            queue.unpark(_ranges(stays))
        if not await self._commit(write, published, outcome) and not queue.deleted:
            queue.unpark(list(moved))

    async def _commit(
        self, write: AtomicWrite, published: list[BrowsedMessage], outcome: MoveCounts
    ) -> bool:
        if not published or await self._carry_out(write):
            outcome.done += len(published)
            return True
        outcome.refused += len(published)
        outcome.error = write.error
        return False

    def _publish(self, write: AtomicWrite, seen: BrowsedMessage) -> bool:
        """Add a message to a write. Returns False if it is unroutable."""
        message = seen.message
        if self._destination is None:
            targets, exchange, key = [self._queue.whole], message.exchange, message.routing_key
        else:
            exchange = self._destination.exchange.encode()
            stated = self._destination.routing_key
            key = message.routing_key if stated is None else stated.encode()
            targets = self._route(
                StoredMessage(exchange, key, message.header, message.body, seen.flags)
            )
        # It is a new message for its target, never a duplicate of the original.
        flags = seen.flags & ~RecordFlag.RETRIED | RecordFlag.PUT_BACK
        for target in targets:
            write.publish(target, flags, exchange, key, message.header, message.body)
        return bool(targets)

    def _route(self, message: StoredMessage) -> list[DeclaredQueue]:
        exchange = self._vhost.exchanges.get(message.exchange.decode())
        if exchange is None:
            return []
        keys = [message.routing_key.decode(errors="replace")]
        return cast("list[DeclaredQueue]", self._vhost.reach(exchange, keys, message))


def _ranges(seen: list[BrowsedMessage]) -> list[tuple[int, int]]:
    return [(one.offset, one.offset + 1) for one in seen]
