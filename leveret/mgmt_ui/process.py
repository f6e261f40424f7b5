"""Resource usage of this process, from the kernel.

Used by alarms, metrics and views of a node. Linux only, like the broker itself.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ProcessFigures",
    "memory_bytes_total",
    "memory_bytes_used",
    "node_gauges",
    "read_process",
]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Files of the control groups.
GROUP_FILE, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# In /proc/self/stat, counted behind the command in parentheses, which may hold anything (proc(5)).
STARTED_FIELD = 19
# Lines of /proc/self/status, in KiB: what resident memory consists of.
MEMORY_KINDS = {"RssAnon": "anonymous", "RssFile": "files", "RssShmem": "shared"}


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Resource usage of the process at one moment."""

    open_files: int
    open_files_max: int
    resident_bytes: int
    memory_bytes_total: int  # that it can have
    memory_bytes: Mapping[str, int]  # the same by kind: anonymous, of mapped files, shared
    cpu_seconds: float  # of all its threads, in user and kernel mode
    uptime_seconds: float
    disk_free_bytes: int  # where the data directory is


def read_process(data_dir: Path) -> ProcessFigures:
    """Read the usage. Not on the loop: with many open files it takes ms before Linux 6.2."""
    times = os.times()
    return ProcessFigures(
        open_files=_open_files(),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        resident_bytes=memory_bytes_used(),
        memory_bytes_total=memory_bytes_total(),
        memory_bytes=_memory_by_kind(),
        cpu_seconds=times.user + times.system,
        uptime_seconds=_uptime_seconds(),
        disk_free_bytes=shutil.disk_usage(data_dir).free,
    )


def _open_files() -> int:
    """Number of open files: the size of their directory, if the kernel has it (proc_pid_fd(5))."""
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH116, PTH208


def node_gauges(figures: ProcessFigures, connections: int) -> dict[str, int]:
    """Return the sampled gauges of a node, under RabbitMQ's names."""
    return {
        "mem_used": figures.resident_bytes,
        "fd_used": figures.open_files,
        "sockets_used": connections,
        "disk_free": figures.disk_free_bytes,
    }


def memory_bytes_total(group_file: Path = GROUP_FILE, groups: Path = GROUPS) -> int:
    """Return the memory that the process can have: the machine's, or its control groups' limit.

    A container is killed at its limit, however much memory the machine has.
    """
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    return min([total, *_group_limits(group_file, groups)])


def _group_limits(group_file: Path, groups: Path) -> Iterator[int]:
    """Yield the limits of the process's control group and its parents (cgroups(7), version 2)."""
    try:
        lines = group_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::/")]
    for path in paths:
        group = groups / path.lstrip("/")
        for around in (group, *group.parents):
            if around == groups.parent:
                break
            with suppress(OSError, ValueError):  # no limit is `max`
                yield int((around / "memory.max").read_text(encoding="ascii"))


def memory_bytes_used() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def _memory_by_kind() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {kind: int(values[name].split()[0]) * 1024 for name, kind in MEMORY_KINDS.items()}


def _uptime_seconds() -> float:
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    started = int(fields[STARTED_FIELD]) / TICKS_PER_SECOND
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
