"""Where reading begins and ends: starting and ending points become offsets of partitions.

Called on the driver. Everything here asks the broker (leveret.spark.servers) and decides nothing
that would differ in another call with the same answers.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Protocol

from leveret.spark.errors import DataLossError, SourceError, TopicMissingError
from leveret.spark.offsets import TopicOffsets
from leveret.spark.read_options import EARLIEST, LATEST, MessageFilters, StartKind

if TYPE_CHECKING:
    from leveret.range_reader import PartitionOffsets, TopicBounds
    from leveret.spark.read_options import ReadOptions, StartingPoint, TopicSelection
    from leveret.spark.servers import BrokerServers

__all__ = [
    "TopicLookup",
    "TopicsNow",
    "check_filters",
    "check_present",
    "look_up",
    "offsets_at",
    "start_of_new",
]

logger = logging.getLogger(__name__)


class TopicLookup(Protocol):
    """The broker, or the broker with an archive, as far as it tells of topics."""

    def topic(self, name: str, time_ms: int | None = None, *, sizes: bool = False) -> TopicBounds:
        """Return the partitions of a topic, with the offsets of a time if one is given."""

    def topic_names(self) -> list[str]:
        """Return the names of all topics that can be read by offset."""


class TopicsNow:
    """Bounds of all partitions that are read, as they were at one moment."""

    def __init__(self, topics: dict[str, TopicBounds], selection: TopicSelection) -> None:
        self._selection = selection
        self._numbers = {
            name: {each.partition for each in bounds.partitions} for name, bounds in topics.items()
        }
        self.logs = {name: bounds.log for name, bounds in topics.items()}
        self.partitions: dict[str, dict[int, PartitionOffsets]] = {}
        for name, bounds in topics.items():
            chosen = selection.partitions.get(name)
            self.partitions[name] = {
                each.partition: each
                for each in bounds.partitions
                if chosen is None or each.partition in chosen
            }
            missing = set(chosen or ()) - set(self.partitions[name])
            if missing:
                raise TopicMissingError(f"topic '{name}' has no partition {min(missing)}")

    def get(self, topic: str, partition: int) -> PartitionOffsets | None:
        """Return the bounds of a partition, None if it is not there."""
        return self.partitions.get(topic, {}).get(partition)

    def is_left_out(self, topic: str, partition: int) -> bool:
        """Whether a partition is not read because it is not chosen, and not because it is gone."""
        is_gone = topic in self._numbers and partition not in self._numbers[topic]
        return not is_gone and not self._selection.covers(topic, partition)

    def message_bytes(self) -> dict[tuple[str, int], float]:
        """Return the average bytes of a message by topic and partition, if sizes were asked for."""
        return {
            (topic, number): each.bytes / (each.end - each.first)
            for topic, partitions in self.partitions.items()
            for number, each in partitions.items()
            if each.bytes is not None and each.end > each.first
        }

    @property
    def ends(self) -> TopicOffsets:
        """Ends of all partitions."""
        by_topic = {
            topic: {number: each.end for number, each in partitions.items()}
            for topic, partitions in self.partitions.items()
        }
        return TopicOffsets(by_topic, self.logs)


def look_up(
    broker: TopicLookup,
    selection: TopicSelection,
    time_ms: int | None = None,
    *,
    sizes: bool = False,
) -> TopicsNow:
    """Return the partitions that are there now. Raises SourceError."""
    names = list(selection.names)
    if selection.pattern is not None:
        pattern = re.compile(selection.pattern)
        names = [name for name in broker.topic_names() if pattern.fullmatch(name)]
    found = {}
    for name in names:
        try:
            found[name] = broker.topic(name, time_ms, sizes=sizes)
        except TopicMissingError:
            if selection.pattern is None:
                raise  # by a pattern it was deleted since it was listed
    return TopicsNow(found, selection)


def check_filters(broker: BrokerServers, ends: TopicOffsets, filters: MessageFilters) -> bool:
    """Have the broker parse filters, before any task uses them; False if no topic is there.

    Raises SourceError.
    """
    if filters == MessageFilters():
        return True
    place = next(iter(ends), None)
    if place is not None:
        broker.check_filters(place, filters)
    return place is not None


def offsets_at(broker: TopicLookup, options: ReadOptions, point: StartingPoint) -> TopicOffsets:
    """Return the offsets of a starting or ending point. Raises SourceError."""
    now = look_up(broker, options.topics, point.time_ms)
    if point.kind is StartKind.TIMES:
        return _at_times(broker, point, now)
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partitions in now.partitions.items():
        given = point.values.get(topic, {})
        if point.kind is StartKind.OFFSETS:
            _check_complete(topic, partitions, given)
        by_topic[topic] = {
            number: _place(topic, each, point, given.get(number))
            for number, each in partitions.items()
        }
    return TopicOffsets(by_topic, now.logs)


def _at_times(broker: TopicLookup, point: StartingPoint, now: TopicsNow) -> TopicOffsets:
    """Return the offsets of times by partition: one request for each different time."""
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partitions in now.partitions.items():
        given = point.values.get(topic, {})
        _check_complete(topic, partitions, given)
        by_topic[topic] = {}
        for time_ms in sorted(set(given.values())):
            then = {each.partition: each for each in broker.topic(topic, time_ms).partitions}
            for number, time in given.items():
                if time == time_ms and number in then:
                    by_topic[topic][number] = _at_time(topic, then[number], point)
    return TopicOffsets(by_topic, now.logs)


def _check_complete(
    topic: str, partitions: dict[int, PartitionOffsets], given: dict[int, int] | object
) -> None:
    assert isinstance(given, dict), "an option's numbers"
    missing, unknown = set(partitions) - set(given), set(given) - set(partitions)
    if missing:
        raise SourceError(
            f"offsets are given for topic '{topic}', but none for its partition {min(missing)}: "
            f"all partitions need one, {EARLIEST} stands for the earliest, {LATEST} for the latest"
        )
    if unknown:
        raise TopicMissingError(f"topic '{topic}' has no partition {min(unknown)}")


def _place(topic: str, bounds: PartitionOffsets, point: StartingPoint, given: int | None) -> int:
    """Return the offset of a point in one partition."""
    if point.kind is StartKind.TIME:
        return _at_time(topic, bounds, point)
    if point.kind is StartKind.EARLIEST or given == EARLIEST:
        return bounds.first
    if point.kind is StartKind.LATEST or given == LATEST:
        return bounds.end
    assert given is not None, "all partitions have an offset"
    return given


def _at_time(topic: str, bounds: PartitionOffsets, point: StartingPoint) -> int:
    assert bounds.offset is not None, "a time was asked for"
    if bounds.offset == bounds.end and not point.falls_to_latest:
        raise SourceError(
            f"topic '{topic}', partition {bounds.partition} has no message at the starting time or "
            "later; with startingOffsetsByTimestampStrategy=latest it is read from its end on"
        )
    return bounds.offset


def start_of_new(start: TopicOffsets, now: TopicsNow) -> TopicOffsets:
    """Return the start with partitions that have come since: they are read from their beginning.

    So are topics that were deleted and declared again. Partitions that are gone are left out.
    """
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partitions in now.partitions.items():
        is_same = start.is_same_log(topic, now.ends)
        known = start.by_topic.get(topic, {}) if is_same else {}
        by_topic[topic] = {
            number: known.get(number, each.first) for number, each in partitions.items()
        }
    return TopicOffsets(by_topic, now.logs)


def check_present(start: TopicOffsets, now: TopicsNow, last: TopicOffsets | None) -> None:
    """Raise DataLossError unless everything from `start` on is there, as far as is known.

    `last` are the ends as they were seen before, by which what has gone after it was read to its
    end is told from what was not. Without them, as when a query begins again, a topic that has gone
    counts as lost, and a partition as read: a retired one is removed once nothing is left in it.
    """
    _check_chosen(start, now)
    for topic in start.by_topic:
        if last is None and topic not in now.partitions:
            raise DataLossError(f"topic '{topic}' is gone: what it had since it was read is lost")
        if not start.is_same_log(topic, now.ends):
            raise DataLossError(
                f"topic '{topic}' was deleted and declared again since it was read last: its "
                "offsets are others now. Begin with a new checkpoint"
            )
    for topic, number, offset in start:
        seen_end = None if last is None else last.get(topic, number)
        lost = _lost(offset, now.get(topic, number), seen_end)
        if lost:
            raise DataLossError(f"topic '{topic}', partition {number}: {lost}")


def _check_chosen(start: TopicOffsets, now: TopicsNow) -> None:
    """Raise DataLossError if the query has read what its options do not choose any more."""
    left: dict[str, list[str]] = {}
    for topic, number, _ in start:
        if now.is_left_out(topic, number):
            left.setdefault(topic, []).append(str(number))
    if left:
        named = "; ".join(
            f"topic '{topic}', partitions {', '.join(numbers)}" for topic, numbers in left.items()
        )
        raise DataLossError(
            f"the checkpoint has what the options do not choose any more: {named}. What has come "
            "there since goes unread: choose it again, or begin with a new checkpoint"
        )


def _lost(offset: int, bounds: PartitionOffsets | None, seen_end: int | None) -> str | None:
    """Return what of a partition from an offset on is lost, None if nothing is."""
    if bounds is None:
        if seen_end is not None and offset < seen_end:
            return f"it is gone, and offsets {offset} to {seen_end} were not read before"
        return None
    if offset < bounds.first:
        return f"offsets {offset} to {bounds.first} were removed before they were read"
    if offset > bounds.end:
        return f"it ends at offset {bounds.end}, and was read up to {offset}: messages were lost"
    return None
