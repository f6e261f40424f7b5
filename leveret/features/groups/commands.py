"""Operations on consumer groups: list, describe, reset, commit offsets for others, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, not_running, queue_of
from leveret.core.admin.rights import IN_VHOST, READ_QUEUE
from leveret.core.definitions.administration import AdministrationError
from leveret.core.names import NAME_BYTES_MAX, resource
from leveret.core.queues.declared_queue import check_keeps_messages
from leveret.core.settings.arguments import is_group_name
from leveret.features.groups.places import (
    check_committed,
    parse_reset,
    partition_named,
    reset_offsets,
)
from leveret.features.groups.rows import describe_group, group_row

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.features.groups.groups import ConsumerGroup, ConsumerGroups


class GroupNode(AdminNode, Protocol):
    """Parts of a node that commands on consumer groups use."""

    @property
    def groups(self) -> ConsumerGroups | None:
        """Consumer groups of a running node, else None."""
        ...


@query("group.list", IN_VHOST)
async def group_list(node: GroupNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the groups of all queues: members, and messages not settled yet."""
    node.administration.vhost(vhost)
    found = [group for group in _groups(node).all() if group.group.vhost == vhost]
    return [
        group_row(group) for group in sorted(found, key=lambda each: (each.name, each.group.name))
    ]


@query("group.describe", IN_VHOST)
async def group_describe(node: GroupNode, *, vhost: str, queue: str, name: str) -> dict[str, Any]:
    """Return a group, where it is in each partition, and what its members are delivered."""
    return describe_group(_group(node, vhost, queue, name))


@command("group.reset_offsets", READ_QUEUE)
async def group_reset_offsets(
    node: GroupNode,
    *,
    vhost: str,
    queue: str,
    name: str,
    to: str,
    partitions: list[int] | None = None,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Let a group without members go on elsewhere, in all partitions or in some.

    Returns each partition's old and new offset. A dry run may be asked for while there are members,
    too.
    """
    group = _group(node, vhost, queue, name)
    place, wanted = parse_reset(to), sorted(group.subscriptions)
    if partitions is not None:
        wanted = sorted({partition_named(str(number), wanted) for number in partitions})
    subscriptions = [group.subscriptions[number] for number in wanted]
    now_ms = group.queue.services.timers.wall_ms()
    offsets = await reset_offsets(subscriptions, place, now_ms)
    if not dry_run:
        _check_unused(group)
    rows = []
    for subscription in subscriptions:
        number, before = subscription.partition.number, subscription.committed_offset
        rows.append({"partition": number, "before": before, "after": offsets.get(number, before)})
        if number in offsets and not dry_run and not subscription.deleted:
            subscription.move_to(offsets[number])
    if not dry_run:
        for subscription in subscriptions:
            await subscription.log.settlements_safe()
    return rows


@command("group.commit_offsets", READ_QUEUE, is_audited=False)  # as often as others acknowledge
async def group_commit_offsets(
    node: GroupNode, *, vhost: str, queue: str, name: str, offsets: dict[str, int]
) -> list[dict[str, Any]]:
    """Let a group go on at offsets, by partition; return the old and the new one of each of these.

    That is how readers that keep their own place tell how far they are. The group is created where
    it does not exist, and begins with the first message of the other partitions. It goes forward
    only: below its place, an offset changes nothing. So a commit may be repeated.
    """
    groups = _groups(node)
    await queue_of(node, vhost, queue).opened()
    read = queue_of(node, vhost, queue)  # else it was deleted
    wanted = check_committed(offsets, {part.number: part.log.committed for part in read.partitions})
    group = groups.of_queue(read).get(name)
    if group is None:
        group = _create(groups, read, name)
    _check_unused(group)
    rows, logs = [], []
    for number, offset in sorted(wanted.items()):
        subscription = group.subscriptions[number]
        before = subscription.committed_offset
        subscription.settle_below(offset)
        after = subscription.committed_offset
        rows.append({"partition": number, "before": before, "after": after})
        logs.append(subscription.log)  # meanwhile the group may be deleted
    for log in logs:  # those that have not moved, too: an earlier commit may have failed here
        await log.settlements_safe()
    return rows


@command("group.delete", READ_QUEUE)
async def group_delete(node: GroupNode, *, vhost: str, queue: str, name: str) -> None:
    """Delete a group without members, and what it remembers."""
    group = _group(node, vhost, queue, name)
    _check_unused(group)
    _groups(node).delete(group)


def _groups(node: GroupNode) -> ConsumerGroups:
    if node.groups is None:
        raise not_running()
    return node.groups


def _group(node: GroupNode, vhost: str, queue: str, name: str) -> ConsumerGroup:
    """Return a group. Raises AdministrationError if it, or its queue, does not exist."""
    groups = _groups(node)
    found = groups.of_queue(queue_of(node, vhost, queue)).get(name)
    if found is None:
        raise AdministrationError("not_found", f"no consumer group '{name}' of queue '{queue}'")
    return found


def _create(groups: ConsumerGroups, queue: DeclaredQueue, name: str) -> ConsumerGroup:
    """Create a group before the first message, with the checks that its first member meets."""
    definition = queue.definition
    described = resource("queue", definition.name, definition.vhost)
    check_keeps_messages(queue, described, "for consumer groups")
    if not is_group_name(name):
        raise AdministrationError("invalid", f"a group's name has 1 to {NAME_BYTES_MAX} bytes")
    return groups.create(queue, name, {})


def _check_unused(group: ConsumerGroup) -> None:
    """Raise AdministrationError if a group has members, or some of what they got is unsettled."""
    if group.is_in_use:
        raise AdministrationError(
            "invalid",
            f"consumer group '{group.group.name}' is in use: stop its consumers first, and close "
            "the channels on which they have unacknowledged messages",
        )
