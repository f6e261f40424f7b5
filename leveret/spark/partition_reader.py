"""Ranges of offsets, read in workers of Spark: what batch and streaming readers share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from leveret.range_reader import OutOfRangeError
from leveret.spark.archive_reader import archive_of
from leveret.spark.arrow_batches import BatchMaker
from leveret.spark.errors import DataLossError, TopicMissingError
from leveret.spark.offsets import OffsetRange, cut_ranges, divide_ranges
from leveret.spark.schema import columns_read
from leveret.spark.servers import servers_of
from leveret.spark.value_columns import body_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leveret.range_reader import ReadChunk
    from leveret.spark.read_options import ReadOptions

__all__ = ["RangePartition", "plan_tasks", "read_partition"]

logger = logging.getLogger(__name__)


class LogRange(NamedTuple):
    """Offsets of a partition to be read, and the number of the log that they are in."""

    wanted: OffsetRange
    log: str | None


class RangePartition(InputPartition):
    """Ranges that one task reads, one after the other."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__([(tuple(wanted), log) for wanted, log in ranges])

    @property
    def ranges(self) -> list[LogRange]:
        """The ranges."""
        return [LogRange(OffsetRange(*wanted), log) for wanted, log in self.value]


def plan_tasks(
    ranges: Sequence[OffsetRange], logs: Mapping[str, str], options: ReadOptions
) -> list[InputPartition]:
    """Return tasks that read these ranges; `logs` are the numbers of the topics' logs.

    Neighbours share a task as long as they are one record batch together: a task costs as much as
    tens of thousands of rows. With `minPartitions`, large ranges are cut, and none shares. No task
    has more than `maxRecordsPerPartition`.
    """
    rows_max = 0 if options.min_partitions else options.batch_rows
    if options.max_task_rows:
        ranges = cut_ranges(ranges, options.max_task_rows)
        rows_max = min(rows_max, options.max_task_rows)
    tasks: list[list[LogRange]] = []
    rows = 0
    for each in divide_ranges(ranges, options.min_partitions):
        size = each.end - each.first
        if not tasks or rows + size > rows_max:
            tasks.append([])
            rows = 0
        tasks[-1].append(LogRange(each, logs.get(each.topic)))
        rows += size
    return [RangePartition(task) for task in tasks]


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task. Raises SourceError.

    Where there are no ranges at all, Spark asks for a partition of its own, which has none.
    """
    if isinstance(partition, RangePartition):
        for each in partition.ranges:
            yield from read_range(each, options, columns)


def read_range(
    part: LogRange, options: ReadOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Raises SourceError."""
    servers, names = servers_of(options.connection), columns_read(columns.names)
    check = LossCheck(part, fails=options.fails_on_data_loss)
    rest = part.wanted
    schema = to_arrow_schema(columns, timezone="UTC")
    bodies = body_columns(columns, options.values)
    maker = BatchMaker(schema, rest.topic, options.batch_rows, bodies)
    archived = ArchivedParts(options.archive_path, part.log, names)
    while rest.first < rest.end:
        try:
            for chunk in servers.chunks(rest, names, options.filters):
                for each in archived.in_place_of(chunk, rest, check):
                    yield from maker.batches(each, rest.end)
                rest = rest._replace(first=chunk.next_offset)
            continue
        except OutOfRangeError as error:
            found = archived.beginning(rest, error.first)
            if found is None:
                rest = check.what_is_left(rest, error)
                continue
        except TopicMissingError as error:
            found = archived.beginning(rest, rest.end)
            if found is None:
                check.is_gone(rest, error)
                return
        for each in archived.chunks(found):
            yield from maker.batches(each, found.end)
        rest = rest._replace(first=found.end)


class ArchivedParts:
    """Archived records of one log; none if there is no archive. Raises SourceError."""

    def __init__(self, place: str | None, log: str | None, columns: list[str]) -> None:
        self._index = None if place is None else archive_of(place)
        self._log = log
        self._columns = columns

    def beginning(self, rest: OffsetRange, up_to: int) -> OffsetRange | None:
        """Return what of a range is archived, from its beginning up to an offset at most."""
        wanted = rest._replace(end=min(up_to, rest.end))
        if self._index is None or wanted.first >= wanted.end:
            return None
        end = self._index.covered_end(wanted, self._log)
        return wanted._replace(end=end) if end > wanted.first else None

    def chunks(self, part: OffsetRange) -> Iterator[ReadChunk]:
        """Return the records of a range that is archived."""
        assert self._index is not None, "nothing is archived where there is no archive"
        return self._index.chunks(part, self._columns)

    def in_place_of(
        self, chunk: ReadChunk, rest: OffsetRange, check: LossCheck
    ) -> Iterator[ReadChunk]:
        """Return a chunk, or what is archived where some of it is missing. Raises DataLossError.

        So retention may delete what is being read.
        """
        is_lost = chunk.missing and not chunk.is_compacted
        part = self.beginning(rest, chunk.next_offset) if is_lost else None
        if part is not None and part.end == min(chunk.next_offset, rest.end):
            return self.chunks(part)
        check.look_at(chunk)
        return iter([chunk])


class LossCheck:
    """Notices missing messages of a range: an error, or a warning if `fails` is not set."""

    def __init__(self, part: LogRange, *, fails: bool) -> None:
        self._wanted = part.wanted
        self._log = part.log
        self._fails = fails

    def look_at(self, chunk: ReadChunk) -> None:
        """Check what a chunk tells. Raises DataLossError."""
        if self._log is not None and f"{chunk.log:016x}" != self._log:
            raise DataLossError(
                f"topic '{self._wanted.topic}' was deleted and declared again while it was read"
            )
        if chunk.missing and not chunk.is_compacted:
            last = min(chunk.next_offset, self._wanted.end)
            self._lost(f"{chunk.missing} messages of offsets {chunk.offset} to {last}")

    def what_is_left(self, rest: OffsetRange, error: OutOfRangeError) -> OffsetRange:
        """Return what can be read of a range that is not in the log. Raises DataLossError."""
        if error.first > rest.first:
            self._lost(f"offsets {rest.first} to {min(error.first, rest.end)}")
        if error.end < rest.end:
            self._lost(f"offsets {error.end} to {rest.end}")
        return rest._replace(first=max(error.first, rest.first), end=min(error.end, rest.end))

    def is_gone(self, rest: OffsetRange, error: TopicMissingError) -> None:
        """Note that the partition, or its topic, was deleted. Raises DataLossError."""
        self._lost(f"offsets {rest.first} to {rest.end} ({error})")

    def _lost(self, what: str) -> None:
        text = (
            f"topic '{self._wanted.topic}', partition {self._wanted.partition}: {what} are not "
            "there any more: removed by retention, or lost"
        )
        if self._fails:
            raise DataLossError(f"{text}. With failOnDataLoss=false the rest is read")
        logger.warning("%s; the rest is read", text)
