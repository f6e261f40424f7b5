"""Client of batch leases: takes messages of a queue by the batch, reads them, and settles them.

    name = LeaseName("work", "job-7", 1)
    leased = client.lease(name, messages_max=1000)
    for chunk in client.leased_chunks(name, 0, *leased.bounds(0)):
        …
    client.settle(name)

Each request may be repeated: the same number has the same messages until it is settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from leveret.api_connection import ApiClient, RequestRefusedError
from leveret.range_reader.client import CHUNKS_AT_ONCE, ReadRefusedError, next_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leveret.range_reader.chunk import ReadChunk

__all__ = [
    "LeaseClient",
    "LeaseLostError",
    "LeaseName",
    "LeasedOffsets",
    "OffsetRanges",
    "SettledMessages",
]

GONE: Final = 410
CHANGED: Final = 412

# Ranges [first, end) by the number of the partition.
OffsetRanges: TypeAlias = Mapping[int, Sequence[tuple[int, int]]]


class LeaseLostError(ReadRefusedError):
    """The lease is not known: the node was restarted, or nothing was asked of it for too long.

    `is_other_queue`: the queue was deleted and declared again, and its messages are gone.
    """

    def __init__(self, reason: str, *, is_other_queue: bool) -> None:
        super().__init__(CHANGED if is_other_queue else GONE, reason)
        self.is_other_queue = is_other_queue


class LeaseName(NamedTuple):
    """A lease: of which queue, by which holder, with which number."""

    queue: str
    holder: str
    number: int


@dataclass(frozen=True, slots=True)
class LeasedOffsets:
    """Offsets of a lease. `log` is another one when a queue is deleted and declared again."""

    log: str = ""
    ranges: OffsetRanges = field(default_factory=dict)
    missing: int = 0  # of those that were to be leased again: others have settled them

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(end - first for ranges in self.ranges.values() for first, end in ranges)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and one past the last."""
        ranges = self.ranges[partition]
        return ranges[0][0], ranges[-1][1]

    def ranges_json(self) -> dict[str, list[list[int]]]:
        """Return the ranges as JSON has them."""
        return {str(number): [list(each) for each in self.ranges[number]] for number in self.ranges}

    @staticmethod
    def parse_ranges(told: Mapping[str, Any]) -> OffsetRanges:
        """Return ranges that JSON had. Raises ValueError, TypeError, AttributeError."""
        return {
            int(number): [(int(first), int(end)) for first, end in ranges]
            for number, ranges in told.items()
        }


class SettledMessages(NamedTuple):
    """Messages that were settled, and those that somebody else has or has settled."""

    settled: int
    missing: int


class LeaseClient(ApiClient):
    """Client for the queues of one virtual host. `url` is that of the management port.

    Raises ReadRefusedError, LeaseLostError; OSError or http.client.HTTPException where the node
    cannot be reached.
    """

    @property
    def _root(self) -> str:
        return f"/api/leveret/leases/{self._vhost}"

    def ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready."""
        count: int = self._told("GET", self._queue(queue))["ready"]
        return count

    def lease(
        self,
        name: LeaseName,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
        wait_ms: int | None = None,
        idle_ms: int | None = None,
    ) -> LeasedOffsets:
        """Lease the next messages, up to a number and, about, bytes; none if there are none.

        `wait_ms` is for the first one. Everything goes back to the queue when the holder has asked
        for nothing in `idle_ms`. A number that is leased already has what it had.
        """
        wish = {"messages": messages_max, "bytes": bytes_max}
        wish |= {"wait_ms": wait_ms, "idle_ms": idle_ms}
        told = self._told("POST", self._lease(name), wish)
        return LeasedOffsets(told["log"], LeasedOffsets.parse_ranges(told["ranges"]))

    def lease_again(
        self, name: LeaseName, wanted: LeasedOffsets, *, idle_ms: int | None = None
    ) -> LeasedOffsets:
        """Begin a lease again: lease those of these offsets that are ready, and return all to read.

        These are all that is not settled, also what another consumer has meanwhile.
        """
        body = {"log": wanted.log, "ranges": wanted.ranges_json(), "idle_ms": idle_ms}
        told = self._told("PUT", self._lease(name), body)
        ranges = LeasedOffsets.parse_ranges(told["ranges"])
        return LeasedOffsets(wanted.log, ranges, told["missing"])

    def settle(self, name: LeaseName, known: LeasedOffsets | None = None) -> SettledMessages:
        """Settle the leases up to this one.

        With `known`, what the lease has, also where the node does not know it any more: of these
        offsets all that are ready are settled.
        """
        body = None if known is None else {"log": known.log, "ranges": known.ranges_json()}
        told = self._told("POST", f"{self._lease(name)}/settle", body)
        return SettledMessages(told["settled"], told["missing"])

    def release(self, queue: str, holder: str) -> int:
        """Give back everything that a holder has leased; return the number of messages."""
        target = f"{self._queue(queue)}/{quote(holder, safe='')}"
        count: int = self._told("DELETE", target)["released"]
        return count

    def leased_chunks(
        self,
        name: LeaseName,
        partition: int,
        offset: int,
        end: int,
        *,
        bytes_max: int | None = None,
        columns: Iterable[str] | None = None,
    ) -> Iterator[ReadChunk]:
        """Yield chunks that have the leased rows of [offset, end), and maybe more in the last."""
        query: dict[str, object] = {"bytes": bytes_max, "chunks": CHUNKS_AT_ONCE}
        query["columns"] = None if columns is None else ",".join(columns)
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{self._lease(name)}/partitions/{partition}/records"
        while offset < end:
            question = urlencode({"offset": offset, **given})
            with self._connection.answered("GET", f"{target}?{question}") as answer:
                before = offset
                while offset < end and (chunk := next_chunk(answer)) is not None:
                    offset = chunk.next_offset
                    yield chunk
                if offset == before:
                    return  # the lease has nothing behind it

    def _queue(self, queue: str) -> str:
        return f"{self._root}/{quote(queue, safe='')}"

    def _lease(self, name: LeaseName) -> str:
        return f"{self._queue(name.queue)}/{quote(name.holder, safe='')}/{name.number}"

    def _told(self, method: str, target: str, body: Mapping[str, object] | None = None) -> Any:
        given = {key: value for key, value in (body or {}).items() if value is not None}
        return self._connection.ask(method, target, given or None)

    @staticmethod
    def _refusal(
        status: int,
        reason: str,
        retry_after_s: float | None,
        details: dict[str, Any],
    ) -> RequestRefusedError:
        if status in {GONE, CHANGED}:
            return LeaseLostError(reason, is_other_queue=status == CHANGED)
        return ReadRefusedError(status, reason, retry_after_s, details)
