"""The ledger of losses, `losses.jsonl`: losses that no operator has acknowledged yet.

    a line of JSON for each loss: number, at_ms, kind, subject, what, count

Lines are appended; acknowledging rewrites the file without them. A line that cannot be parsed
counts as a loss, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from leveret.ports.losses import Loss, LossKind
from leveret.storage.files import read_file, storage_error, write_all, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = ["FILE_NAME", "LossLedger", "read_losses"]

FILE_NAME = "losses.jsonl"


def read_losses(files: FileSystem, data: Path) -> list[Loss]:
    """Return the unacknowledged losses, oldest first. Raises OSError."""
    try:
        content = bytes(read_file(files, data / FILE_NAME))
    except FileNotFoundError:
        return []
    return [_parsed(line, data / FILE_NAME) for line in content.splitlines() if line.strip()]


def _parsed(line: bytes, path: Path) -> Loss:
    try:
        entry = json.loads(line)
        return Loss(**{**entry, "kind": LossKind(entry["kind"])})
    except (ValueError, TypeError, KeyError):
        text = line[:200].decode(errors="replace")
        return Loss(LossKind.UNREADABLE, str(path), f"an entry cannot be read: {text!r}")


class LossLedger:
    """Losses of one data directory. `wall_ms()` is the clock, `warn(text)` logs a warning."""

    def __init__(
        self,
        files: FileSystem,
        data: Path,
        wall_ms: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        """Read the file. Raises StorageError if it cannot be read."""
        self._files = files
        self._path = data / FILE_NAME
        self._wall_ms = wall_ms
        self._warn = warn
        try:
            self.unacknowledged = read_losses(files, data)  # unacknowledged losses
        except OSError as error:
            raise storage_error("read", self._path, error) from error

    @property
    def message_count(self) -> int:
        """Number of messages that are lost and not acknowledged, as far as known."""
        return sum(loss.count for loss in self.unacknowledged)

    def has(self, kind: LossKind) -> Loss | None:
        """Return the first unacknowledged loss of a kind, or None."""
        return next((loss for loss in self.unacknowledged if loss.kind is kind), None)

    def note(self, loss: Loss) -> None:
        """Add a loss, unless the very same is there; flushed on return.

        If the file cannot be written, only the log tells of it.
        """
        said = (loss.kind, loss.subject, loss.what)
        if any((known.kind, known.subject, known.what) == said for known in self.unacknowledged):
            return
        number = max((known.number for known in self.unacknowledged), default=0) + 1
        noted = replace(loss, at_ms=self._wall_ms(), number=number)
        self.unacknowledged.append(noted)
        try:
            self._append(noted)
        except OSError as error:
            self._warn(str(storage_error("write a loss to", self._path, error)))

    def _append(self, loss: Loss) -> None:
        exists = self._files.exists(self._path)
        handle = self._files.open(self._path, create=not exists)
        try:
            end = self._files.size(self._path)
            write_all(self._files.pwrite, handle, _line(loss), end)
            self._files.fdatasync(handle)
        finally:
            self._files.close(handle)
        if not exists:
            self._files.sync_directory(self._path.parent)

    def acknowledge(self, numbers: Collection[int] | None) -> int:
        """Remove these losses, None: all. Returns their number. Raises StorageError."""
        kept = (
            []
            if numbers is None
            else [each for each in self.unacknowledged if each.number not in numbers]
        )
        try:
            write_file(self._files, self._path, b"".join(map(_line, kept)), flush=True)
            self._files.sync_directory(self._path.parent)
        except OSError as error:
            raise storage_error("write", self._path, error) from error
        count, self.unacknowledged = len(self.unacknowledged) - len(kept), kept
        return count


def _line(loss: Loss) -> bytes:
    return json.dumps(asdict(loss)).encode() + b"\n"
