"""/api/leveret/batches/VHOST/…: batches that several processes stage, and one commits.

    POST   WRITER/NUMBER/parts/PART   chunks (docs/range-reads.md) → {"rows", "outcome", "checksum"}
    POST   WRITER/NUMBER/commit       {"parts": […], "mandatory": true} → {"outcome", "messages",
                                      "unrouted"}
    DELETE WRITER/NUMBER              drop the parts of a batch
    DELETE WRITER                     forget a writer that will not come again
    GET                               writers, what they have committed, and what is staged

Permissions are those for publishing, and no tag is needed: `write` for each exchange that is named.
An upload is taken apart as it comes: one chunk of it is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, Response
from starlette.requests import ClientDisconnect

from leveret.errors import ChannelError, ConnectionClosingError, StorageError
from leveret.features.range_reads.range_reads import RangeUsage
from leveret.features.staged_batches.chunk_rows import FRONT_BYTES, InvalidChunkError, chunk_size
from leveret.features.staged_batches.commands import batch_list
from leveret.features.staged_batches.records import WriterId
from leveret.features.staged_batches.rules import (
    BatchRefusedError,
    check_name,
    parse_checksum,
    parse_number,
    parse_parts,
)
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import Caller, ClientHere
from leveret.mgmt_ui.api.describing import body, stream
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    done,
    listed,
)
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.api.reading import client_refused, entered_vhost
from leveret.mgmt_ui.api.topics import CHUNK_TYPE
from leveret.mgmt_ui.api.views import Row
from leveret.mgmt_ui.hosts import RELEASE_BODY
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from leveret.core.vhost import Vhost
    from leveret.features.staged_batches.part_upload import PartUpload
    from leveret.features.staged_batches.staged import StagedBatches
    from leveret.features.staged_batches.upload_checks import PublishRights

__all__ = ["router"]

COMMIT_BYTES_MAX = 4 << 20  # of a commit's body: ten thousand names of 255 bytes and some
# HTTP status, error and seconds after which to try again, by the code of what refuses a batch.
REFUSALS: dict[str, tuple[int, str, int | None]] = {
    "invalid": (400, "bad_request", None),
    "not_found": (404, "not_found", None),
    "too_large": (413, "too_large", None),
    "full": (429, "too_many_requests", 10),
    "busy": (429, "too_many_requests", 1),
    "aborted": (409, "conflict", None),
    "refused": (409, "conflict", None),
    "conflict": (409, "conflict", None),
}
WRITERS: ObjectKind[Row] = ObjectKind(
    lambda row: (row["writer"], row["user"]), lambda row: row, ("writer", "user")
)


@dataclass(frozen=True, slots=True)
class RequestedBatch:
    """A batch that a request names, of its caller's writer."""

    caller: Caller
    host: Vhost
    writer: WriterId
    number: int

    @property
    def rights(self) -> PublishRights:
        """Rights of the caller to publish."""
        return self.caller.node.broker.batches.rights(self.host, self.caller.rights)


async def _requested(
    caller: ClientHere, vhost: Segment, writer: Segment, number: Segment
) -> RequestedBatch:
    """Return the batch of a path. Raises ApiError 400, 401 and 404."""
    with Refusals():
        host = await entered_vhost(caller, vhost)
        check_name(writer, "writer")
        return RequestedBatch(caller, host, WriterId(writer, caller.name), parse_number(number))


COMMIT = body({"parts": ["0", "1"], "mandatory": False}, "parts")
BatchHere = Annotated[RequestedBatch, Depends(_requested)]

router = own_router("/batches/{vhost}")


@router.api_route("", methods=READ)
async def list_writers(caller: ClientHere, query: QueryHere, vhost: Segment) -> Response:
    """Writers of batches, what they have committed last, and what is staged."""
    return await listed(await caller.perform(batch_list, vhost=vhost), WRITERS, query)


@router.post("/{writer}/{number}/parts/{part}", openapi_extra=stream(CHUNK_TYPE))
async def upload_part(
    request: Request, batch: BatchHere, part: Segment, checksum: str | None = None
) -> Response:
    """Stage one part of a batch: messages as the columns of chunks."""
    caller, host = batch.caller, batch.host
    with Refusals():
        stated = None if checksum is None else parse_checksum(checksum)
        _check_flow(caller, host)
        batches = caller.node.broker.batches.of(host)
        with batches.upload(batch.writer, batch.number, part, batch.rights) as upload:
            await _take_chunks(request, upload, batches)
            outcome = await upload.finish(stated)
    is_new = outcome["outcome"] == "staged"
    if is_new:
        _account(caller, host, upload)
    return answer(outcome, 201 if is_new else 200)


