"""Lock that lets one process at a time use a data directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from leveret.errors import NodeRunningError, StorageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["DirectoryLock"]

PID_BYTES_MAX = 20  # a process number in decimal digits


class DirectoryLock:
    """An exclusive lock on a data directory, held until `release` or the death of the process.

    The kernel drops the lock with the process, so that no stale lock survives a crash; the process
    number in the file is for the error message alone.
    """

    def __init__(self, directory: Path, *, looking: bool = False) -> None:
        """Take the lock. Raises NodeRunningError, or StorageError where the file system refuses.

        With `looking`, no node can start meanwhile, but nothing is written. Without a lock file no
        node was ever there.
        """
        self._file: int | None = _open(directory / "lock", looking=looking)
        if self._file is None:
            return
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if looking else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, PID_BYTES_MAX, 0).decode(errors="replace").strip()
            self.release()
            raise NodeRunningError(
                f"{directory} is in use by process {holder or 'unknown'}"
            ) from None
        if not looking:
            with suppress(OSError):  # a full disk has no room for the number
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _open(path: Path, *, looking: bool) -> int | None:
    flags = os.O_RDONLY | os.O_NONBLOCK if looking else os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        if looking:
            return None
        raise StorageError(f"cannot lock {path}: its directory is gone") from None
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
