"""/api/leveret/leases/VHOST/…: messages of queues, leased by the batch (features.batch_leases).

    GET                            holders, and what they have leased
    GET    QUEUE                   → {"log", "ready"}
    POST   QUEUE/HOLDER/NUMBER     {"messages", "bytes", "wait_ms", "idle_ms"}
                                   → {"log", "messages", "bytes", "ranges"}
    PUT    QUEUE/HOLDER/NUMBER     {"log", "ranges", "idle_ms"}: lease these again
                                   → {"messages", "missing", "ranges"}
    GET    QUEUE/HOLDER/NUMBER/partitions/PARTITION/records    → chunks, as of /topics
    POST   QUEUE/HOLDER/NUMBER/settle      {"log", "ranges"} → {"settled", "missing"}
    DELETE QUEUE/HOLDER            → {"released"}

Read permission for the queue is enough, as for any consumer. A holder is its user's. A client that
hangs up while a lease is made gets none.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from fastapi import Depends, Request, Response

from leveret.errors import ChannelError, StorageError
from leveret.features.batch_leases.batch_leases import lease_row
from leveret.features.batch_leases.commands import lease_list
from leveret.features.batch_leases.holder import HolderName
from leveret.features.batch_leases.leasing import queue_parts
from leveret.features.batch_leases.rules import (
    LeaseRefusedError,
    check_holder,
    parse_idle,
    parse_lease_number,
    parse_ranges,
    parse_wish,
    ranges_row,
)
from leveret.features.range_reads.range_reads import BusyError
from leveret.features.range_reads.rules import PARAMETERS, log_text, parse_request
from leveret.mgmt_ui.api.bodies import json_object
from leveret.mgmt_ui.api.callers import Caller, ClientHere
from leveret.mgmt_ui.api.describing import body, query
from leveret.mgmt_ui.api.listing import READ as LISTED
from leveret.mgmt_ui.api.listing import ObjectKind, QueryHere, Segment, answer, listed
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_found
from leveret.mgmt_ui.api.reading import (
    check_rates,
    client_refused,
    queue_to_read,
    unreadable,
    watching,
)
from leveret.mgmt_ui.api.topics import ChunkAnswer, Stretch
from leveret.mgmt_ui.api.views import Row
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.features.batch_leases.batch_leases import BatchLeases
    from leveret.features.batch_leases.holder import BatchHolder
    from leveret.features.batch_leases.lease_book import BatchLease
    from leveret.features.batch_leases.rules import PartRanges
    from leveret.features.range_reads.range_read import PackedChunk
    from leveret.features.range_reads.rules import RangeRequest

__all__ = ["router"]

# Requests of the node's HTTP connections that may wait for messages; others must get through.
WAITING_MAX = 64
# HTTP status, error and seconds after which to try again, by the code of what refuses a request.
REFUSALS: dict[str, tuple[int, str, int | None]] = {
    "invalid": (400, "bad_request", None),
    "not_found": (410, "lease_not_found", None),
    "settled": (409, "lease_settled", None),
    "another": (412, "precondition_failed", None),
    "full": (409, "conflict", None),
    "busy": (503, "service_unavailable", 1),
}
WISH = {"messages": 100_000, "bytes": 64 << 20, "wait_ms": 1000, "idle_ms": 600_000}
AGAIN = {"log": "ea503252eabd3663", "ranges": {"0": [[10, 20]]}, "idle_ms": 600_000}
RECORDS = {name: PARAMETERS[name] for name in ("offset", "rows", "bytes", "chunks", "columns")}
SETTLED = {"log": "ea503252eabd3663", "ranges": {"0": [[10, 20]]}}

HOLDERS: ObjectKind[Row] = ObjectKind(
    lambda row: (row["queue"], row["holder"], row["user"]),
    lambda row: row,
    ("queue", "holder", "user"),
)

Answered: TypeAlias = "asyncio.Future[BatchLease | None]"


@dataclass(frozen=True, slots=True)
class RequestedLease:
    """A lease that a request names, of its caller's holder."""

    caller: Caller
    queue: DeclaredQueue
    name: HolderName
    number: int

    @property
    def leases(self) -> BatchLeases:
        """Batch leases of the node."""
        return self.caller.node.broker.batch_leases

    def holder(self) -> BatchHolder:
        """Return the holder, a new one if it is not known. LeaseRefusedError, ChannelError."""
        return self.leases.holder(self.queue, self.name)


async def _requested(
    caller: ClientHere, vhost: Segment, name: Segment, holder: Segment, number: Segment
) -> RequestedLease:
    """Return the lease of a path. Raises ApiError 400, 401, 403 and 404."""
    with LeaseRefusals():
        queue = await _leased_queue(caller, vhost, name)
        check_holder(holder)
        return RequestedLease(
            caller, queue, HolderName(caller.name, holder), parse_lease_number(number)
        )


LeaseHere = Annotated[RequestedLease, Depends(_requested)]

router = own_router("/leases/{vhost}")


@router.api_route("", methods=LISTED)
async def list_holders(caller: ClientHere, query: QueryHere, vhost: Segment) -> Response:
    """Holders of batch leases, and what they have leased."""
    return await listed(await caller.perform(lease_list, vhost=vhost), HOLDERS, query)


@router.get("/{name}")
async def show_ready(caller: ClientHere, vhost: Segment, name: Segment) -> Response:
    """Return how many messages of a queue are ready."""
    queue = await _leased_queue(caller, vhost, name)
    return answer({"log": log_text(queue.definition), "ready": queue.message_count})


