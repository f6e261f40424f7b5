"""Staging of rows, in a worker: a task's rows become parts of a staged batch.

A part is kept until the broker has it, so that it can be sent again. Its name is one that no other
attempt at the task uses: what two attempts have staged may differ, and the commit names those that
count.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from leveret.spark.errors import SourceError
from leveret.spark.message_columns import MessageColumns
from leveret.spark.servers import PartName, servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leveret.spark.write_options import WriteOptions

__all__ = ["StagedParts", "stage_rows", "staged_in_order"]

PART_BYTES: Final = 16 << 20
PARTS_BITS: Final = 32  # of the number of a batch that is one part
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedParts(WriterCommitMessage):
    """Parts that one task has staged, in the order of its rows.

    `task` is the number of Spark's partition.
    """

    writer: str
    task: int
    parts: tuple[PartName, ...]
    rows: int


def stage_rows(
    batches: Iterator[pa.RecordBatch], schema: StructType, options: WriteOptions
) -> StagedParts:
    """Stage the rows of a task. Raises SourceError.

    If the write is atomic all parts are of one batch, else each is one of its own: their numbers
    ascend in the order of the rows.
    """
    context = TaskContext.get()
    if context is None:
        raise SourceError("rows are written by the tasks of a query")
    writer, number = batch_named(options, context)
    columns, servers = MessageColumns(schema, options), servers_of(options.connection)
    name = f"{context.partitionId()}-{uuid.uuid4().hex}"
    parts: list[PartName] = []
    rows = 0
    for chunks in _grouped(columns, batches):
        if not options.atomic:
            number = (context.partitionId() << PARTS_BITS) + len(parts)
        part = PartName(number, f"{name}-{len(parts)}")
        rows += servers.stage(writer, part, chunks)
        parts.append(part)
    return StagedParts(writer, context.partitionId(), tuple(parts), rows)


def staged_in_order(messages: Sequence[WriterCommitMessage | None]) -> list[StagedParts]:
    """Return what the tasks have staged, in the order of Spark's partitions."""
    found = [each for each in messages if isinstance(each, StagedParts)]
    return sorted(found, key=lambda each: each.task)


def batch_named(options: WriteOptions, context: TaskContext) -> tuple[str, int]:
    """Return writer and number of the batch that a task belongs to. Raises SourceError.

    A streaming query's own are its id, which the checkpoint keeps, and the id of the micro-batch.
    """
    if options.number is not None and options.writer is not None:
        return options.writer, options.number
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise SourceError("a stream is written by a streaming query")
    return options.writer or query, int(batch)


def _grouped(columns: MessageColumns, batches: Iterator[pa.RecordBatch]) -> Iterator[list[bytes]]:
    """Yield the chunks of each part."""
    chunks: list[bytes] = []
    size = 0
    for batch in batches:
        for chunk in columns.chunks(batch):
            chunks.append(chunk)
            size += len(chunk)
            if size >= PART_BYTES:
                yield chunks
                chunks, size = [], 0
    if chunks:
        yield chunks
