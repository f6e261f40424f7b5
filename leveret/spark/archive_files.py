"""Files of an archive: read and written on local disks, read elsewhere by pyarrow.

`ArchiveFiles` is what a place can do that is written to, `ReadableFiles` one that is read. Jobs
write to Hadoop's file systems through Spark (leveret.spark.jobs.hadoop_files); the data source
reads in processes that have no JVM.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.spark.archive_manifest import (
    MANIFESTS,
    ManifestError,
    manifest_name,
    manifest_number,
    parse_manifest,
    topic_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.spark.archive_manifest import BatchManifest

__all__ = [
    "ArchiveFiles",
    "ArrowFiles",
    "ListedFiles",
    "LocalFiles",
    "ReadableFiles",
    "files_to_read",
    "local_path",
    "manifest_numbers",
    "read_manifest",
    "read_manifests",
]

SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):(?!/?$)", re.IGNORECASE)


class ListedFiles(Protocol):
    """A place with an archive. Paths are relative, with slashes. Errors are OSErrors."""

    root: str  # as Spark has it

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, none if it is not there."""

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None if it is not there."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""


class ReadableFiles(ListedFiles, Protocol):
    """A place whose files pyarrow can read."""

    def open(self, path: str) -> Any:
        """Return a file that pyarrow reads at any position."""


class ArchiveFiles(ListedFiles, Protocol):
    """A place that an archive is written to."""

    def write(self, path: str, data: bytes) -> None:
        """Write a file so that it is there as a whole or not at all, and safe.

        Raises FileExistsError if it is there.
        """

    def delete(self, directory: str) -> None:
        """Delete a directory with everything in it, if it is there."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files safe that Spark has written, as far as the place does not do so itself."""


def local_path(place: str) -> Path | None:
    """Return the path of a place on local disks, None for the URI of another one."""
    found = SCHEME.match(place)
    if found is None:
        return Path(place).absolute()
    if found[1].lower() != "file":
        return None
    return Path("/" + place[found.end() :].lstrip("/"))


def read_manifests(files: ListedFiles, topic: str) -> list[BatchManifest]:
    """Return the manifests of a topic, in order. Raises ManifestError, OSError."""
    return [read_manifest(files, topic, number) for number in manifest_numbers(files, topic)]


def manifest_numbers(files: ListedFiles, topic: str) -> list[int]:
    """Return the numbers of the batches of a topic that are in the archive. Raises OSError."""
    numbers = map(manifest_number, files.names(f"{topic_directory(topic)}/{MANIFESTS}"))
    return sorted(number for number in numbers if number is not None)


def read_manifest(files: ListedFiles, topic: str, number: int) -> BatchManifest:
    """Return the manifest of one batch. Raises ManifestError, OSError."""
    path = f"{topic_directory(topic)}/{MANIFESTS}/{manifest_name(number)}"
    try:
        found = parse_manifest(files.read(path))
    except ManifestError as error:
        raise ManifestError(f"{files.root}/{path}: {error}") from None
    if (found.topic, found.batch) != (topic, number):
        raise ManifestError(
            f"{files.root}/{path} is of batch {found.batch} of topic '{found.topic}'"
        )
    return found


class LocalFiles:
    """An archive in a directory of this machine, or one that all machines have mounted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.root = f"file://{directory}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, none if it is not there."""
        try:
            return sorted(os.listdir(self._directory / directory))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None if it is not there."""
        try:
            return (self._directory / path).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return (self._directory / path).read_bytes()

    def open(self, path: str) -> Any:
        """Return a file that pyarrow reads at any position."""
        return (self._directory / path).open("rb")

    def write(self, path: str, data: bytes) -> None:
        """Write a file as a whole or not at all. Raises FileExistsError if it is there."""
        target = self._directory / path
        if target.exists():
            raise FileExistsError(f"{target} exists")
        self._make(target.parent)
        temporary = target.with_name(f".{target.name}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync(target.parent)

    def _make(self, directory: Path) -> None:
        """Make a directory; those that are new are safe in the ones that they are in."""
        if not directory.exists():
            self._make(directory.parent)
            directory.mkdir(exist_ok=True)
            _sync(directory.parent)

    def delete(self, directory: str) -> None:
        """Delete a directory with everything in it, if it is there."""
        shutil.rmtree(self._directory / directory, onerror=_unless_gone)

    def sync(self, paths: Iterable[str]) -> None:
        """Flush files, and the directories they are in up to the archive's, to the disk."""
        directories = set()
        for path in paths:
            file = self._directory / path
            _sync(file)
            directories |= {each for each in file.parents if self._directory in each.parents}
        for directory in sorted([*directories, self._directory]):
            _sync(directory)


def _unless_gone(*told: Any) -> None:
    """Raise the error that a function has met at a path, unless there is no such path."""
    _, _, (_, error, _) = told
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArrowFiles:
    """An archive in a place that pyarrow can read: S3, HDFS, Google's storage."""

    def __init__(self, uri: str) -> None:
        from pyarrow.fs import FileSystem  # noqa: PLC0415

        self.root = uri
        # Hadoop's name of S3 is another one.
        self._system, self._directory = FileSystem.from_uri(re.sub("^s3[an]:", "s3:", uri))

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, none if it is not there."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415

        selected = FileSelector(self._path(directory), allow_not_found=True)
        return sorted(each.base_name for each in self._system.get_file_info(selected))

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None if it is not there."""
        return self._system.get_file_info(self._path(path)).size

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._system.open_input_stream(self._path(path)) as stream:
            return stream.read()

    def open(self, path: str) -> Any:
        """Return a file that pyarrow reads at any position."""
        return self._system.open_input_file(self._path(path))

    def _path(self, path: str) -> str:
        return f"{self._directory.rstrip('/')}/{path}"


def files_to_read(place: str) -> ReadableFiles:
    """Return the files of a place, to be read without Spark. Raises OSError, ValueError."""
    path = local_path(place)
    return ArrowFiles(place) if path is None else LocalFiles(path)
