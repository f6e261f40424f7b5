"""GET /api/leveret/topics/VHOST/NAME/…: reading a queue by offset (leveret.features.range_reads).

    offsets                         → [{"partition", "first", "end"}]; with `time` "offset" as well,
                                      with `sizes=true` "bytes"
    partitions/NUMBER/records       → a chunk: `offset`, `rows`, `bytes`, `wait` (ms), `columns`,
                                      and `tags` and `filter`, as consumers have them

Read permission for the queue is enough, as for pulling. What a chunk looks like is drawn in
docs/range-reads.md. An offset outside of the log is answered 416, with the bounds: the reader has
lost messages. A client that hangs up while it waits leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from leveret.errors import ChannelError, StorageError
from leveret.features.range_reads.bounds import offset_rows
from leveret.features.range_reads.range_reads import BusyError, OffsetRangeError, RangeUsage
from leveret.features.range_reads.rules import (
    PARAMETERS,
    check_read_by_offset,
    log_text,
    parse_request,
    parse_time,
    parse_truth,
)
from leveret.mgmt_ui.api.callers import Caller, ClientHere
from leveret.mgmt_ui.api.describing import query
from leveret.mgmt_ui.api.listing import PRIVATE, Segment, answer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_found
from leveret.mgmt_ui.api.reading import (
    check_rates,
    client_refused,
    queue_to_read,
    unreadable,
    watching,
)
from leveret.ports.usage import Usage
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.range_reads.range_read import PackedChunk
    from leveret.features.range_reads.range_reads import RangeReads
    from leveret.features.range_reads.rules import RangeRequest

__all__ = [
    "CHUNK_TYPE",
    "ChunkAnswer",
    "Stretch",
    "readable_queue",
    "router",
]

CHUNK_TYPE = "application/vnd.leveret.chunk"
SEND_BYTES = 128 * 1024  # at a time, with a pass of the loop in between
ANSWER_SECONDS_MAX = 20  # for chunks to be begun: a connection is cut after a minute

router = own_router("/topics/{vhost}/{name}")


@router.get("/offsets", openapi_extra=query({"time": 0, "sizes": False}))
async def offsets(caller: ClientHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Return first and end offset of each partition, and if asked for bytes, or a time's offset."""
    queue = await readable_queue(caller, vhost, name)
    try:
        time_ms = parse_time(request.query_params)
        sizes = parse_truth(request.query_params, "sizes")
        rows = await offset_rows(queue, time_ms, sizes=sizes)
    except ValueError as error:
        raise bad_request(str(error)) from None
    except StorageError as error:
        raise unreadable(error) from None
    return answer({"log": log_text(queue.definition), "partitions": rows})


@router.get("/partitions/{number}/records", openapi_extra=query(PARAMETERS))
async def records(
    caller: ClientHere, request: Request, vhost: Segment, name: Segment, number: Segment
) -> Response:
    """Return records of a partition from an offset on, as soon as there are any."""
    await let_others_run()  # what is done for a request before takes as long as some slices
    queue = await readable_queue(caller, vhost, name)
    reads, slices = caller.node.broker.range_reads, request.app.state.range_slices
    try:
        wanted = parse_request(request.query_params, reads.clock.is_over)
    except ValueError as error:
        raise bad_request(str(error)) from None
    partition: OpenQueue | None = next(
        (each for each in queue.partitions if str(each.number) == number), None
    )
    if partition is None:
        raise not_found("partition_not_found")
    check_rates(caller, queue)
    try:
        await _wait(request, reads, partition, wanted)
        if partition.deleted:
            raise not_found("queue_not_found")
        reads.reserve(wanted)
        try:
            chunk = await reads.read(partition, wanted, slices)
        except BaseException:
            reads.release(wanted)
            raise
    except OffsetRangeError as error:
        return _out_of_range(error)
    except BusyError as error:
        raise ApiError(429, "too_many_requests", str(error), {"retry-after": "1"}) from None
    except StorageError as error:
        if partition.deleted:
            raise not_found("queue_not_found") from None
        raise unreadable(error) from None

    async def read(request: RangeRequest) -> PackedChunk:
        return await reads.read(partition, request, slices)

    return ChunkAnswer(Stretch(caller, queue, partition, wanted, read), chunk)


