"""The file system as a small interface, so that tests can lose, refuse and cut writes.

Everything in `storage` that touches a disk goes through a `FileSystem`, LMDB and SQLite excepted:
they bring their own. Handles are plain numbers, as the operating system gives them, so that the
real implementation costs nothing on the append path.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leveret.errors import DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FileSystem",
    "ReadOnlyFiles",
    "RealFileSystem",
    "RehearsalFiles",
    "copy_range",
    "read_exactly",
    "same_content",
    "storage_error",
    "write_file",
]

COPY_BYTES = 1 << 20  # one read of a copy: large enough to stream, small enough to forget

# Errors by which a file system refuses reads from the cache alone: read normally then.
NO_NOWAIT = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
ADVICE = {
    errno.ENOSPC: "the disk is full: free space or enlarge it",
    errno.EDQUOT: "the disk quota is used up: raise it or free space",
    errno.EACCES: "check the owner and the mode of the data directory",
    errno.EPERM: "check the owner and the mode of the data directory",
    errno.EROFS: "the file system is mounted read-only: the kernel log says why; remount it",
    errno.EIO: "the device reports an error: see the kernel log, and check or replace the disk",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "too many open files on this machine: raise fs.file-max",
}


class FileSystem(Protocol):
    """File system operations of the storage engine. Each raises OSError as the system does."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a handle for reading and writing; `create` makes a new, empty file."""
        ...

    def close(self, handle: int, /) -> None:
        """Close a handle."""
        ...

    def pwrite(self, handle: int, data: Any, position: int, /) -> int:
        """Write at `position` into the page cache; returns the number of bytes written."""
        ...

    def read(self, handle: int, buffer: bytearray, position: int, *, wait: bool) -> int:
        """Fill `buffer` from `position`; returns the number of bytes read.

        Without `wait` only from the page cache: raises BlockingIOError where nothing is cached.
        """
        ...

    def fdatasync(self, handle: int, /) -> None:
        """Wait until the file's content is on the device."""
        ...

    def truncate(self, handle: int, size: int, /) -> None:
        """Truncate a file to `size` bytes, or grow it by zeros."""
        ...

    def size(self, path: Path) -> int:
        """Return a file's size in bytes."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory of this name."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory; a file replaces an existing one."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        ...

    def list_names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; none if it does not exist."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; an existing one is no error."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it."""
        ...


