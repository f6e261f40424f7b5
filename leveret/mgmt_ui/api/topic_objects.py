"""/api/leveret/topics: streams, and queues with partitions or a retention (api.topics reads them).

    GET …                           topics with their totals, of all virtual hosts
    GET …/VHOST                     of one
    GET …/VHOST/NAME                one queue, also a plain one, with `partition_details` and
                                    `group_lags`
    PUT …/VHOST/NAME/partitions     {"count": 4, "dry_run": true}
                                    → {"active": [0, 1, 2, 3], "retired": []}

Users who may enter the virtual host may look; configure permission for the queue allows to change
its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fastapi import Request, Response

from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.features.topics.commands import topic_describe, topic_set_partitions
from leveret.features.topics.rows import is_topic, topic_row
from leveret.mgmt_ui.api.bodies import json_object, truth
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    listed,
    vhosts_of,
)
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.objects import queues_of
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["router", "topics_kind", "topics_of"]

CHANGE = {"count": 4, "dry_run": True}
TOPIC = "/{vhost}/{name}"

router = own_router("/topics", tags=["topics"])


def topics_kind(caller: Caller) -> ObjectKind[DeclaredQueue]:
    """Return how lists of topics are sorted and shown."""
    groups = caller.node.broker.groups
    return ObjectKind(
        lambda queue: (queue.definition.vhost, queue.name),
        lambda queue: topic_row(queue, groups),
    )


async def topics_of(caller: Caller, vhost: str | None = None) -> list[DeclaredQueue]:
    """Return the topics that the caller may list. Raises ApiError 401 and 404."""

    def is_meant(queue: QueueLike) -> bool:
        return isinstance(queue, DeclaredQueue) and is_topic(queue)

    found = await picked(queues_of(vhosts_of(caller, vhost)), is_meant)
    return cast("list[DeclaredQueue]", found)


@router.api_route("", methods=READ)
@router.api_route("/{vhost}", methods=READ)
async def list_topics(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """The streams, and the queues with partitions or a retention."""
    return await listed(await topics_of(caller, vhost), topics_kind(caller), query)


@router.api_route(TOPIC, methods=READ)
async def show_topic(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """One queue or stream: its partitions, and the lag of its consumer groups."""
    return answer(await caller.perform(topic_describe, vhost=vhost, name=name))


@router.put(f"{TOPIC}/partitions", openapi_extra=described(CHANGE, "count"))
async def set_partitions(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Change how many partitions a queue has, or say with `dry_run` which ones there would be."""
    caller.vhost(vhost)
    asked = await json_object(request)
    told = await caller.perform(
        topic_set_partitions,
        vhost=vhost,
        name=name,
        count=asked["count"],
        dry_run=truth(asked, "dry_run"),
    )
    return answer(told)
