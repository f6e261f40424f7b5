"""A file system that can keep what is removed, for as long as somebody takes a snapshot of it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from leveret.storage.files import RealFileSystem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HeldFiles"]


class HeldFiles(RealFileSystem):
    """The operating system's files; while they are held, `unlink` and `remove_tree` wait.

    Whoever removes a file meanwhile finds it gone all the same: to make it anew removes it first.
    May be called from any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._removed: dict[Path, bool] | None = None  # whether it is a tree; None: nothing is held
        self._moved: dict[Path, Path] = {}

    def hold(self) -> None:
        """Keep what is removed from now on, until `release`."""
        with self._lock:
            assert self._removed is None, "one snapshot is taken at a time"
            self._removed = {}

    def release(self) -> None:
        """Remove what was kept, and keep nothing more. Waits for the device."""
        with self._lock:
            removed, self._removed, self._moved = self._removed or {}, None, {}
        for path, is_tree in removed.items():
            with suppress(OSError):  # the next start removes what nobody needs
                self._remove(path, is_tree=is_tree)

    def place(self, path: Path) -> Path:
        """Where a directory is now: it may have been moved out of the way since `hold`."""
        with self._lock:
            return self._moved.get(path, path)

    def open(self, path: Path, *, create: bool = False) -> int:
        """See FileSystem."""
        if create and self._removed is not None:
            self._remove_first(path)
        return super().open(path, create=create)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        if not self._keep(path, is_tree=False):
            super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        """See FileSystem."""
        if not self._keep(path, is_tree=True):
            super().remove_tree(path)

    def rename(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        super().rename(source, target)
        if self._removed is not None:
            with self._lock:
                self._moved[source] = target

    def _keep(self, path: Path, *, is_tree: bool) -> bool:
        with self._lock:
            if self._removed is None:
                return False
            self._removed[path] = is_tree
            return True

    def _remove_first(self, path: Path) -> None:
        with self._lock:
            removed = self._removed is not None and self._removed.pop(path, None) is not None
        if removed:
            super().unlink(path)

    def _remove(self, path: Path, *, is_tree: bool) -> None:
        if is_tree:
            super().remove_tree(path)
        else:
            super().unlink(path)
