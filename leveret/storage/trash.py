"""The trash: directories of deleted logs, which are moved there at once and removed in threads.

topics/.deleted/DIGEST-RANDOM/    files of a log that was deleted, until they are removed
topics/.deleted/RANDOM/           transient logs of an earlier run

The name of a directory tells which notes are void, should the node end before those are removed.
Files are removed behind the notes, so that a deleted log is never reported as missing.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from leveret.storage.files import storage_error
from leveret.storage.names import TRASH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = ["Trash", "trash_name"]

logger = logging.getLogger(__name__)

DIGEST_BYTES = 16


def trash_name(key: bytes) -> str:
    """Return the beginning of the name that a deleted log's directory gets in the trash."""
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).hexdigest()


class Trash:
    """Trash of the logs below `topics`. Removals are functions for a thread; they raise OSError."""

    def __init__(self, files: FileSystem, topics: Path) -> None:
        self._files = files
        self._directory = topics / TRASH

    def take(self, key: bytes, directory: Path) -> Callable[[], None] | None:
        """Move a deleted log's directory here; return its removal, None if there are no files.

        Raises StorageError.
        """
        doomed = self._directory / f"{trash_name(key)}-{secrets.token_hex(8)}"
        try:
            if not self._files.exists(directory):
                return None
            self._files.make_directory(self._directory)
            self._files.rename(directory, doomed)
        except OSError as error:
            raise storage_error("remove", directory, error) from error
        return partial(self._remove, doomed, directory.parent)

    def take_left(self, transient: Path) -> list[Callable[[], None]]:
        """Return removals of what the last run has left: deleted logs, and transient ones.

        Raises StorageError.
        """
        try:
            if self._files.exists(transient):
                self._files.make_directory(self._directory)
                self._files.rename(transient, self._directory / secrets.token_hex(8))
        except OSError as error:
            raise storage_error("remove", transient, error) from error
        return [partial(self._remove, self._directory / name) for name in self._list()]

    def find_deleted(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys whose logs are here: notes of them are void.

        Raises StorageError.
        """
        deleted = {name.partition("-")[0] for name in self._list()}
        return [key for key in keys if trash_name(key) in deleted] if deleted else []

    def _list(self) -> list[str]:
        try:
            return self._files.list_names(self._directory)
        except OSError as error:
            raise storage_error("list", self._directory, error) from error

    def _remove(self, doomed: Path, *parents: Path) -> None:
        """Remove a directory, and parents of it that are empty now. Raises OSError."""
        if self._files.exists(doomed):  # else a removal of an earlier store has come first
            self._files.remove_tree(doomed)
        for parent in parents:
            with suppress(OSError):  # another partition is still in it
                self._files.remove_directory(parent)

    def removed(self, error: OSError | None) -> None:
        """Note that removals have ended: what could not be removed is logged."""
        if error is not None:
            refusal = storage_error("remove files in", self._directory, error)
            logger.warning("%s; the next start tries again", refusal)
