"""/api/leveret/dedup, producers and prepared, each of one VHOST: de-duplication.

    GET    dedup/VHOST                          windows: keys in memory, duplicates dropped
    GET    dedup/VHOST/KIND/NAME/ID             when a message with this id was accepted
    DELETE dedup/VHOST/KIND/NAME/ID             accept a message with this id again
    GET    producers/VHOST                      idempotent producers and their last numbers
    DELETE producers/VHOST/ID                   let a producer start anew; for administrators
    GET    prepared/VHOST                       prepared messages that wait for a decision
    POST   prepared/VHOST/ID/commit             …/rollback

KIND is `queue` or `exchange`. Users who may enter the virtual host may list; configure permission
for the queue or exchange allows to remove ids; write permission for the exchange of a prepared
message to decide about it. Times are milliseconds since 1970.
"""

from __future__ import annotations

from fastapi import Request, Response

from leveret.features.dedup.commands import (
    dedup_forget,
    dedup_list,
    dedup_show,
    producers_forget,
    producers_list,
)
from leveret.features.transactions.commands import (
    prepared_commit,
    prepared_list,
    prepared_rollback,
    prepared_show,
)
from leveret.mgmt_ui.api.callers import AdministratorHere, CallerHere
from leveret.mgmt_ui.api.describing import query as described_query
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.api.views import Row

__all__ = ["router"]

router = own_router(tags=["once"])

WINDOWS: ObjectKind[Row] = ObjectKind(
    lambda row: (row["kind"], row["name"]), lambda row: row, ("kind", "name")
)
BY_ID: ObjectKind[Row] = ObjectKind(lambda row: (row["id"],), lambda row: row, ("id",))
KINDS = ("queue", "exchange")
DECISIONS = {"commit": prepared_commit, "rollback": prepared_rollback}


@router.api_route("/dedup/{vhost}", methods=READ)
async def list_windows(caller: CallerHere, query: QueryHere, vhost: Segment) -> Response:
    """The de-duplication windows of queues and exchanges."""
    return await listed(await caller.perform(dedup_list, vhost=vhost), WINDOWS, query)


@router.api_route("/dedup/{vhost}/{kind}/{name}/{id}", methods=READ)
async def show_seen(
    caller: CallerHere,
    vhost: Segment,
    kind: Segment,
    name: Segment,
    id: Segment,  # noqa: A002
) -> Response:
    """One window, and when it accepted a message with this id; null if it did not."""
    caller.vhost(vhost)
    window = _window(kind, name)
    return answer(await caller.perform(dedup_show, vhost=vhost, id_=id, **window))


@router.delete("/dedup/{vhost}/{kind}/{name}/{id}")
async def forget_seen(
    caller: CallerHere,
    vhost: Segment,
    kind: Segment,
    name: Segment,
    id: Segment,  # noqa: A002
) -> Response:
    """Remove an id from a window: a message with it is stored again."""
    caller.vhost(vhost)
    window = _window(kind, name)
    await caller.perform(dedup_forget, vhost=vhost, id_=id, **window)
    return done()


@router.api_route("/producers/{vhost}", methods=READ)
async def list_producers(caller: CallerHere, query: QueryHere, vhost: Segment) -> Response:
    """Idempotent producers."""
    return await listed(await caller.perform(producers_list, vhost=vhost), BY_ID, query)


@router.delete("/producers/{vhost}/{id}", openapi_extra=described_query({"user": "alice"}))
async def forget_producer(
    caller: AdministratorHere,
    request: Request,
    vhost: Segment,
    id: Segment,  # noqa: A002
) -> Response:
    """Let a producer start anew, with any epoch and number 0: of ?user, or of all users."""
    caller.vhost(vhost)
    user = request.query_params.get("user")
    await caller.perform(producers_forget, vhost=vhost, id_=id, user=user)
    return done()


@router.api_route("/prepared/{vhost}", methods=READ)
async def list_prepared(caller: CallerHere, query: QueryHere, vhost: Segment) -> Response:
    """Prepared messages that wait, without their bodies."""
    return await listed(await caller.perform(prepared_list, vhost=vhost), BY_ID, query)


@router.post("/prepared/{vhost}/{id}/{decision}")
async def decide(
    caller: CallerHere,
    vhost: Segment,
    id: Segment,  # noqa: A002
    decision: Segment,
) -> Response:
    """Commit a prepared message to its queues, or roll it back."""
    caller.vhost(vhost)
    if decision not in DECISIONS:
        raise not_found()
    found = await caller.perform(prepared_show, vhost=vhost, id_=id)
    await caller.require(vhost, "exchange", found["exchange"] or "amq.default", "write")
    await caller.perform(DECISIONS[decision], vhost=vhost, id_=id)
    return done()


def _window(kind: str, name: str) -> dict[str, str | None]:
    """Return queue or exchange of a window, as operations take them. Raises ApiError 404."""
    if kind not in KINDS:
        raise not_found()
    return {each: name if each == kind else None for each in KINDS}
