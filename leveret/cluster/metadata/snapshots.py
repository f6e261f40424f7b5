"""Chunks of a snapshot: all entries, and the writers' last batches, as of one number."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from leveret.cluster.metadata.encoding import FieldReader, MalformedError, open_envelope, seal
from leveret.cluster.metadata.head import MetadataHead, SnapshotReference
from leveret.cluster.metadata.state import WRITERS_MAX, AppliedBatch, StateImage
from leveret.ports.coordination import KEY_BYTES_MAX, VALUE_BYTES_MAX, KeyEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CHUNK_BYTES_MAX", "SnapshotAssembly", "encode_snapshot", "is_snapshot_due"]

# Body of a chunk: sequence u64 │ index u32 │ content bytes u32 │ content, deflated
# Content of chunk 0: each writer: writer u64 │ counter u64 │ sequence u64
# Content of others:  each entry: key bytes u16 │ value bytes u32 │ version u64 │ key │ value
_KIND = 3
_CHUNK = struct.Struct("<QII")
_WRITER = struct.Struct("<QQQ")
_ENTRY = struct.Struct("<HIQ")
CONTENT_BYTES_MAX = 256 * 1024  # small beside ZooKeeper's limit of 1 MiB, whatever does not deflate
CHUNK_BYTES_MAX = CONTENT_BYTES_MAX + 4096  # what does not deflate grows a little
_DEFLATE_LEVEL = 1  # keys have much in common: more effort gains little

# A snapshot is due when reading the changes takes longer than reading it: after so many, or after
# half as many bytes as it has. But not for a few bytes.
CHANGES_MAX = 5000
CHANGES_BYTES_MIN = 4 * 1024 * 1024


def is_snapshot_due(head: MetadataHead) -> bool:
    """Return whether enough was changed since the last snapshot for a new one."""
    if head.sequence - head.snapshot.sequence >= CHANGES_MAX:
        return True
    return head.changes_size >= max(CHANGES_BYTES_MIN, head.snapshot.size // 2)


def encode_snapshot(image: StateImage) -> Iterator[bytes]:
    """Return the chunks of a snapshot, one at a time: each takes some milliseconds."""
    writers = b"".join(_WRITER.pack(writer, *last) for writer, last in image.writers.items())
    yield _encode_chunk(image.sequence, 0, writers)
    content = bytearray()
    index = 1
    for key, (version, value) in image.entries.items():
        text = key.encode()
        if len(content) + _ENTRY.size + len(text) + len(value) > CONTENT_BYTES_MAX:
            yield _encode_chunk(image.sequence, index, content)
            index += 1
            content.clear()
        content += _ENTRY.pack(len(text), len(value), version)
        content += text
        content += value
    if content:
        yield _encode_chunk(image.sequence, index, content)


def _encode_chunk(sequence: int, index: int, content: bytes | bytearray) -> bytes:
    deflated = zlib.compress(content, _DEFLATE_LEVEL)
    return seal(_KIND, _CHUNK.pack(sequence, index, len(content)) + deflated)


class SnapshotAssembly:
    """Snapshot that is being read, chunk by chunk in order."""

    def __init__(self, reference: SnapshotReference) -> None:
        self._reference = reference
        self._index = 0
        self._entries: dict[str, KeyEntry] = {}
        self._writers: dict[int, AppliedBatch] = {}

    def add(self, data: bytes, place: str) -> None:
        """Add the next chunk. Raises MalformedError, or NewerFormatError that names `place`."""
        if len(data) > CHUNK_BYTES_MAX:
            raise MalformedError(f"it has {len(data)} bytes, more than {CHUNK_BYTES_MAX}")
        content = FieldReader(self._inflate(FieldReader(open_envelope(_KIND, data, place))))
        if self._index == 0:
            self._add_writers(content)
        else:
            self._add_entries(content)
        self._index += 1

    def _inflate(self, body: FieldReader) -> bytes:
        sequence, index, size = body.unpack(_CHUNK)
        if (sequence, index) != (self._reference.sequence, self._index):
            raise MalformedError(f"it is chunk {index} of snapshot {sequence}")
        if size > CONTENT_BYTES_MAX:
            raise MalformedError(f"its content has {size} bytes")
        inflater = zlib.decompressobj()
        try:
            content = inflater.decompress(body.data[body.position :], size + 1)
        except zlib.error:
            raise MalformedError("it cannot be inflated") from None
        if len(content) != size or not inflater.eof or inflater.unused_data:
            raise MalformedError("its content has another size than it says")
        return content

    def _add_writers(self, content: FieldReader) -> None:
        while content.position < len(content.data):
            writer, counter, sequence = content.unpack(_WRITER)
            if sequence > self._reference.sequence:
                raise MalformedError(f"it has a batch {sequence}, later than the snapshot")
            self._writers[writer] = AppliedBatch(counter, sequence)
        if len(self._writers) > WRITERS_MAX:
            raise MalformedError(f"it has {len(self._writers)} writers")

    def _add_entries(self, content: FieldReader) -> None:
        entries, latest = self._entries, self._reference.sequence
        while content.position < len(content.data):
            key_size, value_size, version = content.unpack(_ENTRY)
            if not 0 < key_size <= KEY_BYTES_MAX or value_size > VALUE_BYTES_MAX:
                raise MalformedError(f"an entry has {key_size} bytes of key, {value_size} of value")
            key = content.text(key_size)
            if not 0 < version <= latest:
                raise MalformedError(f"the key {key} has version {version}")
            if key in entries:
                raise MalformedError(f"the key {key} is in the snapshot twice")
            entries[key] = KeyEntry(version, content.take(value_size))

    def image(self) -> StateImage:
        """Return the state once all chunks were added."""
        assert self._index == self._reference.chunks
        return StateImage(self._reference.sequence, self._entries, self._writers)
