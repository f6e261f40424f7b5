"""Logs whose queue is no longer defined, described from their directories and files.

Synchronous, and waits for the device: for a worker thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from leveret.storage.names import encode_name
from leveret.storage.segment import list_segments

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = ["Orphan", "read_orphan"]

CUT = "~"  # in front of the hash of a name that was too long to be written whole


@dataclass(frozen=True, slots=True)
class Orphan:
    """A log without a queue.

    `log` is its directory below the data directory's topics/. `vhost` and `topic` are None where
    the name was too long to be written whole. `first` and `last` are offsets of its segments.
    """

    log: str
    vhost: str | None
    topic: str | None
    incarnation: str
    bytes: int
    segments: int
    first: int
    last: int
    changed_ms: int

    def is_of(self, vhost: str, topic: str) -> bool:
        """Whether this may be the log of a topic: an undecodable name is compared as encoded."""
        directory = self.log.split("/")
        names = (encode_name(vhost), encode_name(topic))
        return names == (directory[0], directory[1].rpartition("~~")[0])


def read_orphan(files: FileSystem, topics: Path, directory: Path) -> Orphan:
    """Describe the log in `directory`, VHOST/TOPIC~~INCARNATION/PARTITION. Raises OSError."""
    relative = directory.relative_to(topics)
    vhost, named, _ = relative.parts
    topic, _, incarnation = named.rpartition("~~")
    segments = list_segments(files, directory)
    changed = max((segment.path.stat().st_mtime_ns for segment in segments), default=0)
    return Orphan(
        log=str(relative),
        vhost=_decoded(vhost),
        topic=_decoded(topic),
        incarnation=incarnation,
        bytes=sum(segment.size for segment in segments),
        segments=len(segments),
        first=segments[0].base if segments else 0,
        last=segments[-1].base if segments else 0,
        changed_ms=changed // 1_000_000,
    )


def _decoded(encoded: str) -> str | None:
    """Return the name that `encode_name` encoded; None if it was shortened."""
    if encoded == "%":
        return ""
    if CUT in encoded:
        return None
    try:
        name = unquote_to_bytes(encoded).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return name if encode_name(name) == encoded else None
