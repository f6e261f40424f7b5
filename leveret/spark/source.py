"""The data source `leveret` of Spark: topics as tables and streams.

    spark.dataSource.register(LeveretDataSource)
    spark.readStream.format("leveret").options(servers="broker:15672", subscribe="orders").load()
    writer = table.write.format("leveret").mode("append")
    writer.options(servers="broker:15672", topic="orders").save()

docs/spark.md has all options. Spark pickles what is made here, and copies it into its workers:
nothing keeps a connection or a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from leveret.spark.errors import SourceError
from leveret.spark.option_reader import OptionError
from leveret.spark.queue_options import consumes, read_queue_options, refuse_batch
from leveret.spark.read_options import columns_wanted, read_options
from leveret.spark.schema import check_names, table_schema
from leveret.spark.value_columns import body_columns, decoded_columns
from leveret.spark.value_formats import ValueFormat
from leveret.spark.value_options import value_options
from leveret.spark.write_options import write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from leveret.spark.queue_options import QueueOptions
    from leveret.spark.read_options import ReadOptions

__all__ = ["LeveretDataSource"]


class LeveretDataSource(DataSource):
    """Topics of a broker, as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format (see pyspark)."""
        return "leveret"

    def schema(self) -> StructType | str:
        """Return the columns (see pyspark). Raises OptionError."""
        columns = table_schema(columns_wanted(self.options))
        return decoded_columns(columns, value_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch (see pyspark). Raises OptionError."""
        if consumes(self.options):
            raise refuse_batch()
        from leveret.spark.batch_reader import LeveretBatchReader  # noqa: PLC0415

        options = read_options(self.options, is_streaming=False)
        _check_columns(schema, options)
        return LeveretBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of micro-batches (see pyspark); where options are wrong it tells why."""
        try:
            return self._stream_reader(schema)
        except (OptionError, SourceError) as error:
            from leveret.spark.refused_reader import RefusedStreamReader  # noqa: PLC0415

            return RefusedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of micro-batches. Raises OptionError, SourceError."""
        if consumes(self.options):
            from leveret.spark.queue_reader import LeveretQueueReader  # noqa: PLC0415

            consumed = read_queue_options(self.options)
            _check_columns(schema, consumed)
            return LeveretQueueReader(consumed, schema)
        from leveret.spark.stream_reader import LeveretStreamReader  # noqa: PLC0415

        options = read_options(self.options, is_streaming=True)
        _check_columns(schema, options)
        return LeveretStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer of a table (see pyspark). Raises OptionError, SourceError."""
        from leveret.spark.batch_writer import LeveretBatchWriter  # noqa: PLC0415

        _check_appends(overwrite=overwrite)
        return LeveretBatchWriter(write_options(self.options, is_streaming=False), schema)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Return a writer of micro-batches (see pyspark). Raises OptionError, SourceError."""
        from leveret.spark.stream_writer import LeveretStreamWriter  # noqa: PLC0415

        _check_appends(overwrite=overwrite)
        return LeveretStreamWriter(write_options(self.options, is_streaming=True), schema)


def _check_appends(*, overwrite: bool) -> None:
    """Raise SourceError if what is there is to be replaced."""
    if overwrite:
        raise SourceError(
            "a topic is appended to: write with mode('append'), and streams with "
            "outputMode('append') or 'update'"
        )


def _check_columns(schema: StructType, options: ReadOptions | QueueOptions) -> None:
    """Raise OptionError or SourceError if columns that the user may have given do not fit."""
    known = [*table_schema(options.columns).names]
    if options.values.format is not ValueFormat.RAW:
        known.append(options.values.corrupt_column)
    check_names(schema, known)
    body_columns(schema, options.values)
