"""Batch writes: `write.format("leveret").mode("append")`.

All tasks stage their rows, then the driver commits them: each part by itself, in the order of the
rows, or all of them at once if the write is atomic.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter

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

__all__ = ["LeveretBatchWriter"]

logger = logging.getLogger(__name__)


class LeveretBatchWriter(DataSourceArrowWriter):
    """Writes the rows of a table.

    Its batch is that of the options, which a repeated write names again; else one of its own.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        MessageColumns(schema, options)  # wrong columns are told before anything runs
        self._is_named = options.number is not None
        self._writer = options.writer or f"spark-{uuid.uuid4()}"
        self._number = options.number or 0
        self._options = replace(options, writer=self._writer, number=self._number)
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage the rows of a task (see pyspark). Raises SourceError."""
        return stage_rows(iterator, self._schema, self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what was staged (see pyspark). Raises SourceError."""
        servers = servers_of(self._options.connection)
        parts = [part for each in staged_in_order(messages) for part in each.parts]
        by_number: dict[int, list[str]] = {}
        if self._is_named:
            by_number[self._number] = []  # an empty batch is one, too
        for part in parts:
            by_number.setdefault(part.number, []).append(part.name)
        for number, names in sorted(by_number.items()):
            try:
                servers.commit(self._writer, number, names, mandatory=self._options.mandatory)
            except BatchTooLargeError as error:
                raise SourceError(
                    f"{error}. With atomic=false a table is published in several steps"
                ) from None
        if not self._is_named:
            self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Drop what was staged (see pyspark)."""
        if not self._is_named:
            self._forget()
            return
        try:
            servers_of(self._options.connection).abort(self._writer, self._number)
        except SourceError as error:
            logger.warning("what was staged is left to expire: %s", error)

    def _forget(self) -> None:
        """Forget the writer, which nobody will name again, and what it has staged."""
        try:
            servers_of(self._options.connection).forget(self._writer)
        except SourceError as error:
            logger.warning("a writer is left to expire: %s", error)
