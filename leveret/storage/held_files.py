"""A file system that can delay removals while a snapshot of it is taken."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from leveret.storage.files import RealFileSystem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HeldFiles"]


class HeldFiles(RealFileSystem):
    """`FileSystem` in which, between `hold` and `release`, `unlink` and `remove_tree` are delayed.

    A removed file can be created again meanwhile: the old one is removed first. May be called from
    any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._removed: dict[Path, bool] | None = None  # whether it is a tree; None: nothing is held
        self._moved: dict[Path, Path] = {}

    def hold(self) -> None:
        """Delay removals from now on, until `release`."""
        with self._lock:
            assert self._removed is None, "one snapshot is taken at a time"
            self._removed = {}

    def release(self) -> None:
        """Carry out the delayed removals and delay no more. Waits for the device."""
        with self._lock:
            removed, self._removed, self._moved = self._removed or {}, None, {}
        for path, is_tree in removed.items():
            with suppress(OSError):  # the next start removes it
                self._remove(path, is_tree=is_tree)

    def place(self, path: Path) -> Path:
        """Return a directory's current path: it may have been renamed since `hold`."""
        with self._lock:
            return self._moved.get(path, path)

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file; if created, remove first one whose removal is delayed."""
        if create and self._removed is not None:
            self._remove_first(path)
        return super().open(path, create=create)

    def unlink(self, path: Path) -> None:
        """Remove a file, now or at `release`."""
        if not self._keep(path, is_tree=False):
            super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory tree, now or at `release`."""
        if not self._keep(path, is_tree=True):
            super().remove_tree(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory; remember the new path while removals are delayed."""
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
