"""Head of the sequence: how far it has come, and which snapshot stands for its beginning."""

from __future__ import annotations

import struct
from typing import NamedTuple

from leveret.cluster.metadata.encoding import FieldReader, MalformedError, open_envelope, seal

__all__ = ["MetadataHead", "SnapshotReference", "decode_head", "encode_head"]

# Body: cluster id 16 bytes │ sequence u64 │ bytes of the changes behind the snapshot u64
#       │ snapshot: sequence u64 │ token u64 │ chunks u32 │ bytes u64
_KIND = 2
_CLUSTER_ID_BYTES = 16
_NUMBERS = struct.Struct("<QQQQIQ")
_CHUNKS_MAX = 1 << 16  # 16 GiB, more than a node could hold


class SnapshotReference(NamedTuple):
    """Snapshot as of `sequence`; without chunks, the empty state.

    The `token` is random, so that two nodes that make one as of the same number make two.
    """

    sequence: int = 0
    token: int = 0
    chunks: int = 0
    size: int = 0  # bytes of all chunks


class MetadataHead(NamedTuple):
    """Head of the sequence; `changes_size` are the bytes of all changes behind the snapshot."""

    cluster_id: bytes
    sequence: int = 0
    changes_size: int = 0
    snapshot: SnapshotReference = SnapshotReference()

    def after(self, sequence: int, size: int) -> MetadataHead:
        """Return the head after one batch more, of `size` bytes."""
        return self._replace(sequence=sequence, changes_size=self.changes_size + size)


def encode_head(head: MetadataHead) -> bytes:
    """Return the bytes of a head."""
    return seal(
        _KIND, head.cluster_id + _NUMBERS.pack(head.sequence, head.changes_size, *head.snapshot)
    )


def decode_head(data: bytes, place: str) -> MetadataHead:
    """Return the head. Raises MalformedError, or NewerFormatError that names `place`."""
    reader = FieldReader(open_envelope(_KIND, data, place))
    cluster_id = reader.take(_CLUSTER_ID_BYTES)
    sequence, changes_size, *numbers = reader.unpack(_NUMBERS)
    reader.end()
    snapshot = SnapshotReference(*numbers)
    if snapshot.sequence > sequence:
        raise MalformedError(f"its snapshot {snapshot.sequence} is beyond its end {sequence}")
    if snapshot.chunks > _CHUNKS_MAX:
        raise MalformedError(f"its snapshot has {snapshot.chunks} chunks")
    return MetadataHead(cluster_id, sequence, changes_size, snapshot)
