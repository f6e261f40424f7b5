"""Partitions of a queue: how many it is declared with, and which of them there are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.definitions import PartitionLayout
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.ports.definitions import Arguments, QueueDefinition

__all__ = [
    "BY_KEY",
    "MESSAGE_GROUP",
    "PARTITIONS",
    "PARTITIONS_MAX",
    "PARTITION_BY",
    "Partitioning",
    "layout_of",
    "numbers_text",
    "partitioning_of",
]

PARTITIONS = "x-partitions"
PARTITION_BY = "x-partition-by"
BY_KEY = "key"
NOT_BY_KEY = ("round-robin", "random")
MESSAGE_GROUP = "x-message-group"  # the header by which messages are ordered within a queue
PARTITIONS_MAX = 256  # each is a log with its files, opened and deleted in one turn of the loop


class Partitioning(NamedTuple):
    """How a queue's messages are placed: see leveret.ports.partitioner."""

    by: str

    @property
    def by_key(self) -> bool:
        """Whether messages with equal keys are placed in one partition."""
        return self.by not in NOT_BY_KEY


def partitioning_of(arguments: Arguments) -> Partitioning | None:
    """Return how the messages of a queue are placed; None without partitions."""
    if PARTITIONS not in arguments:
        return None
    return Partitioning(arguments.get(PARTITION_BY, BY_KEY))


def layout_of(definition: QueueDefinition) -> PartitionLayout:
    """Return the partitions of a queue: those it was declared with, unless they were changed."""
    if definition.layout is not None:
        return definition.layout
    count = definition.arguments.get(PARTITIONS, 1)
    return PartitionLayout(tuple(range(count)), (), count)


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers of partitions for people: `0 to 2, 5`."""
    ranges = RangeSet((number, number + 1) for number in numbers)
    return ", ".join(
        f"{first}" if stop == first + 1 else f"{first} to {stop - 1}" for first, stop in ranges
    )
