"""Reader of partitions by offset: one HTTP connection, kept open between requests.

Not safe for several threads at once; each has a reader of its own. A request is repeated once
where the kept connection turns out to be closed: reading changes nothing in the broker, and to
commit the same offsets again changes nothing either.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from leveret.api_connection import ApiClient, RequestRefusedError
from leveret.range_reader.chunk import FRONT_BYTES, chunk_bytes, parse_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from leveret.range_reader.chunk import ReadChunk

__all__ = ["OutOfRangeError", "PartitionOffsets", "RangeReader", "ReadRefusedError", "TopicBounds"]

CHUNKS_AT_ONCE: Final = 1000  # of one request: the most that a node sends


class ReadRefusedError(RequestRefusedError):
    """A read is refused."""


class OutOfRangeError(ReadRefusedError):
    """The offset is not in the log, which has [first, end): messages were lost to this reader."""

    def __init__(self, reason: str, first: int, end: int) -> None:
        super().__init__(416, reason)
        self.first = first
        self.end = end


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """Bounds of a queue's partitions. Another queue of the same name has another `log`."""

    log: str
    partitions: list[PartitionOffsets]


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Bounds of a partition; `offset` is the first one at the time asked for, if any was.

    `bytes` are those of its log on disk, if they were asked for.
    """

    partition: int
    first: int
    end: int
    offset: int | None = None
    bytes: int | None = None


class RangeReader(ApiClient):
    """Client for the queues of one virtual host. `url` is that of the management port.

    Raises OSError or http.client.HTTPException where the node cannot be reached.
    """

    @property
    def _topics(self) -> str:
        return f"/api/leveret/topics/{self._vhost}"

    @property
    def _groups(self) -> str:
        return f"/api/leveret/consumer-groups/{self._vhost}"

    def offsets(self, queue: str, time_ms: int | None = None) -> list[PartitionOffsets]:
        """Return the bounds of all partitions, and where a time begins in each.

        Raises ReadRefusedError.
        """
        return self.topic(queue, time_ms).partitions

    def topic(self, queue: str, time_ms: int | None = None, *, sizes: bool = False) -> TopicBounds:
        """Return what `offsets` does, the number of the queue's log, and with `sizes` the bytes.

        Raises ReadRefusedError.
        """
        query = {"time": time_ms, "sizes": "true" if sizes else None}
        with self._asked(f"/{quote(queue, safe='')}/offsets", query) as answer:
            told = json.loads(answer.read())
        return TopicBounds(told["log"], [PartitionOffsets(**row) for row in told["partitions"]])

    def topic_names(self) -> list[str]:
        """Return the names of the queues that can be read, for users with a management tag.

        Raises ReadRefusedError.
        """
        with self._asked("", {}) as answer:
            return [row["name"] for row in json.loads(answer.read())]

    def read(
        self,
        queue: str,
        partition: int,
        offset: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        wait_ms: int | None = None,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
        where: str | None = None,
    ) -> ReadChunk:
        """Return one chunk of a partition from `offset` on; without rows if there are none.

        It has only records that match: `tags` is an expression of tags, `where` one of SQL, as
        consumers have them. Raises OutOfRangeError, ReadRefusedError, MalformedChunkError.
        """
        query: dict[str, object] = {"offset": offset, "rows": rows_max, "bytes": bytes_max}
        query |= {"wait": wait_ms, "tags": tags, "filter": where}
        with self._asked(_records(queue, partition), query, columns) as answer:
            return _whole_chunk(answer)

    def chunks(
        self,
        queue: str,
        partition: int,
        offset: int,
        end: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
        where: str | None = None,
    ) -> Iterator[ReadChunk]:
        """Yield chunks that have the rows of [offset, end), and maybe more in the last one.

        One request brings many. What they are asked for must be there: it does not wait. Takes
        `tags` and `where`, and raises, as `read` does.
        """
        columns = None if columns is None else list(columns)
        while offset < end:
            query: dict[str, object] = {"offset": offset, "rows": rows_max, "bytes": bytes_max}
            query |= {"chunks": CHUNKS_AT_ONCE, "tags": tags, "filter": where}
            with self._asked(_records(queue, partition), query, columns) as answer:
                before = offset
                while offset < end and (chunk := next_chunk(answer)) is not None:
                    offset = chunk.next_offset
                    yield chunk
                if offset == before:
                    raise ReadRefusedError(200, f"the partition ends at {offset}, before {end}")

    def commit_offsets(self, queue: str, group: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Commit the next offset to read of partitions; return where the group is in these.

        The group is created if it does not exist. It never goes back: an offset below its place
        changes nothing. Raises ReadRefusedError, also if the group has members.
        """
        target = f"{self._groups}/{quote(queue, safe='')}/{quote(group, safe='')}/offsets"
        asked = {"offsets": {str(number): offsets[number] for number in offsets}}
        rows = self._connection.ask("PUT", target, asked)
        return {row["partition"]: row["after"] for row in rows}

    def resource(self, *path: str, **query: object) -> Any:
        """Return the JSON of another resource of the HTTP API: `resource("leveret", "usage")`.

        Parameters that are None are left out. Raises ReadRefusedError.
        """
        given = {name: value for name, value in query.items() if value is not None}
        target = "/api/" + "/".join(quote(part, safe="") for part in path)
        return self._connection.ask("GET", f"{target}?{urlencode(given)}")

    def _asked(
        self, path: str, query: dict[str, Any], columns: Iterable[str] | None = None
    ) -> AbstractContextManager[http.client.HTTPResponse]:
        """Return a context with the answer to a request for something below the topics."""
        given = {name: value for name, value in query.items() if value is not None}
        if columns is not None:
            given["columns"] = ",".join(columns)
        return self._connection.answered("GET", f"{self._topics}{path}?{urlencode(given)}")

    @staticmethod
    def _refusal(
        status: int, reason: str, retry_after_s: float | None, details: dict[str, Any]
    ) -> ReadRefusedError:
        first, end = details.get("first"), details.get("end")
        if status == 416 and isinstance(first, int) and isinstance(end, int):
            return OutOfRangeError(reason, first, end)
        return ReadRefusedError(status, reason, retry_after_s, details)


def _records(queue: str, partition: int) -> str:
    return f"/{quote(queue, safe='')}/partitions/{partition}/records"


def _whole_chunk(answer: http.client.HTTPResponse) -> ReadChunk:
    chunk = next_chunk(answer)
    if chunk is None:
        raise http.client.IncompleteRead(b"")
    answer.read()  # its end, so that the connection can be used again
    return chunk


def next_chunk(answer: http.client.HTTPResponse) -> ReadChunk | None:
    """Return the next chunk of an answer; None at its end."""
    front = bytearray(FRONT_BYTES)
    count = _fill(answer, memoryview(front))
    if not count:
        return None
    size = chunk_bytes(front[:count])
    data = bytearray(size)
    data[:FRONT_BYTES] = front
    got = FRONT_BYTES + _fill(answer, memoryview(data)[FRONT_BYTES:])
    if got < size:
        raise http.client.IncompleteRead(b"", size - got)
    return parse_chunk(data)


def _fill(answer: http.client.HTTPResponse, room: memoryview) -> int:
    """Read until `room` is full or the answer ends. Returns the number of bytes."""
    filled = 0
    while filled < len(room):
        count = answer.readinto(room[filled:])
        if not count:
            break
        filled += count
    return filled
