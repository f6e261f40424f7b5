"""Options of a table or stream that reads topics.

Those that Spark's Kafka source has as well have its names, values and defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.spark.connection_options import ConnectionOptions, read_connection
from leveret.spark.option_reader import OptionError, OptionReader, option_time_ms
from leveret.spark.value_options import read_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.spark.value_formats import ValueOptions

__all__ = [
    "ColumnsWanted",
    "MessageFilters",
    "ReadOptions",
    "StartKind",
    "StartingPoint",
    "TopicSelection",
    "columns_wanted",
    "read_columns",
    "read_options",
]

EARLIEST: Final = -2  # as a number in JSON, like in Kafka
LATEST: Final = -1

MAX_OFFSETS_PER_TRIGGER: Final = 10_000_000
MAX_TRIGGER_DELAY_S: Final = 15 * 60.0
BATCH_ROWS: Final = 10_000


class StartKind(Enum):
    """Kind of a starting or ending point."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIME = "time"  # one for all partitions
    TIMES = "times"  # by topic and partition


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where reading begins or ends, by topic and partition where these differ.

    `values` has offsets (EARLIEST and LATEST among them), or milliseconds since 1970; `time_ms` is
    set for TIME. `falls_to_latest` says what a time after the last message means: the end of the
    partition, or an error.
    """

    kind: StartKind
    values: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    time_ms: int | None = None
    falls_to_latest: bool = False


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics are read: named ones, a pattern of names, or single partitions of them."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def covers(self, topic: str, partition: int) -> bool:
        """Whether a partition is read, if it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        chosen = self.partitions.get(topic)
        return topic in self.names and (chosen is None or partition in chosen)


class ColumnsWanted(NamedTuple):
    """Which columns a table has besides the fixed ones."""

    headers: bool
    properties: bool
    record: bool


class MessageFilters(NamedTuple):
    """Filters that the broker applies: an expression of tags, and one of SQL."""

    tags: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a table that is read. A limit of 0 is none."""

    connection: ConnectionOptions
    topics: TopicSelection
    starting: StartingPoint
    ending: StartingPoint
    max_offsets: int
    max_bytes: int
    min_offsets: int
    max_delay_s: float
    min_partitions: int
    max_task_rows: int
    batch_rows: int
    fails_on_data_loss: bool
    columns: ColumnsWanted
    group: str | None
    filters: MessageFilters
    values: ValueOptions
    archive_path: str | None = None


def read_topics(options: OptionReader) -> TopicSelection:
    """Return which topics are read. Raises OptionError."""
    names = [each for each in ("subscribe", "subscribePattern", "assign") if options.is_given(each)]
    if len(names) != 1:
        raise OptionError(
            "exactly one of the options 'subscribe', 'subscribePattern' and 'assign' is needed; "
            f"given: {', '.join(names) or 'none'}"
        )
    subscribed, pattern = options.text("subscribe"), options.text("subscribePattern")
    assigned = options.json("assign")
    if subscribed is not None:
        topics = tuple(dict.fromkeys(each.strip() for each in subscribed.split(",")))
        if not all(topics):
            raise OptionError(f"option 'subscribe' is '{subscribed}', and has an empty name")
        return TopicSelection(names=topics)
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option 'subscribePattern' is no pattern: {error}") from None
        return TopicSelection(pattern=pattern)
    if not isinstance(assigned, dict) or not assigned:
        raise OptionError("option 'assign' must be like {\"orders\": [0, 1]}")
    partitions = {}
    for topic, numbers in assigned.items():
        if not isinstance(numbers, list) or not numbers or not all(_is_number(n) for n in numbers):
            raise OptionError(f"option 'assign' has no list of partitions for topic '{topic}'")
        partitions[topic] = tuple(sorted(set(numbers)))
    return TopicSelection(names=tuple(partitions), partitions=partitions)


def _is_number(value: object, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _values(
    options: OptionReader, name: str, low: int, *, are_times: bool = False
) -> Mapping[str, Mapping[int, int]]:
    """Return an option's numbers by topic and partition; times may be texts."""
    given = options.json(name)
    wrong = OptionError(f'option \'{name}\' must be like {{"orders": {{"0": 23, "1": 42}}}}')
    if not isinstance(given, dict):
        raise wrong
    found: dict[str, dict[int, int]] = {}
    for topic, by_partition in given.items():
        if not isinstance(by_partition, dict):
            raise wrong
        for number, told in by_partition.items():
            is_text = are_times and isinstance(told, str)
            value = option_time_ms(name, told) if is_text else told
            if not re.fullmatch(r"\d{1,9}", number) or not _is_number(value, low):
                raise wrong
            found.setdefault(topic, {})[int(number)] = value
    return found


