"""Batch reads: `spark.read.format("leveret")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from leveret.spark.archive_reader import topics_of
from leveret.spark.errors import SourceError
from leveret.spark.offsets import ranges_between
from leveret.spark.partition_reader import plan_tasks, read_partition
from leveret.spark.places import check_filters, offsets_at
from leveret.spark.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from leveret.spark.read_options import ReadOptions

__all__ = ["LeveretBatchReader"]


class LeveretBatchReader(DataSourceReader):
    """Reads the messages between a starting and an ending point, which are looked up once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the ranges that are read at a time (see pyspark). Raises SourceError."""
        options, broker = self._options, topics_of(self._options)
        start = offsets_at(broker, options, options.starting)
        end = offsets_at(broker, options, options.ending)
        check_filters(servers_of(options.connection), end, options.filters)
        try:
            ranges = ranges_between(start, end)
        except ValueError as error:
            raise SourceError(f"the ending offsets are before the starting ones: {error}") from None
        return plan_tasks(ranges, end.logs, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range (see pyspark). Raises SourceError."""
        return read_partition(partition, self._options, self._schema)
