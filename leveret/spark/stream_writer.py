"""Streaming writes: `writeStream.format("leveret")`.

Each micro-batch is a staged batch of the query: a task stages what it has, the driver commits.
A micro-batch that comes again after a crash is staged anew, and committed once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from leveret.spark.errors import BatchTooLargeError, SourceError
from leveret.spark.message_columns import MessageColumns
from leveret.spark.part_stager import StagedParts, stage_rows, staged_in_order
from leveret.spark.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from leveret.spark.write_options import WriteOptions

__all__ = ["LeveretStreamWriter"]

logger = logging.getLogger(__name__)


class LeveretStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch, all of it or nothing, and once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        MessageColumns(schema, options)  # wrong columns are told before anything runs
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage the rows of a task (see pyspark). Raises SourceError."""
        return stage_rows(iterator, self._schema, self._options)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Publish a micro-batch (see pyspark). Raises SourceError."""
        staged = staged_in_order(messages)
        if not staged:
            return
        names = [part.name for each in staged for part in each.parts]
        writer, servers = staged[0].writer, servers_of(self._options.connection)
        try:
            servers.commit(writer, batchId, names, mandatory=self._options.mandatory)
        except BatchTooLargeError as error:
            raise SourceError(
                f"{error}. This micro-batch, which the checkpoint has, needs a greater "
                "staged_commit_bytes_max in the broker's configuration; smaller ones are made by "
                "maxBytesPerTrigger and maxOffsetsPerTrigger of what is read"
            ) from None

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Drop what was staged of a micro-batch that has failed (see pyspark)."""
        staged = staged_in_order(messages)
        if not staged:
            return
        try:
            servers_of(self._options.connection).abort(staged[0].writer, batchId)
        except SourceError as error:
            logger.warning("what was staged is left to expire: %s", error)
