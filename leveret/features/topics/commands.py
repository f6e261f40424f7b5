"""Operations on topics: queues with partitions, and what keeps messages to be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, not_running, queue_of
from leveret.core.admin.rights import IN_VHOST, may
from leveret.core.queues.partitioned_queue import PartitionedQueue
from leveret.features.topics.rows import describe_topic, is_topic, topic_row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.features.groups.groups import ConsumerGroups
    from leveret.features.topics.partition_changes import PartitionChanges


class TopicNode(AdminNode, Protocol):
    """Parts of a node that commands on topics use."""

    @property
    def partitions(self) -> PartitionChanges | None:
        """Changes of partitions on a running node, else None."""
        ...

    @property
    def groups(self) -> ConsumerGroups | None:
        """Consumer groups of a running node, else None."""
        ...


@query("topic.list", IN_VHOST)
async def topic_list(node: TopicNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the streams, and the queues that have partitions or a retention."""
    node.administration.vhost(vhost)
    groups = _groups(node)
    queues = cast("Iterable[DeclaredQueue]", list(node.vhosts[vhost].queues.values()))
    found = sorted(filter(is_topic, queues), key=lambda queue: queue.name)
    return [topic_row(queue, groups) for queue in found]


@query("topic.describe", IN_VHOST)
async def topic_describe(node: TopicNode, *, vhost: str, name: str) -> dict[str, Any]:
    """Return a queue or stream with each of its partitions."""
    return await describe_topic(queue_of(node, vhost, name), _groups(node))


@command("topic.set_partitions", may("configure", queue="name"))
async def topic_set_partitions(
    node: TopicNode, *, vhost: str, name: str, count: int, dry_run: bool = False
) -> dict[str, Any]:
    """Change how many partitions a queue has; return those that it then publishes to and retires.

    More of them begin empty. Those beyond a smaller number are read until nothing is left in them,
    then they are removed.
    """
    if node.partitions is None:
        raise not_running()
    queue = queue_of(node, vhost, name)
    layout = node.partitions.planned(queue, count)
    if not dry_run:
        await node.partitions.apply(cast("PartitionedQueue", queue), layout)
    return {"active": list(layout.active), "retired": list(layout.retired)}


def _groups(node: TopicNode) -> ConsumerGroups:
    if node.groups is None:
        raise not_running()
    return node.groups
