"""A file system in memory that forgets what was not flushed and fails the call it is told to."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Content:
    """A file: what reads see, and what the device has."""

    cached: bytearray = field(default_factory=bytearray)
    device: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        if len(self.cached) < position:
            self.cached.extend(bytes(position - len(self.cached)))
        self.cached[position : position + len(data)] = data
        self.dirty.append((position, position + len(data)))

    def copy(self) -> Content:
        return Content(bytearray(self.cached), bytearray(self.device), list(self.dirty))

    def flush(self) -> None:
        for first, stop in self.dirty:
            if len(self.device) < first:
                self.device.extend(bytes(first - len(self.device)))
            self.device[first:stop] = self.cached[first:stop]
        self.device.extend(bytes(max(len(self.cached) - len(self.device), 0)))
        del self.device[len(self.cached) :]
        self.dirty.clear()

    def after_power_cut(self, kept_bytes: int) -> bytes:
        """Return what is flushed, and the first so many bytes of what is not."""
        found = bytearray(self.device)
        for first, stop in self.dirty:
            kept = self.cached[first : min(stop, first + kept_bytes)]
            kept_bytes -= len(kept)
            found.extend(bytes(max(first - len(found), 0) if kept else 0))
            found[first : first + len(kept)] = kept
        return bytes(found)


class FaultyFileSystem:
    """See leveret.storage.files.FileSystem.

    Calls that change something are counted; the `fail_at`-th raises `error`, or writes the half
    where `error` is 0. After a failed flush the page cache counts as clean, as Linux has it: a
    second flush succeeds and writes nothing.
    """

    def __init__(self) -> None:
        self.files: dict[Path, Content] = {}
        self.durable: dict[Path, Content] = {}  # names the device knows
        self.directories: set[Path] = {Path("/")}
        self.handles: dict[int, Content] = {}
        self.next_handle = 1000
        self.calls = 0
        self.fail_at: int | None = None
        self.error = errno.EIO
        self.failed = ""
        self.cold = False
        self.guard = threading.RLock()

    def _count(self, name: str) -> bool:
        """Raise when it is this call's turn; True for a short write."""
        self.calls += 1
        if self.calls != self.fail_at:
            return False
        self.failed = name
        if self.error == 0:
            return name == "pwrite"
        raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, *, create: bool = False) -> int:
        with self.guard:
            if create:
                self._count("create")
                if path in self.files:
                    raise FileExistsError(errno.EEXIST, "exists", str(path))
                if path.parent not in self.directories:
                    raise FileNotFoundError(errno.ENOENT, "no directory", str(path))
                self.files[path] = Content()
            elif path not in self.files:
                raise FileNotFoundError(errno.ENOENT, "no file", str(path))
            self.next_handle += 1
            self.handles[self.next_handle] = self.files[path]
            return self.next_handle

    def close(self, handle: int) -> None:
        with self.guard:
            del self.handles[handle]

    def pwrite(self, handle: int, data, position: int) -> int:
        with self.guard:
            taken = bytes(data)
            if self._count("pwrite"):
                taken = taken[: len(taken) // 2]
            self.handles[handle].write(position, taken)
            return len(taken)

    def read(self, handle: int, buffer: bytearray, position: int, *, wait: bool) -> int:
        with self.guard:
            if self.cold and not wait:
                raise BlockingIOError(errno.EAGAIN, "cold")
            found = self.handles[handle].cached[position : position + len(buffer)]
            buffer[: len(found)] = found
            return len(found)

    def fdatasync(self, handle: int) -> None:
        with self.guard:
            content = self.handles[handle]
            try:
                self._count("fdatasync")
            except OSError:
                content.dirty.clear()
                raise
            content.flush()

    def truncate(self, handle: int, size: int) -> None:
        with self.guard:
            self._count("truncate")
            content = self.handles[handle]
            del content.cached[size:]
            content.cached.extend(bytes(size - len(content.cached)))

    def size(self, path: Path) -> int:
        with self.guard:
            return len(self._content(path).cached)

    def exists(self, path: Path) -> bool:
        with self.guard:
            return path in self.files or path in self.directories

    def rename(self, source: Path, target: Path) -> None:
        with self.guard:
            self._count("rename")
            if source in self.files:
                self.files[target] = self.files.pop(source)
                return
            for names in (self.files, self.durable):
                for path in [path for path in names if path.is_relative_to(source)]:
                    names[target / path.relative_to(source)] = names.pop(path)
            moved = {path for path in self.directories if path.is_relative_to(source)}
            self.directories -= moved
            self.directories |= {target / path.relative_to(source) for path in moved}

    def unlink(self, path: Path) -> None:
        with self.guard:
            self._count("unlink")
            self._content(path)
            del self.files[path]

    def _content(self, path: Path) -> Content:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no file", str(path))
        return self.files[path]

    def list_names(self, path: Path) -> list[str]:
        with self.guard:
            known = [*self.files, *self.directories]
            return sorted({found.name for found in known if found.parent == path != found})

    def make_directory(self, path: Path) -> None:
        with self.guard:
            if path not in self.directories:
                self._count("mkdir")
            self.directories |= {path, *path.parents}

    def sync_directory(self, path: Path) -> None:
        with self.guard:
            self._count("sync_directory")
            for known in [known for known in self.durable if known.parent == path]:
                if self.files.get(known) is not self.durable[known]:
                    del self.durable[known]
            for known, content in self.files.items():
                if known.parent == path:
                    self.durable[known] = content

    def remove_directory(self, path: Path) -> None:
        with self.guard:
            if self.list_names(path):
                raise OSError(errno.ENOTEMPTY, "not empty")
            self.directories.discard(path)

    def remove_tree(self, path: Path) -> None:
        with self.guard:
            for names in (self.files, self.durable):
                for known in [known for known in names if known.is_relative_to(path)]:
                    del names[known]
            self.directories = {
                known for known in self.directories if not known.is_relative_to(path)
            }

    def lose_process(self) -> FaultyFileSystem:
        """Leave what a process started after a kill finds: everything written, flushed or not.

        What was not flushed is not flushed by that either: the machine may die next.
        """
        made = FaultyFileSystem()
        made.directories = set(self.directories)
        copies: dict[int, Content] = {}
        for names, copied in ((self.files, made.files), (self.durable, made.durable)):
            for path, content in names.items():
                copied[path] = copies.setdefault(id(content), content.copy())
        return made

    def lose_machine(self, kept_bytes: int = 0, *, keeps_names: bool = False) -> FaultyFileSystem:
        """Leave what is flushed, as a power cut does, and `kept_bytes` of a file's later writes.

        `keeps_names`: names are there too that were not flushed, of files that may be empty. With
        most file systems, another file's flush has that effect.
        """
        names = self.files if keeps_names else self.durable
        return self._with({path: each.after_power_cut(kept_bytes) for path, each in names.items()})

    def _with(self, contents) -> FaultyFileSystem:
        made = FaultyFileSystem()
        made.directories = set(self.directories)
        for path, raw in contents.items():
            made.files[path] = Content(bytearray(raw), bytearray(raw))
        made.durable = dict(made.files)
        return made