@router.post("/{name}/{holder}/{number}", openapi_extra=body(WISH))
async def lease(request: Request, wanted: LeaseHere) -> Response:
    """Lease the next messages, as soon as there are any; the same number again the same ones."""
    with LeaseRefusals():
        wish = parse_wish(await json_object(request))
        check_rates(wanted.caller, wanted.queue)
        holder = wanted.holder()
        done: Answered = asyncio.get_running_loop().create_future()
        if sum(each.is_leasing for each in wanted.leases) >= WAITING_MAX:
            raise ApiError(429, "too_many_requests", "too many wait", {"retry-after": "1"})
        holder.lease(wanted.number, wish, wanted.leases.limits, done.set_result)
        found = await _wait(request, holder, done)
    if wanted.queue.deleted:
        raise not_found("queue_not_found")
    return answer(lease_row(wanted.queue, found))


async def _wait(request: Request, holder: BatchHolder, done: Answered) -> BatchLease | None:
    """Wait for a lease; None if the client hangs up."""
    if done.done():
        return done.result()

    def hung_up() -> None:
        if not done.done():
            holder.cancel_leasing()
            done.set_result(None)

    try:
        async with watching(request.receive, hung_up):
            return await done
    finally:
        if not done.done() or done.cancelled():
            holder.cancel_leasing()


@router.put("/{name}/{holder}/{number}", openapi_extra=body(AGAIN, "log", "ranges"))
async def lease_again(request: Request, wanted: LeaseHere) -> Response:
    """Lease exactly these offsets, those that are ready or that the lease has already."""
    with LeaseRefusals():
        asked = await json_object(request)
        ranges, idle_ms = _ranges(wanted.queue, asked), parse_idle(asked)
        holder = wanted.holder()
        holder.asked(idle_ms)
        has, missing = holder.lease_again(wanted.number, ranges, wanted.leases.limits)
    messages = sum(each.count for each in has.values())
    return answer({"messages": messages, "missing": missing, "ranges": ranges_row(has)})


@router.post("/{name}/{holder}/{number}/settle", openapi_extra=body(SETTLED))
async def settle(request: Request, wanted: LeaseHere) -> Response:
    """Settle the leases up to a number, and what of the given offsets is ready."""
    with LeaseRefusals():
        asked = await json_object(request)
        ranges = _ranges(wanted.queue, asked) if "ranges" in asked else {}
        found = wanted.leases.find(wanted.queue, wanted.name)
        if found is None and not ranges:
            raise LeaseRefusedError("not_found", f"lease {wanted.number} is not known")
        settled = (found or wanted.holder()).settle(wanted.number, ranges)
    return answer(settled._asdict())


@router.get(
    "/{name}/{holder}/{number}/partitions/{partition}/records", openapi_extra=query(RECORDS)
)
async def leased_records(request: Request, wanted: LeaseHere, partition: Segment) -> Response:
    """Return leased records of a partition from an offset on."""
    await let_others_run()  # what is done for a request before takes as long as some slices
    leases, reads = wanted.leases, wanted.caller.node.broker.range_reads
    slices = request.app.state.range_slices
    try:
        asked = parse_request(request.query_params, reads.clock.is_over)
    except ValueError as error:
        raise bad_request(str(error)) from None
    part = _part(wanted.queue, partition)

    async def read(request: RangeRequest) -> PackedChunk:
        with LeaseRefusals():
            found = leases.find(wanted.queue, wanted.name)
            if found is None:
                raise LeaseRefusedError("not_found", f"lease {wanted.number} is not known")
            return await leases.read(found, wanted.number, part, request, slices)

    check_rates(wanted.caller, wanted.queue)
    try:
        reads.reserve(asked)
    except BusyError as error:
        raise ApiError(429, "too_many_requests", str(error), {"retry-after": "1"}) from None
    try:
        chunk = await read(asked)
    except BaseException:
        reads.release(asked)
        raise
    return ChunkAnswer(Stretch(wanted.caller, wanted.queue, part, asked, read), chunk)


@router.delete("/{name}/{holder}")
async def release(caller: ClientHere, vhost: Segment, name: Segment, holder: Segment) -> Response:
    """Give everything back that a holder has leased: it is none any more."""
    queue = await _leased_queue(caller, vhost, name)
    leases = caller.node.broker.batch_leases
    found = leases.find(queue, HolderName(caller.name, holder))
    return answer({"released": 0 if found is None else found.release()})


class LeaseRefusals:
    """Turns what refuses a request about leases into the answers of the API."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LeaseRefusedError):
            status, name, seconds = REFUSALS[error.code]
            headers = None if seconds is None else {"retry-after": str(seconds)}
            raise ApiError(status, name, str(error), headers) from None
        if isinstance(error, ChannelError):
            raise client_refused(error) from None
        if isinstance(error, StorageError):
            raise unreadable(error) from None


def _ranges(queue: DeclaredQueue, asked: dict[str, object]) -> PartRanges:
    """Return the offsets that a request names. Raises LeaseRefusedError."""
    if asked.get("log") != log_text(queue.definition):
        raise LeaseRefusedError(
            "another", f"{queue} was deleted and declared again: these offsets are not its own"
        )
    return parse_ranges(asked.get("ranges"))


def _part(queue: DeclaredQueue, number: str) -> Queue:
    found = next((each for each in queue_parts(queue) if str(each.number) == number), None)
    if found is None:
        raise not_found("partition_not_found")
    return found


async def _leased_queue(caller: Caller, vhost: str, name: str) -> DeclaredQueue:
    """Return a queue that the caller may consume. Raises ApiError 400, 401, 403 and 404."""
    queue = await queue_to_read(caller, vhost, name)
    if queue.settings.is_stream:
        raise bad_request("a stream is read by offset, and nothing is taken away from it")
    return queue
