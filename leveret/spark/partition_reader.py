"""One range of offsets, read in a worker of Spark: what batch and streaming readers share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from leveret.range_reader import OutOfRangeError
from leveret.spark.arrow_batches import BatchMaker
from leveret.spark.errors import DataLossError, TopicMissingError
from leveret.spark.offsets import OffsetRange
from leveret.spark.schema import columns_read
from leveret.spark.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leveret.range_reader import ReadChunk
    from leveret.spark.read_options import ReadOptions

__all__ = ["RangePartition", "read_partition"]

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """A range of offsets in one log, whose number is `log`."""

    def __init__(self, wanted: OffsetRange, log: str | None) -> None:
        super().__init__(tuple(wanted))
        self.log = log

    @property
    def wanted(self) -> OffsetRange:
        """The offsets."""
        return OffsetRange(*self.value)


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Raises SourceError.

    Where there are no ranges at all, Spark asks for a partition of its own, which has none.
    """
    if isinstance(partition, RangePartition):
        yield from read_range(partition, options, to_arrow_schema(columns, timezone="UTC"))


def read_range(
    partition: RangePartition, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Raises SourceError."""
    servers, columns = servers_of(options.connection), columns_read(schema.names)
    check = LossCheck(partition, fails=options.fails_on_data_loss)
    rest = partition.wanted
    maker = BatchMaker(schema, rest.topic, options.batch_rows)
    while rest.first < rest.end:
        try:
            for chunk in servers.chunks(rest, columns, options.filters):
                check.look_at(chunk)
                rest = rest._replace(first=chunk.next_offset)
                yield from maker.batches(chunk, rest.end)
        except OutOfRangeError as error:
            rest = check.what_is_left(rest, error)
        except TopicMissingError as error:
            check.is_gone(rest, error)
            return


class LossCheck:
    """Notices missing messages of a range: an error, or a warning if `fails` is not set."""

    def __init__(self, partition: RangePartition, *, fails: bool) -> None:
        self._wanted = partition.wanted
        self._log = partition.log
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
