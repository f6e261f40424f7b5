"""Metrics of consumer groups: members, and where each group is in each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.mgmt_ui.metrics.groups import MetricGroup, gauge, moment
from leveret.mgmt_ui.metrics.labels import consumer_group_labels
from leveret.mgmt_ui.metrics.own import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leveret.features.groups.groups import ConsumerGroup
    from leveret.features.groups.subscription import Subscription
    from leveret.mgmt_ui.metrics.groups import MetricColumn
    from leveret.mgmt_ui.metrics.reading import Reading

__all__ = ["GROUPS"]


class _GroupPartition(NamedTuple):
    """A consumer group in one partition."""

    group: ConsumerGroup
    number: int
    subscription: Subscription


def _partitions(reading: Reading) -> Iterator[_GroupPartition]:
    for group in reading.consumer_groups():
        for number, subscription in sorted(group.subscriptions.items()):
            yield _GroupPartition(group, number, subscription)


def _labels(each: _GroupPartition) -> Mapping[str, str]:
    return {**consumer_group_labels(each.group), "partition": str(each.number)}


_CONSUMER_GROUPS: tuple[MetricColumn[ConsumerGroup], ...] = (
    gauge("consumer_groups", "Consumer groups", lambda _: 1),
    gauge(
        "consumer_group_members",
        "Consumers that are members of a consumer group",
        lambda group: len(group.coordinator.members),
    ),
)

# The sum of offsets means nothing: moments are not summed.
_PARTITIONS: tuple[MetricColumn[_GroupPartition], ...] = (
    gauge(
        "consumer_group_lag",
        "Messages that a consumer group has not acknowledged",
        lambda each: each.subscription.lag,
    ),
    gauge(
        "consumer_group_unacked",
        "Messages delivered to a consumer group and not acknowledged",
        lambda each: each.subscription.leased_count,
    ),
    moment(
        "consumer_group_committed_offset",
        "Offset below which a consumer group has acknowledged everything",
        lambda each: each.subscription.committed_offset,
    ),
    moment(
        "consumer_group_end_offset",
        "Offset of the next message that the partition will store",
        lambda each: each.subscription.log.committed,
    ),
)

GROUPS: tuple[MetricGroup[Any], ...] = (
    MetricGroup(
        "leveret_consumer_groups",
        lambda r: r.consumer_groups(),
        _CONSUMER_GROUPS,
        consumer_group_labels,
        prefix=PREFIX,
    ),
    MetricGroup(
        "leveret_consumer_group_partitions", _partitions, _PARTITIONS, _labels, prefix=PREFIX
    ),
)
