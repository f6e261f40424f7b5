"""Resource usage of the broker's processes and their children, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from leveret.errors import LeveretError

__all__ = ["ProcessError", "ProcessTree", "ProcessUsage", "listener_pid", "usage"]

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LISTENING = "0A"
# Places in /proc/PID/stat behind the command's name, which is all that may hold blanks.
PARENT_AT, USER_AT, SYSTEM_AT, WAITED_USER_AT, WAITED_SYSTEM_AT = 1, 11, 12, 13, 14
RESIDENT_AT = 21


class ProcessError(LeveretError):
    """The process does not exist, or may not be inspected."""


@dataclass(frozen=True)
class ProcessUsage:
    """Processor time since the process began, in microseconds, and resident memory in bytes."""

    cpu_us: int
    resident_bytes: int


class ProcessTree:
    """Processes and their descendants: a broker, or all nodes of its cluster.

    The members are found when it is made and by `refresh`, as that reads all of /proc; `usage`
    reads only known ones, so it may be called ten times a second.
    """

    def __init__(self, *pids: int, proc: Path = Path("/proc")) -> None:
        self._heads = frozenset(pids)
        self._proc = proc
        self._members = set(pids)
        self.refresh()

    def refresh(self) -> None:
        """Find the current descendants."""
        parents = {
            int(path.name): fields[PARENT_AT]
            for path in self._proc.iterdir()
            if path.name.isdigit() and (fields := _fields(path))
        }
        added = self._members = set(self._heads)
        while added:
            added = {pid for pid, parent in parents.items() if parent in added} - self._members
            self._members = self._members | added

    def usage(self) -> ProcessUsage:
        """Return the usage of all members, and of their ended children. Raises ProcessError."""
        heads = [self._head(pid) for pid in self._heads]
        others = [_fields(self._proc / str(pid)) for pid in self._members - self._heads]
        rows = [*heads, *(row for row in others if row)]
        ticks = sum(row[at] for row in rows for at in (USER_AT, SYSTEM_AT))
        ticks += sum(head[at] for head in heads for at in (WAITED_USER_AT, WAITED_SYSTEM_AT))
        return ProcessUsage(ticks * TICK_US, sum(row[RESIDENT_AT] for row in rows) * PAGE_BYTES)

    def _head(self, pid: int) -> list[int]:
        if not (head := _fields(self._proc / str(pid))):
            raise ProcessError(f"there is no process {pid}")
        return head


def usage(*pids: int) -> ProcessUsage:
    """Return the current usage of these processes and their descendants, added up."""
    return ProcessTree(*pids).usage()


def _fields(path: Path) -> list[int]:
    """Return the numbers of a stat file (the state's letter as 0); empty if the process is gone."""
    try:
        text = (path / "stat").read_text()
    except OSError:
        return []
    words = text[text.rindex(")") + 2 :].split()
    return [int(word) if word.lstrip("-").isdigit() else 0 for word in words]


def listener_pid(port: int, proc: Path = Path("/proc")) -> int:
    """Return the process that listens on a TCP port of this machine."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    for path in proc.iterdir():
        if path.name.isdigit() and inodes & _open_files(path / "fd"):
            return int(path.name)
    raise ProcessError(f"no process that can be seen listens on port {port}")


def _listening_inodes(port: int, proc: Path) -> list[str]:
    found = []
    for table in ("tcp", "tcp6"):
        path = proc / "net" / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            words = line.split()
            if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                found.append(words[9])
    return found


def _open_files(directory: Path) -> set[str]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return set()
    return {_target(path) for path in paths}


def _target(path: Path) -> str:
    """Return the target of a link in /proc; empty if it is gone."""
    try:
        return str(path.readlink())
    except OSError:
        return ""
