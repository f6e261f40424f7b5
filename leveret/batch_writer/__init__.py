"""Client of staged batches: stages parts over HTTP and commits them (docs/staged-batches.md).

It needs nothing but the standard library, and imports nothing of the broker, so that a job can
import it in each of its processes.
"""

from leveret.batch_writer.client import BatchWriter, CommitResult, WriteRefusedError
from leveret.batch_writer.packing import (
    PERSISTENT_HEADER,
    RowBytes,
    pack_chunk,
    repeated,
    row_bytes,
)

__all__ = [
    "PERSISTENT_HEADER",
    "BatchWriter",
    "CommitResult",
    "RowBytes",
    "WriteRefusedError",
    "pack_chunk",
    "repeated",
    "row_bytes",
]
