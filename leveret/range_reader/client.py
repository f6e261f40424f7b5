"""Reader of partitions by offset: one HTTP connection, kept open between requests.

Not safe for several threads at once; each has a reader of its own. A request is repeated once
where the kept connection turns out to be closed: reading changes nothing in the broker.
"""

from __future__ import annotations

import base64
import http.client
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from leveret.range_reader.chunk import FRONT_BYTES, chunk_bytes, parse_chunk

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator
    from typing import Self

    from leveret.range_reader.chunk import ReadChunk

__all__ = ["OutOfRangeError", "PartitionOffsets", "RangeReader", "ReadRefusedError"]

TIMEOUT_S: Final = 90.0  # longer than the longest wait and answer
CHUNKS_AT_ONCE: Final = 1000  # of one request: the most that a node sends
REASON_BYTES_MAX: Final = 1 << 20  # of an answer that refuses; ours have some hundred


class ReadRefusedError(Exception):
    """An answer that is no success: its HTTP status, and the reason.

    `retry_after_s` is set where the same request may be sent again after that time.
    """

    def __init__(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class OutOfRangeError(ReadRefusedError):
    """The offset is not in the log, which has [first, end): messages were lost to this reader."""

    def __init__(self, reason: str, first: int, end: int) -> None:
        super().__init__(416, reason)
        self.first = first
        self.end = end


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Bounds of a partition; `offset` is the first one at the time asked for, if any was."""

    partition: int
    first: int
    end: int
    offset: int | None = None


class RangeReader:
    """Client for the queues of one virtual host. `url` is that of the management port.

    Raises OSError or http.client.HTTPException where the node cannot be reached.
    """

    def __init__(
        self,
        url: str,
        user: str,
        password: str,
        vhost: str = "/",
        *,
        context: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        place = urlsplit(url)
        if place.scheme not in {"http", "https"} or place.hostname is None:
            raise ValueError(f"no URL of a management port: {url!r}")
        self._connection: http.client.HTTPConnection
        if place.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                place.hostname, place.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(
                place.hostname, place.port, timeout=timeout_s
            )
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._root = f"/api/leveret/topics/{quote(vhost, safe='')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        self._connection.close()

    def offsets(self, queue: str, time_ms: int | None = None) -> list[PartitionOffsets]:
        """Return the bounds of all partitions, and where a time begins in each.

        Raises ReadRefusedError.
        """
        query = {} if time_ms is None else {"time": time_ms}
        with self._asked(f"{quote(queue, safe='')}/offsets", query) as answer:
            told = json.loads(answer.read())
        return [PartitionOffsets(**row) for row in told["partitions"]]

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
    ) -> ReadChunk:
        """Return one chunk of a partition from `offset` on; without rows if there are none.

        Raises OutOfRangeError, ReadRefusedError, MalformedChunkError.
        """
        query = {"offset": offset, "rows": rows_max, "bytes": bytes_max, "wait": wait_ms}
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
    ) -> Iterator[ReadChunk]:
        """Yield chunks that have the rows of [offset, end), and maybe more in the last one.

        One request brings many. What they are asked for must be there: it does not wait. Raises as
        `read` does.
        """
        columns = None if columns is None else list(columns)
        while offset < end:
            query = {"offset": offset, "rows": rows_max, "bytes": bytes_max}
            query["chunks"] = CHUNKS_AT_ONCE
            with self._asked(_records(queue, partition), query, columns) as answer:
                before = offset
                while offset < end and (chunk := _next_chunk(answer)) is not None:
                    offset = chunk.next_offset
                    yield chunk
                if offset == before:
                    raise ReadRefusedError(200, f"the partition ends at {offset}, before {end}")

    @contextmanager
    def _asked(
        self, path: str, query: dict[str, Any], columns: Iterable[str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request; what is left of it closes the connection."""
        given = {name: value for name, value in query.items() if value is not None}
        if columns is not None:
            given["columns"] = ",".join(columns)
        try:
            answer = self._answer(f"{self._root}/{path}?{urlencode(given)}")
            _check(answer)
            yield answer
        except ReadRefusedError:
            raise
        except BaseException:
            self._connection.close()
            raise
        if not answer.isclosed():
            self._connection.close()

    def _answer(self, target: str) -> http.client.HTTPResponse:
        is_kept = self._connection.sock is not None
        try:
            self._connection.request("GET", target, headers=self._headers)
            return self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()
            if not is_kept:
                raise
        self._connection.request("GET", target, headers=self._headers)
        return self._connection.getresponse()


def _records(queue: str, partition: int) -> str:
    return f"{quote(queue, safe='')}/partitions/{partition}/records"


def _whole_chunk(answer: http.client.HTTPResponse) -> ReadChunk:
    chunk = _next_chunk(answer)
    if chunk is None:
        raise http.client.IncompleteRead(b"")
    answer.read()  # its end, so that the connection can be used again
    return chunk


def _next_chunk(answer: http.client.HTTPResponse) -> ReadChunk | None:
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


def _check(answer: http.client.HTTPResponse) -> None:
    """Raise ReadRefusedError for an answer that is no success."""
    if answer.status != 200:
        raise _refusal(answer, answer.read(REASON_BYTES_MAX))


def _refusal(answer: http.client.HTTPResponse, body: bytes) -> ReadRefusedError:
    try:
        told = json.loads(body)
        reason = str(told["reason"])
        if answer.status == 416:
            return OutOfRangeError(reason, int(told["first"]), int(told["end"]))
    except (ValueError, KeyError, TypeError):
        reason = answer.reason
    after = answer.headers.get("retry-after", "")
    return ReadRefusedError(answer.status, reason, float(after) if after.isdigit() else None)
