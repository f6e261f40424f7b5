"""Consumer groups, their members and partitions as rows of lists."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from leveret.core.settings.stream_offsets import duration_ms
from leveret.features.groups.rules import GROUP_SESSION, SESSION_MS

if TYPE_CHECKING:
    from leveret.features.groups.groups import ConsumerGroup

__all__ = ["GroupState", "describe_group", "group_row", "group_state"]


class GroupState(StrEnum):
    """State of a group, in the words of Kafka where it has one."""

    EMPTY = "empty"  # no members, and nothing of theirs is unsettled
    REBALANCING = "rebalancing"  # a partition was revoked, and its old owner has not settled all
    STALLED = "stalled"  # a partition is delivered to none of the members
    STABLE = "stable"


def group_state(group: ConsumerGroup) -> GroupState:
    """Return the state of a group."""
    coordinator, numbers = group.coordinator, list(group.subscriptions)
    if any(map(coordinator.is_revoked, numbers)):
        return GroupState.REBALANCING
    if not coordinator.members:
        return GroupState.EMPTY
    if any(coordinator.owner(number) is None for number in numbers):
        return GroupState.STALLED
    return GroupState.STABLE


def group_row(group: ConsumerGroup) -> dict[str, Any]:
    """Return a group with its totals."""
    subscriptions = group.subscriptions.values()
    return {
        "vhost": group.group.vhost,
        "queue": group.name,
        "name": group.group.name,
        "state": group_state(group).value,
        "members": len(group.coordinator.members),
        "partitions": len(subscriptions),
        "lag": group.lag,
        "unacked": group.unacked,
        "created_at": group.group.created_ms,
    }


def describe_group(group: ConsumerGroup) -> dict[str, Any]:
    """Return a group with its totals, each of its members, and each of its partitions."""
    return {
        **group_row(group),
        "member_details": [_member_row(group, each) for each in group.coordinator.members],
        "partition_details": [_partition_row(group, each) for each in sorted(group.subscriptions)],
    }


def _partition_row(group: ConsumerGroup, number: int) -> dict[str, Any]:
    """Return where a group is in one partition, and who is delivered it."""
    subscription = group.subscriptions[number]
    return {
        "partition": number,
        "first": subscription.log.first,
        "committed": subscription.committed_offset,
        "end": subscription.log.committed,
        "lag": subscription.lag,
        "unacked": subscription.leased_count,
        "delayed": subscription.delayed_count,
        "member": group.member_of(number),
        "revoked": group.coordinator.is_revoked(number),
    }


def _member_row(group: ConsumerGroup, member: Any) -> dict[str, Any]:
    channel = member.channel
    client = channel.connection.describe()
    properties = client.client_properties
    return {
        "client": str(properties.get("connection_name") or properties.get("product") or ""),
        "user": channel.connection.user,
        "connection": str(client.endpoints),
        "channel": channel.number,
        "tag": member.tag,
        "partitions": group.coordinator.partitions_of(member),
        "unacked": member.in_flight,
        "prefetch": member.prefetch,
        "session_ms": duration_ms(member.arguments.get(GROUP_SESSION, SESSION_MS)),
        "suspended": group.coordinator.is_suspended(member),
    }