class RealFileSystem:
    """`FileSystem` of the operating system."""

    pwrite = staticmethod(os.pwrite)
    fdatasync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)
    close = staticmethod(os.close)

    def __init__(self) -> None:
        self._nowait = hasattr(os, "RWF_NOWAIT")

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file, private to the node's user if created (see FileSystem)."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o600)  # messages and keys are for the node's user alone

    def read(self, handle: int, buffer: bytearray, position: int, *, wait: bool) -> int:
        """Read into `buffer` (see FileSystem)."""
        if wait or not self._nowait:
            return os.preadv(handle, [buffer], position)
        try:
            return os.preadv(handle, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in NO_NOWAIT:
                raise
        # tmpfs before Linux 6.x, some network and FUSE file systems: the attempt costs more than
        # the read, which there comes from memory or cannot be distinguished from one that does.
        self._nowait = False
        return os.preadv(handle, [buffer], position)

    def size(self, path: Path) -> int:
        """Return a file's size in bytes (see FileSystem)."""
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        """Return whether the path exists (see FileSystem)."""
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory (see FileSystem)."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file (see FileSystem)."""
        path.unlink()

    def list_names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted (see FileSystem)."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents (see FileSystem)."""
        path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable (see FileSystem)."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory (see FileSystem)."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory tree (see FileSystem)."""
        shutil.rmtree(path)


class ReadOnlyFiles(RealFileSystem):
    """`FileSystem` for reading only: it opens files that may not be written to."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading (see FileSystem)."""
        assert not create, "who only looks makes nothing"
        # O_NONBLOCK, because opening a named pipe would block.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class RehearsalFiles(ReadOnlyFiles):
    """`FileSystem` for a dry run: changes have no effect, new files are in memory only."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading, or a new one in memory (see FileSystem)."""
        return os.memfd_create(path.name) if create else super().open(path)

    def truncate(self, handle: int, size: int, /) -> None:
        """Do nothing."""

    def fdatasync(self, handle: int, /) -> None:  # type: ignore[override]
        """Do nothing."""

    def rename(self, source: Path, target: Path) -> None:
        """Do nothing."""

    def unlink(self, path: Path) -> None:
        """Do nothing."""

    def make_directory(self, path: Path) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""


def storage_error(action: str, path: Path, error: OSError) -> StorageError:
    """Return the StorageError for an OSError, with advice for the operator."""
    number = error.errno or 0
    advice = ADVICE.get(number, "see the kernel log")
    reason = os.strerror(number) if number else str(error)
    text = f"cannot {action} {path}: {reason}; {advice}"
    return DiskFullError(text) if number in FULL else StorageError(text)


def read_exactly(files: FileSystem, handle: int, position: int, size: int) -> bytearray:
    """Return `size` bytes from `position`, fewer at the end of the file; waits for the device."""
    buffer = bytearray(size)
    got = files.read(handle, buffer, position, wait=True)
    while 0 < got < size:
        rest = bytearray(size - got)
        more = files.read(handle, rest, position + got, wait=True)
        if more == 0:
            break
        buffer[got : got + more] = rest[:more]
        got += more
    return buffer if got == size else buffer[:got]


def write_all(
    pwrite: Callable[[int, Any, int], int], handle: int, data: Any, position: int
) -> None:
    """Write the whole of `data`, however many calls it takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = pwrite(handle, rest, position)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[written:]
        position += written


def write_file(files: FileSystem, path: Path, content: bytes, *, flush: bool = False) -> None:
    """Create or atomically replace `path` with `content`, flushed if `flush`.

    The directory entry is not flushed: use `sync_directory`. Raises OSError; `path` is as before
    then, and of the half-written file nothing is left, as far as the disk allows that.
    """
    draft = path.with_name(path.name + ".new")
    if files.exists(draft):
        files.unlink(draft)
    try:
        handle = files.open(draft, create=True)
        try:
            write_all(files.pwrite, handle, content, 0)
            if flush:
                files.fdatasync(handle)
        finally:
            files.close(handle)
        files.rename(draft, path)
    except OSError:
        with suppress(OSError):
            files.unlink(draft)
        raise


def read_file(files: FileSystem, path: Path) -> bytearray:
    """Return the whole content of a small file."""
    handle = files.open(path)
    try:
        return read_exactly(files, handle, 0, files.size(path))
    finally:
        files.close(handle)


def content_end(files: FileSystem, handle: int, start: int, stop: int) -> int:
    """Return where the bytes [start, stop) of an open file end without the zeros at their end."""
    while start < stop:
        begin = max(start, stop - COPY_BYTES)
        piece = read_exactly(files, handle, begin, stop - begin).rstrip(b"\0")
        if piece:
            return begin + len(piece)
        stop = begin
    return start


def copy_range(files: FileSystem, handle: int, start: int, stop: int, target: Path) -> None:
    """Copy bytes [start, stop) of an open file into a new, flushed file."""
    made = files.open(target, create=True)
    try:
        position = start
        while position < stop:
            piece = read_exactly(files, handle, position, min(COPY_BYTES, stop - position))
            if not piece:
                break
            write_all(files.pwrite, made, piece, position - start)
            position += len(piece)
        files.fdatasync(made)
    finally:
        files.close(made)


def same_content(files: FileSystem, handle: int, start: int, stop: int, path: Path) -> bool:
    """Whether a file equals the bytes [start, stop) of an open one."""
    if files.size(path) != stop - start:
        return False
    other = files.open(path)
    try:
        for at in range(start, stop, COPY_BYTES):
            size = min(COPY_BYTES, stop - at)
            piece = read_exactly(files, handle, at, size)
            if piece != read_exactly(files, other, at - start, size):
                return False
    finally:
        files.close(other)
    return True
