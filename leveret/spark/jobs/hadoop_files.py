"""Files of an archive in one of Hadoop's file systems, through Spark's JVM.

A file system of objects, such as S3, has no rename that is atomic: its connector copies the object
and deletes the old one. That does for manifests: the copy appears as a whole, and a manifest's
presence is what commits a batch.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from leveret.spark.archive_files import LocalFiles, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from leveret.spark.archive_files import ArchiveFiles

__all__ = ["HadoopFiles", "files_to_write"]


class HadoopFiles:
    """An archive at a URI that Hadoop's FileSystem knows: hdfs://, s3a://, and others."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.root = uri.rstrip("/")
        self._jvm: Any = spark._jvm  # noqa: SLF001  # pyspark has no other way to it
        configuration = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        with _as_os_errors():
            self._system: Any = self._path("").getFileSystem(configuration)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, none if it is not there."""
        path = self._path(directory)
        with _as_os_errors():
            if not self._system.exists(path):
                return []
            return sorted(each.getPath().getName() for each in self._system.listStatus(path))

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None if it is not there."""
        with _as_os_errors():
            if not self._system.exists(self._path(path)):
                return None
            return self._system.getFileStatus(self._path(path)).getLen()

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with _as_os_errors():
            stream = self._system.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a file as a whole or not at all. Raises FileExistsError if it is there."""
        target = self._path(path)
        temporary = self._jvm.org.apache.hadoop.fs.Path(
            target.getParent(), f".{target.getName()}.tmp"
        )
        with _as_os_errors():
            if self._system.exists(target):
                raise FileExistsError(f"{target.toString()} exists")
            stream = self._system.create(temporary, True)  # replace it
            try:
                stream.write(data)
                with suppress(Exception):  # objects are safe when they are closed
                    stream.hsync()
            finally:
                stream.close()
            if not self._system.rename(temporary, target):
                raise OSError(f"{target.toString()} cannot be written: the rename was refused")

    def delete(self, directory: str) -> None:
        """Delete a directory with everything in it, if it is there."""
        with _as_os_errors():
            self._system.delete(self._path(directory), True)  # with what is in it

    def sync(self, paths: Iterable[str]) -> None:
        """Do nothing: what was closed is as safe as the file system makes it."""

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise what Java has raised as an OSError."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    try:
        yield
    except Py4JJavaError as error:
        raise OSError(str(error.java_exception)) from error


def files_to_write(spark: SparkSession, place: str) -> ArchiveFiles:
    """Return the files of a place, a path or a URI. Raises OSError."""
    path = local_path(place)
    return HadoopFiles(spark, place) if path is None else LocalFiles(path)