def read_point(options: OptionReader, side: str, default: StartKind) -> StartingPoint:
    """Return the starting or ending point; `side` is `starting` or `ending`. Raises OptionError.

    A time goes before times by partition, and these before offsets, as in the Kafka source.
    """
    is_start = side == "starting"
    strategy = f"{side}OffsetsByTimestampStrategy"
    falls_to_latest = (
        not is_start or options.one_of(strategy, ("error", "latest"), "error") == "latest"
    )
    time = options.time_ms(f"{side}Timestamp")
    by_time, offsets = f"{side}OffsetsByTimestamp", options.text(f"{side}Offsets")
    times = (
        _values(options, by_time, 0, are_times=True) if options.text(by_time) is not None else None
    )
    if time is not None:
        return StartingPoint(StartKind.TIME, time_ms=time, falls_to_latest=falls_to_latest)
    if times is not None:
        return StartingPoint(StartKind.TIMES, times, falls_to_latest=falls_to_latest)
    if offsets is None:
        return StartingPoint(default)
    word = offsets.strip().lower()
    if word == "latest" or (word == "earliest" and is_start):
        return StartingPoint(StartKind(word))
    if word == "earliest":
        raise OptionError("option 'endingOffsets' cannot be 'earliest': nothing would be read")
    values = _values(options, f"{side}Offsets", EARLIEST if is_start else LATEST)
    return StartingPoint(StartKind.OFFSETS, values)


def columns_wanted(options: Mapping[str, str]) -> ColumnsWanted:
    """Return which columns a table has. Raises OptionError."""
    return read_columns(OptionReader(options))


def read_columns(given: OptionReader) -> ColumnsWanted:
    """Return which columns a table has. Raises OptionError."""
    return ColumnsWanted(
        headers=given.flag("includeHeaders", default=False),
        properties=given.flag("includeProperties", default=False),
        record=given.flag("includeRecord", default=False),
    )


def read_options(options: Mapping[str, str], *, is_streaming: bool) -> ReadOptions:
    """Return the options of a table that is read. Raises OptionError."""
    given = OptionReader(options)
    starting = StartKind.LATEST if is_streaming else StartKind.EARLIEST
    found = ReadOptions(
        connection=read_connection(given),
        topics=read_topics(given),
        starting=read_point(given, "starting", starting),
        ending=read_point(given, "ending", StartKind.LATEST),
        max_offsets=given.integer("maxOffsetsPerTrigger", MAX_OFFSETS_PER_TRIGGER),
        max_bytes=given.integer("maxBytesPerTrigger", 0),
        min_offsets=given.integer("minOffsetsPerTrigger", 0),
        max_delay_s=given.duration_s("maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        min_partitions=given.integer("minPartitions", 0, high=100_000),
        max_task_rows=given.integer("maxRecordsPerPartition", 0),
        batch_rows=given.integer("batchRows", BATCH_ROWS, 1, 1_000_000),
        fails_on_data_loss=given.flag("failOnDataLoss", default=True),
        columns=read_columns(given),
        group=given.text("group"),
        filters=MessageFilters(given.text("filterTags"), given.text("filter")),
        values=read_values(given),
        archive_path=given.text("archivePath"),
    )
    given.end()
    _check_together(given, found, is_streaming=is_streaming)
    return found


STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
STREAM_DELAY: Final = "maxTriggerDelay"
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def _check_together(given: OptionReader, found: ReadOptions, *, is_streaming: bool) -> None:
    """Raise OptionError for options that contradict each other."""
    wrong = BATCH_ONLY if is_streaming else (*STREAM_ONLY, STREAM_DELAY)
    for name in wrong:
        if given.is_given(name):
            kind, other = ("batch", "a stream") if is_streaming else ("streaming", "a batch")
            raise OptionError(f"option '{name}' is for {kind} reads, and this is {other}")
    if found.max_offsets and found.min_offsets > found.max_offsets:
        raise OptionError("option 'minOffsetsPerTrigger' is greater than 'maxOffsetsPerTrigger'")
    if found.archive_path is not None and found.filters != MessageFilters():
        raise OptionError(
            "option 'archivePath' and a filter are given: the broker applies filters, to what it "
            "has. Filter with Spark"
        )
    for point in (found.starting, found.ending):
        _check_covered(found.topics, point)


def _check_covered(topics: TopicSelection, point: StartingPoint) -> None:
    """Raise OptionError if offsets or times are for topics or partitions that are not read."""
    for topic, by_partition in point.values.items():
        if not all(topics.covers(topic, number) for number in by_partition):
            raise OptionError(f"offsets are given for topic '{topic}', of which they are not read")