async def _wait(
    request: Request, reads: RangeReads, partition: OpenQueue, wanted: RangeRequest
) -> None:
    """Wait until there is something to be read, the time is over, or the client hangs up."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def woken() -> None:
        if not done.done():
            done.set_result(None)

    waiting = reads.wait(partition, wanted, woken)
    if waiting is None:
        return
    try:
        async with watching(request.receive, woken):
            await done
    finally:
        reads.cancel(waiting)


class Stretch:
    """Stretch of a partition that one request reads: a chunk, or several that follow each other.

    `read` reads one chunk; where it raises, the answer ends.
    """

    def __init__(
        self,
        caller: Caller,
        queue: Any,
        partition: OpenQueue,
        wanted: RangeRequest,
        read: Callable[[RangeRequest], Awaitable[PackedChunk]],
    ) -> None:
        self._read = read
        self._caller = caller
        self._queue = queue
        self._partition = partition
        self._wanted = wanted
        self._chunks_left = wanted.chunks_max
        loop = asyncio.get_running_loop()
        self._time, self._until = loop.time, loop.time() + ANSWER_SECONDS_MAX
        self._reads = caller.node.broker.range_reads

    @property
    def is_one(self) -> bool:
        """Whether only one chunk was asked for."""
        return self._wanted.chunks_max == 1

    def account(self, chunk: PackedChunk) -> None:
        """Count the records of a chunk for the user, as for deliveries of a connection."""
        broker, vhost = self._caller.node.broker, self._queue.definition.vhost
        usage = Usage(messages_out=chunk.rows, bytes_out=chunk.stored_bytes)
        if (found := broker.vhosts.get(vhost)) is not None and chunk.rows:
            broker.rates.pulled(self._caller.name, found.definition, self._queue, chunk.rows)
        broker.usage.ended(RangeUsage(vhost, self._caller.name, usage))

    async def next(self, chunk: PackedChunk) -> PackedChunk | None:
        """Return the next chunk; None at the end, or where the next request shall be told why."""
        self._chunks_left -= 1
        is_over = self._chunks_left <= 0 or self._time() >= self._until
        if is_over or not chunk.has_more or self._partition.deleted:
            return None
        self._wanted = replace(self._wanted, offset=chunk.next_offset)
        try:
            check_rates(self._caller, self._queue)
            return await self._read(self._wanted)
        except (ApiError, OffsetRangeError, StorageError):
            return None

    def end(self) -> None:
        """Release the memory of the chunks."""
        self._reads.release(self._wanted)


class ChunkAnswer(Response):
    """Chunks, sent in pieces; their memory is released when they are sent, or cannot be."""

    def __init__(self, stretch: Stretch, chunk: PackedChunk) -> None:
        self._stretch = stretch
        self._chunk: PackedChunk | None = chunk
        # Without a length the server sends the answer in chunks of HTTP's.
        length = {"content-length": str(chunk.size)} if stretch.is_one else {}
        super().__init__(None, 200, {**PRIVATE, **length}, CHUNK_TYPE)
        if not length:
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the chunks (see the ASGI specification)."""
        hung_up = asyncio.Event()
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            async with watching(receive, hung_up.set):
                await self._send_chunks(send, hung_up)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._chunk = None
            self._stretch.end()

    async def _send_chunks(self, send: Send, hung_up: asyncio.Event) -> None:
        while (chunk := self._chunk) is not None:
            await let_others_run()
            self._stretch.account(chunk)
            await let_others_run()
            for piece in pieces(chunk.parts):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await let_others_run()
            chunk.parts.clear()
            self._chunk = None if hung_up.is_set() else await self._stretch.next(chunk)


def pieces(parts: list[memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the parts in pieces of about `SEND_BYTES`: small ones together, large ones cut."""
    gathered: list[memoryview] = []
    size = 0
    for part in parts:
        if size + len(part) > SEND_BYTES:
            if gathered:
                yield b"".join(gathered)
            gathered, size = [], 0
        if len(part) > SEND_BYTES:
            for start in range(0, len(part), SEND_BYTES):
                yield part[start : start + SEND_BYTES]
        else:
            gathered.append(part)
            size += len(part)
    if gathered:
        yield b"".join(gathered)


async def readable_queue(caller: Caller, vhost: str, name: str) -> DeclaredQueue:
    """Return a queue that the caller may read by offset. Raises ApiError 400, 401 and 404."""
    queue = await queue_to_read(caller, vhost, name)
    try:
        check_read_by_offset(queue, name)
    except ChannelError as error:
        raise client_refused(error) from None
    return queue


def _out_of_range(error: OffsetRangeError) -> Response:
    body = {
        "error": "offset_out_of_range",
        "reason": str(error),
        "first": error.bounds.first,
        "end": error.bounds.end,
    }
    return JSONResponse(body, 416, PRIVATE)
