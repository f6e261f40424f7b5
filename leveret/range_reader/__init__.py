"""Client of range reads and batch leases: reads partitions by offset over HTTP, as columns.

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
from leveret.range_reader.lease_client import (
    LeaseClient,
    LeasedOffsets,
    LeaseLostError,
    LeaseName,
    SettledMessages,
)

__all__ = [
    "ChunkColumn",
    "LeaseClient",
    "LeaseLostError",
    "LeaseName",
    "LeasedOffsets",
    "MalformedChunkError",
    "OutOfRangeError",
    "PartitionOffsets",
    "RangeReader",
    "ReadChunk",
    "ReadRefusedError",
    "SettledMessages",
    "TopicBounds",
    "parse_chunk",
]
