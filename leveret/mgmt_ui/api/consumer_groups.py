"""/api/leveret/consumer-groups: consumer groups, of all virtual hosts, of one, or of one queue.

    GET    …                            groups with their totals
    GET    …/VHOST
    GET    …/VHOST/QUEUE
    GET    …/VHOST/QUEUE/NAME           one, with `member_details` and `partition_details`
    POST   …/VHOST/QUEUE/NAME/reset     {"to": "earliest", "dry_run": true}
                                        → [{"partition": 0, "before": 4, "after": 0}]
    PUT    …/VHOST/QUEUE/NAME/offsets   {"offsets": {"0": 3}}
                                        → [{"partition": 0, "before": 0, "after": 3}]
    DELETE …/VHOST/QUEUE/NAME

Users who may enter the virtual host may look; read permission for the queue, as its consumers need,
allows to reset, to commit and to delete. To commit offsets needs no management tag: applications do
it, and are refused as their range reads are (leveret.mgmt_ui.api.topics). `to` is `earliest` or
`first`, `latest` or `next`, `last`, an offset (also as a number), an age such as `2h`, a time of
ISO 8601, `shift:-100`, or `tag:` and an expression of tags; without `partitions` all are reset.
`created_at` is in milliseconds since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.features.groups.commands import (
    group_commit_offsets,
    group_delete,
    group_describe,
    group_reset_offsets,
)
from leveret.features.groups.rows import group_row
from leveret.mgmt_ui.api.bodies import json_object, truth
from leveret.mgmt_ui.api.callers import CallerHere, ClientHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    done,
    listed,
    vhosts_of,
)
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import queue_not_found
from leveret.mgmt_ui.api.topics import readable_queue
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.features.groups.groups import ConsumerGroup
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row

__all__ = ["groups_kind", "groups_of", "router"]

RESET = {"to": "earliest", "partitions": [0], "dry_run": True}
COMMIT = {"offsets": {"0": 3}}
GROUP = "/{vhost}/{queue}/{name}"

router = own_router("/consumer-groups", tags=["consumer-groups"])


def groups_kind(row: Callable[[ConsumerGroup], Row] = group_row) -> ObjectKind[ConsumerGroup]:
    """Return how lists of groups are sorted and shown."""
    return ObjectKind(
        lambda group: (group.group.vhost, group.name, group.group.name),
        row,
        ("vhost", "queue", "name"),
    )


async def groups_of(
    caller: Caller, vhost: str | None = None, queue: str | None = None
) -> list[ConsumerGroup]:
    """Return the groups that the caller may list: of a queue only together with its vhost.

    Raises ApiError 401 and 404.
    """
    groups, hosts = caller.node.broker.groups, vhosts_of(caller, vhost)
    if queue is None:
        names = {host.name for host in hosts}
        return await picked(groups.all(), lambda group: group.group.vhost in names)
    [host] = hosts
    held = host.queues.get(queue)
    if held is None:
        raise queue_not_found(host, queue)
    return list(groups.of_queue(held).values())


@router.api_route("", methods=READ)
@router.api_route("/{vhost}", methods=READ)
async def list_groups(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """The consumer groups of all virtual hosts, or of one."""
    return await listed(await groups_of(caller, vhost), groups_kind(), query)


@router.api_route("/{vhost}/{queue}", methods=READ)
async def list_groups_of_queue(
    caller: CallerHere, query: QueryHere, vhost: Segment, queue: Segment
) -> Response:
    """The consumer groups of one queue."""
    return await listed(await groups_of(caller, vhost, queue), groups_kind(), query)


@router.api_route(GROUP, methods=READ)
async def show_group(caller: CallerHere, vhost: Segment, queue: Segment, name: Segment) -> Response:
    """One group: its members, and where it is in each partition."""
    return answer(await caller.perform(group_describe, vhost=vhost, queue=queue, name=name))


@router.post(f"{GROUP}/reset", openapi_extra=described(RESET, "to"))
async def reset_group(
    caller: CallerHere, request: Request, vhost: Segment, queue: Segment, name: Segment
) -> Response:
    """Let a group without members go on elsewhere, or say with `dry_run` where that would be."""
    caller.vhost(vhost)
    asked = await json_object(request)
    to = asked["to"]
    rows = await caller.perform(
        group_reset_offsets,
        vhost=vhost,
        queue=queue,
        name=name,
        to=str(to) if type(to) is int else to,
        partitions=asked.get("partitions"),
        dry_run=truth(asked, "dry_run"),
    )
    return answer(rows)


@router.put(f"{GROUP}/offsets", openapi_extra=described(COMMIT, "offsets"))
async def commit_offsets(
    caller: ClientHere, request: Request, vhost: Segment, queue: Segment, name: Segment
) -> Response:
    """Let a group go on at these offsets, by partition; it is created where it does not exist."""
    asked = await json_object(request)
    await readable_queue(caller, vhost, queue)
    rows = await caller.perform(
        group_commit_offsets, vhost=vhost, queue=queue, name=name, offsets=asked["offsets"]
    )
    return answer(rows)


@router.delete(GROUP)
async def delete_group(
    caller: CallerHere, vhost: Segment, queue: Segment, name: Segment
) -> Response:
    """Delete a group without members, and what it remembers."""
    await caller.perform(group_delete, vhost=vhost, queue=queue, name=name)
    return done()
