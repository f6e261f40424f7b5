"""Files that other programs replace while the node runs: certificates, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["FILES_CHECK_SECONDS", "FileChanges"]

# Renewed files are noticed this late. Tools that renew certificates rarely signal servers, so the
# files are checked when a connection is made: a system call for each, once per interval.
FILES_CHECK_SECONDS: Final = 10.0


class FileChanges:
    """Notices when one of some files is replaced. `clock` gives seconds from some fixed moment."""

    def __init__(self, files: Sequence[Path], clock: Callable[[], float]) -> None:
        self._files = files
        self._clock = clock
        self._accepted = self._seen = self._look()
        self._next_check = clock() + FILES_CHECK_SECONDS

    def is_due(self) -> bool:
        """Whether the files are to be read again; they are looked at once per interval."""
        now = self._clock()
        if now < self._next_check:
            return False
        self._next_check = now + FILES_CHECK_SECONDS
        self._seen = self._look()
        return self._seen != self._accepted

    def accept(self) -> None:
        """Note that the files were read, as they were when `is_due` has looked at them."""
        self._accepted = self._seen

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_identity(file) for file in self._files]


def _identity(file: Path) -> tuple[int, int, int] | None:
    """Return inode, mtime and size of a file, which change when it is replaced, or None."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
