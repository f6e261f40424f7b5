"""Data keys that the files of a virtual host still need.

A segment is sealed with one key or none, which its first bytes name. Quarantined files, and a
segment that begins with damage, may need any key. For worker threads: it waits for the device, once
per segment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.storage.encryption import HEAD_BYTES, key_id_of
from leveret.storage.files import read_exactly, storage_error
from leveret.storage.names import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = ["KeyUsage", "key_usage"]

ROOTS = ("topics", "transient")


@dataclass(slots=True)
class KeyUsage:
    """Segment counts by key id, 0 for none; and the number of files that may need any key."""

    segments: Counter[int] = field(default_factory=Counter)
    unknown: int = 0

    def needs(self, key_id: int) -> bool:
        """Whether a file may exist that cannot be read without a key."""
        return self.unknown > 0 or self.segments[key_id] > 0


def key_usage(files: FileSystem, data: Path, vhost: str) -> KeyUsage:
    """Return the key usage of a virtual host's files on disk. Raises StorageError."""
    usage = KeyUsage()
    try:
        for path in _files_of(files, data, vhost):
            if path.name.endswith(".log"):
                _count(files, path, usage)
            elif ".log.damaged-" in path.name:
                usage.unknown += 1
    except OSError as error:
        raise storage_error("look for encrypted segments in", data, error) from error
    return usage


def _files_of(files: FileSystem, data: Path, vhost: str) -> Iterator[Path]:
    for root in ROOTS:
        of_vhost = data / root / encode_name(vhost)
        for topic in files.list_names(of_vhost):
            for partition in files.list_names(of_vhost / topic):
                directory = of_vhost / topic / partition
                for name in files.list_names(directory):
                    yield directory / name


def _count(files: FileSystem, path: Path, usage: KeyUsage) -> None:
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return  # settled and removed meanwhile
    try:
        head = read_exactly(files, handle, 0, HEAD_BYTES)
        if head:  # else it was created a moment ago, or the node died then
            usage.segments[key_id_of(head)] += 1
    except CorruptBatchError:
        usage.unknown += 1
    finally:
        files.close(handle)
