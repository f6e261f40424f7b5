"""The manifest of a backup: `manifest.json`, written last.

    {"format": 1, "release": "0.1.0", "node": "leveret@host", "taken_at": "2026-11-23T01:02:03Z",
     "cluster": "",
     "files": [{"path": "leveret.db", "bytes": 4096, "crc32c": 123, "mtime_ns": 0}, …]}

A manifest comes from outside: it may name no file but those below its own directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from leveret.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MANIFEST", "BackedUpFile", "Manifest", "read_manifest"]

MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES_MAX = 1 << 30  # some millions of files


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    """A file of a backup, with its relative path. `mtime_ns` is the original's."""

    path: str
    bytes: int
    crc32c: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of one backup. `taken_at` is ISO 8601 in UTC.

    `cluster` is the id of the node's cluster, "" of a node by itself.
    """

    release: str
    node: str
    taken_at: str
    files: list[BackedUpFile]
    cluster: str = ""

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> str:
        """Return the text of manifest.json."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)


def read_manifest(backup: Path) -> Manifest:
    """Read the manifest of a backup. Raises StorageError if it is malformed or has unsafe paths."""
    path = backup / MANIFEST
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise StorageError(f"{path} is too large to be a manifest")
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StorageError(
            f"{backup} holds no {MANIFEST}: it is no backup, or one that was cut off"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    try:
        found = fields["format"]
        if not isinstance(found, int) or found > FORMAT:
            raise StorageError(f"{path} was written by a newer release (format {found})")
        files = [BackedUpFile(**file) for file in fields["files"]]
        cluster = str(fields.get("cluster", ""))  # not written by earlier releases
        manifest = Manifest(fields["release"], fields["node"], fields["taken_at"], files, cluster)
    except (KeyError, TypeError) as error:
        raise StorageError(f"{path} is no manifest of a backup: {error}") from error
    for file in files:
        _check(file, path)
    return manifest


def _check(file: BackedUpFile, manifest: Path) -> None:
    """Raise StorageError unless the path is relative and stays below the backup."""
    path = file.path
    plain = isinstance(path, str) and path and "\0" not in path and "\\" not in path
    if plain:
        parts = PurePosixPath(path).parts
        plain = ".." not in parts and not path.startswith("/") and path == "/".join(parts)
    numbers = (file.bytes, file.crc32c, file.mtime_ns)
    if not plain or not all(type(number) is int and number >= 0 for number in numbers):
        raise StorageError(f"{manifest} names a file that no backup has: {path!r}")
