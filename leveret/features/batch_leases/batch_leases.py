"""Batch leases of a node: jobs that consume queues by the batch, each a holder.

    lease ──► offsets ──► read in parallel, as chunks ──► settle up to its number
      │  the same number again: the same lease
      └─ no request during the idle time: back to the queue

Called by the HTTP API. Times are the broker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.errors import ChannelError
from leveret.features.batch_leases.holder import BatchHolder
from leveret.features.batch_leases.leased_read import LeasedRead
from leveret.features.batch_leases.rules import LeaseRefusedError, ranges_row
from leveret.features.range_reads.rules import log_text
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.core.dependencies import CoreServices
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.core.statistics.statistics import Statistics
    from leveret.features.batch_leases.holder import HolderName
    from leveret.features.batch_leases.rules import LeaseLimits
    from leveret.features.range_reads.range_read import PackedChunk, Slices
    from leveret.features.range_reads.range_reads import RangeReads
    from leveret.features.range_reads.rules import RangeRequest

__all__ = ["BatchLeases", "holder_row", "lease_row"]


class BatchLeases:
    """The holders of a node."""

    def __init__(
        self, core: CoreServices, statistics: Statistics, reads: RangeReads, limits: LeaseLimits
    ) -> None:
        self.limits = limits
        self._turn = core.turn
        self._timers = core.timers
        self._statistics = statistics
        self._reads = reads
        self._holders: dict[tuple[DeclaredQueue, HolderName], BatchHolder] = {}
        self._closing = False

    def __iter__(self) -> Iterator[BatchHolder]:
        return iter(self._holders.values())

    def holders(self, vhost: str) -> list[BatchHolder]:
        """Return the holders of a virtual host, by queue and name."""
        found = [each for each in self._holders.values() if each.queue.definition.vhost == vhost]
        return sorted(found, key=lambda each: (each.queue.name, each.name))

    def find(self, queue: DeclaredQueue, name: HolderName) -> BatchHolder | None:
        """Return a holder, None if it has not asked for anything lately."""
        return self._holders.get((queue, name))

    def holder(self, queue: DeclaredQueue, name: HolderName) -> BatchHolder:
        """Return a holder, a new one if it is not known: a consumer of the queue.

        Raises ChannelError 403 if the queue has an exclusive consumer, LeaseRefusedError.
        """
        found = self.find(queue, name)
        if found is not None:
            return found
        if self._closing:
            raise LeaseRefusedError("busy", "the node stops")
        vhost = queue.definition.vhost
        if not queue.admits(exclusive=False):
            raise ChannelError(403, f"queue '{queue.name}' in vhost '{vhost}' in exclusive use")
        if len(self.holders(vhost)) >= self.limits.holders_max:
            text = f"vhost '{vhost}' has {self.limits.holders_max} holders of batch leases"
            raise LeaseRefusedError("full", text)
        made = BatchHolder(
            name,
            queue,
            turn=self._turn,
            timers=self._timers,
            statistics=self._statistics,
            ended=self._forget,
        )
        self._holders[queue, name] = made
        return made

    def _forget(self, holder: BatchHolder) -> None:
        self._holders.pop((holder.queue, holder.name), None)

    async def read(
        self,
        holder: BatchHolder,
        number: int,
        part: Queue,
        request: RangeRequest,
        slices: Slices,
    ) -> PackedChunk:
        """Return records of a lease from an offset on. Raises LeaseRefusedError, StorageError.

        `slices` is entered for each slice, as in range reads.
        """
        holder.asked()
        lease = holder.book.find(number) if holder.is_open else None
        readable = RangeSet() if lease is None else lease.readable(part.number)
        if not readable:  # a lease that lost a partition is another one, under the same number
            text = f"lease {number} of holder '{holder.name.name}' is not known"
            raise LeaseRefusedError("not_found", f"{text} in partition {part.number}")
        reading = LeasedRead(part, request, self._reads, readable)
        chunk = await reading.run(slices)
        if chunk.rows:
            holder.counted.delivered(chunk.rows, chunk.stored_bytes, redelivered=False, since=0)
        return chunk

    def close(self) -> None:
        """Finish all leases in the making: the node stops."""
        self._closing = True
        for holder in list(self._holders.values()):
            holder.finish_leasing()


def holder_row(holder: BatchHolder) -> dict[str, Any]:
    """Return what is shown of a holder."""
    leases = sorted(holder.book, key=lambda lease: lease.number)
    return {
        "queue": holder.queue.name,
        "holder": holder.name.name,
        "user": holder.name.user,
        "leases": [lease.number for lease in leases],
        "messages": holder.book.count,
        "bytes": holder.book.size,
        "ends_at": holder.idle_at_ms,
    }


def lease_row(queue: DeclaredQueue, lease: Any) -> dict[str, Any]:
    """Return a lease as its holder is told; without messages if it is None."""
    return {
        "log": log_text(queue.definition),
        "messages": 0 if lease is None else lease.count,
        "bytes": 0 if lease is None else lease.size,
        "ranges": {} if lease is None else ranges_row(lease.parts),
    }
