"""The data source `leveret` of Spark: topics as tables and streams.

    spark.dataSource.register(LeveretDataSource)
    spark.readStream.format("leveret").options(servers="broker:15672", subscribe="orders").load()

docs/spark.md has all options. Spark pickles what is made here, and copies it into its workers:
nothing keeps a connection or a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from leveret.spark.read_options import columns_wanted, read_options
from leveret.spark.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["LeveretDataSource"]


class LeveretDataSource(DataSource):
    """Topics of a broker, as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format (see pyspark)."""
        return "leveret"

    def schema(self) -> StructType:
        """Return the columns (see pyspark). Raises OptionError."""
        return table_schema(columns_wanted(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch (see pyspark). Raises OptionError."""
        from leveret.spark.batch_reader import LeveretBatchReader  # noqa: PLC0415

        return LeveretBatchReader(read_options(self.options, is_streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of micro-batches (see pyspark). Raises OptionError."""
        from leveret.spark.stream_reader import LeveretStreamReader  # noqa: PLC0415

        return LeveretStreamReader(read_options(self.options, is_streaming=True), schema)
