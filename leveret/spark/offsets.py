"""Offsets of a stream's progress: how far each partition of each topic was read.

`TopicOffsets` is what Spark keeps in a query's checkpoint, as JSON:

    {"offsets": {"orders": {"0": 120, "1": 87}}, "logs": {"orders": "ea503252eabd3663"}}

An offset is the next one to be read. `logs` has the number of each topic's log, by which a topic
that was deleted and declared again is told from the same one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "OffsetRange",
    "TopicOffsets",
    "cut_ranges",
    "divide_ranges",
    "limit_offsets",
    "ranges_between",
]


class OffsetRange(NamedTuple):
    """Offsets [first, end) of a partition."""

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return (
            f"topic '{self.topic}', partition {self.partition}, offsets {self.first} to {self.end}"
        )


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Next offset by topic and partition, and the number of each topic's log."""

    by_topic: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, partition, offset), in order."""
        for topic in sorted(self.by_topic):
            for partition, offset in sorted(self.by_topic[topic].items()):
                yield topic, partition, offset

    def get(self, topic: str, partition: int) -> int | None:
        """Return the offset of a partition, None where it has none."""
        return self.by_topic.get(topic, {}).get(partition)

    def is_same_log(self, topic: str, other: TopicOffsets) -> bool:
        """Whether a topic's offsets here and there are of one log, as far as is known."""
        here, there = self.logs.get(topic), other.logs.get(topic)
        return here is None or there is None or here == there

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes down. Equal offsets give equal text: Spark compares that."""
        offsets: dict[str, dict[str, int]] = {topic: {} for topic in sorted(self.by_topic)}
        for topic, partition, offset in self:
            offsets[topic][str(partition)] = offset
        return {"offsets": offsets, "logs": {name: self.logs[name] for name in sorted(self.logs)}}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> TopicOffsets:
        """Return offsets that were written down. Raises ValueError for something else."""
        try:
            by_topic = {
                str(topic): {int(number): int(offset) for number, offset in places.items()}
                for topic, places in told["offsets"].items()
            }
            logs = {str(topic): str(log) for topic, log in told["logs"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no offsets of a leveret stream: {told!r}") from error
        return cls(by_topic, logs)


def ranges_between(start: TopicOffsets, end: TopicOffsets) -> list[OffsetRange]:
    """Return what lies between two offsets, partition by partition, without empty ranges.

    A partition that `start` does not have begins at 0. Raises ValueError where the end is before
    the start.
    """
    ranges = []
    for topic, partition, stop in end:
        first = start.get(topic, partition) or 0
        if stop < first:
            raise ValueError(
                f"topic '{topic}', partition {partition} cannot be read from offset {first} "
                f"back to {stop}"
            )
        if first < stop:
            ranges.append(OffsetRange(topic, partition, first, stop))
    return ranges


def limit_offsets(
    start: TopicOffsets,
    end: TopicOffsets,
    limit: int,
    weights: Mapping[tuple[str, int], float] | None = None,
) -> TopicOffsets:
    """Return offsets between two, so that messages of about `limit` in all lie before them.

    A message counts 1, or the weight of its (topic, partition). Every partition gets one message,
    so that none is left behind, and its share of the rest of the limit by what it has besides.
    """
    ranges = ranges_between(start, end)
    weights = weights or {}
    ones = sum(weights.get(each[:2], 1) for each in ranges)
    total = sum((each.end - each.first) * weights.get(each[:2], 1) for each in ranges)
    if total <= limit:
        return end
    part = max(limit - ones, 0) / (total - ones) if total > ones else 0
    limited = {topic: dict(places) for topic, places in end.by_topic.items()}
    for topic, partition, first, stop in ranges:
        share = 1 + int((stop - first - 1) * part)
        limited[topic][partition] = min(stop, first + share)
    return TopicOffsets(limited, end.logs)


def divide_ranges(ranges: Sequence[OffsetRange], count_min: int) -> list[OffsetRange]:
    """Return ranges cut so that there are about `count_min`, in order, none empty.

    Large ones are cut into more pieces of about one size; none is cut where there are enough.
    """
    if len(ranges) >= count_min:
        return list(ranges)
    total = sum(each.end - each.first for each in ranges)
    pieces = []
    for each in ranges:
        size = each.end - each.first
        pieces += _cut(each, min(size, max(1, round(size * count_min / total))))
    return pieces


def cut_ranges(ranges: Sequence[OffsetRange], size_max: int) -> list[OffsetRange]:
    """Return ranges cut so that none has more than so many offsets, in order, none empty."""
    return [
        piece for each in ranges for piece in _cut(each, -(-(each.end - each.first) // size_max))
    ]


def _cut(wanted: OffsetRange, count: int) -> list[OffsetRange]:
    """Return a range as so many pieces of about one size."""
    first, size = wanted.first, wanted.end - wanted.first
    edges = [first + size * index // count for index in range(count + 1)]
    return [wanted._replace(first=low, end=high) for low, high in itertools.pairwise(edges)]
