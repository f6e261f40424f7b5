"""Range reads of a node: stretches of partitions as chunks, and readers that wait for more.

    request ──► wait, if nothing is there ──► read a few batches ──► pack them ──► chunk
                        ▲                            └─ let others run ─┘
                     committed

A reader keeps its own place: nothing is leased, settled or remembered for it. Called by the HTTP
API. All work is on the event loop, in slices that are about as short as a message takes.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leveret.core.logs.log_scan import quarantine
from leveret.core.queues.extensions import Demand, ExtensionKind
from leveret.core.settings.arguments import type_of
from leveret.core.telemetry.usage import accounts_of_client
from leveret.errors import LeveretError, StorageError
from leveret.features.range_reads.bounds import Bounds, bounds_of
from leveret.features.range_reads.range_read import RangeRead, SliceClock
from leveret.features.range_reads.topic_commands import TOPICS_EXCHANGE, TopicCommands
from leveret.features.range_reads.waiting import PartitionReads, WaitingReader
from leveret.ports.counters import GET_NO_ACK, Counters, DeliveryStatistics
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.dependencies import CoreServices
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.statistics.statistics import Statistics
    from leveret.features.range_reads.range_read import PackedChunk, Slices
    from leveret.features.range_reads.rules import RangeRequest
    from leveret.ports.ranges import RangeSet
    from leveret.ports.usage import Account

__all__ = ["BusyError", "OffsetRangeError", "RangeReads", "RangeUsage"]

# Chunks of all requests, until they are sent.
CHUNKS_BYTES_MAX = 128 * 1024 * 1024
# Readers that wait; each has one of the node's HTTP connections, which others need as well.
WAITING_MAX = 64


class OffsetRangeError(LeveretError):
    """Raised for an offset outside of the log: what the reader wants next is gone, or another's."""

    def __init__(self, offset: int, bounds: Bounds) -> None:
        where = "below the first" if offset < bounds.first else "behind the end"
        super().__init__(
            f"offset {offset} is {where}: the partition has {bounds.first} to {bounds.end}"
        )
        self.bounds = bounds


class BusyError(LeveretError):
    """Raised where too many read or wait at once: to be tried again later."""


@dataclass(frozen=True, slots=True)
class RangeUsage:
    """Usage of one read, charged to its user (core.telemetry.usage.Metered)."""

    vhost: str
    user: str
    usage: Usage

    def accounts(self) -> Sequence[Account]:
        """Return the accounts that the usage is charged to."""
        return accounts_of_client(self.vhost, self.user)

    def total_usage(self) -> Usage:
        """Return the usage of the read."""
        return self.usage


class RangeReads(ExtensionKind):
    """Range reads of a node."""

    for_streams = True

    def __init__(self, core: CoreServices, statistics: Statistics) -> None:
        self.clock = SliceClock(core.turn.clock_ns)
        self._timers = core.timers
        self._report = core.report
        self._statistics = statistics
        self._waiting: set[WaitingReader] = set()
        self._held_bytes = 0
        self._closing = False
        core.publish_interceptors.commands[TOPICS_EXCHANGE] = TopicCommands(core)

    # -- as a kind of extension

    def follow(
        self,
        queue: OpenQueue,  # noqa: ARG002
        present: PartitionReads | None,
        demand: Demand,  # noqa: ARG002
    ) -> PartitionReads | None:
        """See ExtensionKind. A partition has one from the first time that a reader needs it."""
        return present

    def _of(self, partition: OpenQueue) -> PartitionReads:
        found = partition.extension(PartitionReads)
        if found is None:
            found = PartitionReads(partition.log, self._timers)
            partition.adopt(self, found)
        return found

    # -- waiting

    def wait(
        self, partition: OpenQueue, request: RangeRequest, woken: Callable[[], None]
    ) -> WaitingReader | None:
        """Wait for records at the request's offset; None if there is nothing to wait for.

        Raises BusyError, OffsetRangeError.
        """
        bounds = self._checked(partition, request.offset)
        if request.offset < bounds.end or not request.wait_ms or self._closing:
            return None
        if len(self._waiting) >= WAITING_MAX:
            raise BusyError(f"{WAITING_MAX} readers wait already")

        def done() -> None:
            self._waiting.discard(reader)
            woken()

        reader = WaitingReader(self._of(partition), request.offset, self._timers, done)
        self._waiting.add(reader)
        reader.begin(self._timers.wall_ms() + request.wait_ms)
        return reader

    def cancel(self, reader: WaitingReader) -> None:
        """Stop waiting: the client is gone, or was woken."""
        self._waiting.discard(reader)
        reader.cancel()

    def close(self) -> None:
        """Wake all readers: the node stops."""
        self._closing = True
        for reader in list(self._waiting):
            reader.wake()

    # -- reading

    def _checked(self, partition: OpenQueue, offset: int) -> Bounds:
        """Return the bounds of a partition. Raises OffsetRangeError."""
        bounds = bounds_of(partition)
        if not bounds.first <= offset <= bounds.end:
            raise OffsetRangeError(offset, bounds)
        return bounds

    def reserve(self, request: RangeRequest) -> None:
        """Reserve memory for a chunk until `release`. Raises BusyError."""
        if self._held_bytes + request.bytes_max > CHUNKS_BYTES_MAX:
            raise BusyError("too many chunks are being read at once")
        self._held_bytes += request.bytes_max

    def release(self, request: RangeRequest) -> None:
        """Give the memory of a chunk back: it was sent, or nobody wants it."""
        self._held_bytes -= request.bytes_max

    async def read(
        self, partition: OpenQueue, request: RangeRequest, slices: Slices | None = None
    ) -> PackedChunk:
        """Return what is there now. Raises OffsetRangeError, StorageError.

        `slices` is entered for each slice: a lock that all readers share makes them take turns.
        """
        self._checked(partition, request.offset)
        reading = RangeRead(partition, request, self, self.clock)
        chunk = await reading.run(slices or nullcontext())
        if chunk.rows:
            self._count(partition, chunk.rows, chunk.stored_bytes)
        return chunk

    def _count(self, partition: OpenQueue, messages: int, stored_bytes: int) -> None:
        definition, statistics = partition.definition, self._statistics
        counted = DeliveryStatistics(
            GET_NO_ACK,
            partition.counters,
            Counters(),
            statistics.vhost(definition.vhost),
            statistics.by_queue_type[type_of(definition.arguments)],
        )
        counted.delivered(messages, stored_bytes, redelivered=False, since=0)

    def known(self, partition: OpenQueue) -> RangeSet | None:
        """Return the offsets that earlier reads could not read, if any."""
        found = partition.extension(PartitionReads)
        return None if found is None else found.unreadable

    async def set_aside(self, partition: OpenQueue, offset: int) -> None:
        """Quarantine the damage met at `offset`. Raises StorageError."""
        log = partition.log
        if partition.settings.is_stream:
            report = partial(self._report, partition)
            unreadable = await quarantine(log, offset, report, partition.lose)
        else:
            # A queue settles what it has lost itself, when it comes to it: its state must know.
            unreadable = (await log.set_aside(offset)).unreadable
        if partition.deleted:
            raise StorageError("the queue was deleted")
        self._of(partition).unreadable.add_all(list(unreadable))
