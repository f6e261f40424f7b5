"""Client of range reads: reads partitions by offset over HTTP, as columns.

It needs nothing but the standard library, and imports nothing of the broker, so that a job can
import it in each of its processes.
"""

from leveret.range_reader.chunk import ChunkColumn, MalformedChunkError, ReadChunk, parse_chunk
from leveret.range_reader.client import (
    OutOfRangeError,
    PartitionOffsets,
    RangeReader,
    ReadRefusedError,
    TopicBounds,
)

__all__ = [
    "ChunkColumn",
    "MalformedChunkError",
    "OutOfRangeError",
    "PartitionOffsets",
    "RangeReader",
    "ReadChunk",
    "ReadRefusedError",
    "TopicBounds",
    "parse_chunk",
]