@router.post("/{writer}/{number}/commit", openapi_extra=COMMIT)
async def commit(request: Request, batch: BatchHere) -> Response:
    """Publish the messages of the named parts, all or none, and once."""
    with Refusals():
        _check_alarms(batch.caller)
        asked = await json_object(request, COMMIT_BYTES_MAX)
        names, mandatory = parse_parts(asked.get("parts")), asked.get("mandatory", False)
        if not isinstance(mandatory, bool):
            raise bad_request("mandatory is true or false")
        batches = batch.caller.node.broker.batches.of(batch.host)
        outcome = await batches.commit(
            batch.writer, batch.number, names, batch.rights, mandatory=mandatory
        )
        return answer(outcome)


@router.delete("/{writer}/{number}")
async def abort(batch: BatchHere) -> Response:
    """Drop what is staged of a batch."""
    batches = batch.caller.node.broker.batches.find(batch.host.name)
    with Refusals():
        if batches is not None:
            await batches.abort(batch.writer, batch.number)
    return done()


@router.delete("/{writer}")
async def forget(caller: ClientHere, vhost: Segment, writer: Segment) -> Response:
    """Forget a writer of the caller's and what it has staged: its numbers may come again."""
    with Refusals():
        host = await entered_vhost(caller, vhost)
        check_name(writer, "writer")
        batches = caller.node.broker.batches.find(host.name)
        if batches is not None:
            await batches.forget(WriterId(writer, caller.name))
    return done()


class Refusals:
    """Turns what refuses a batch into the answers of the API."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BatchRefusedError):
            status, name, seconds = REFUSALS[error.code]
            headers = None if seconds is None else {"retry-after": str(seconds)}
            raise ApiError(status, name, str(error), headers) from None
        if isinstance(error, InvalidChunkError):
            raise bad_request(str(error)) from None
        if isinstance(error, ChannelError):
            raise client_refused(error) from None
        if isinstance(error, ConnectionClosingError):
            raise bad_request(error.explanation) from None
        if isinstance(error, StorageError):
            raise ApiError(503, "service_unavailable", str(error), {"retry-after": "1"}) from None


def _check_flow(caller: Caller, vhost: Vhost) -> None:
    """Raise ApiError 429 over a publish-rate, 503 while an alarm holds publishers back."""
    _check_alarms(caller)
    seconds = caller.node.broker.rates.publish_wait_seconds(caller.name, vhost.definition)
    if seconds:
        text = "over a publish-rate of the user or the virtual host"
        raise ApiError(429, "too_many_requests", text, {"retry-after": str(seconds)})


def _check_alarms(caller: Caller) -> None:
    if caller.node.broker.alarms.reason:
        text = "the node takes no messages now: an alarm holds publishers back"
        raise ApiError(503, "service_unavailable", text, {"retry-after": "1"})


def _account(caller: Caller, vhost: Vhost, upload: PartUpload) -> None:
    """Count what was staged for the user, as what a connection publishes."""
    broker, part = caller.node.broker, upload.part
    broker.rates.published(caller.name, vhost.definition, part.rows)
    usage = Usage(messages_in=part.rows, bytes_in=part.bytes)
    broker.usage.ended(RangeUsage(vhost.name, caller.name, usage))


async def _take_chunks(request: Request, upload: PartUpload, batches: StagedBatches) -> None:
    """Store a body chunk by chunk. Raises ApiError for one that has none."""
    release: Callable[[int], None] = request.scope[RELEASE_BODY]
    is_empty = True
    async for chunk in _chunks(request, batches.limits.chunk_bytes_max):
        is_empty = False
        await upload.take(chunk)
        release(len(chunk))
    if is_empty:  # what a program sends that has failed to read what it was to stage
        raise bad_request("the body is empty: a part without messages is a chunk of 0 rows")


async def _chunks(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the chunks of a body. Raises ApiError, InvalidChunkError."""
    held = bytearray()
    wanted = 0  # bytes of the chunk at hand; 0: not known yet
    try:
        async for piece in request.stream():
            held += piece
            while len(held) >= (wanted or FRONT_BYTES):
                if not wanted:
                    wanted = _checked_size(held, bytes_max)
                    continue
                chunk = bytes(memoryview(held)[:wanted])
                del held[:wanted]
                wanted = 0
                yield chunk
    except ClientDisconnect:
        raise bad_request("the request ended early") from None
    if held:
        raise bad_request("the body ends within a chunk")


def _checked_size(front: bytearray, bytes_max: int) -> int:
    size = chunk_size(bytes(front[:FRONT_BYTES]))
    if size > bytes_max:
        raise BatchRefusedError("too_large", f"a chunk of {size} bytes: at most {bytes_max}")
    return size
