"""Description of the machine that figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

__all__ = ["describe"]

SYNC_BYTES = 150  # a small message with its batch
SYNC_SAMPLES = 500


def describe(directory: Path) -> dict[str, str]:
    """Processor, memory, kernel and the disk below `directory`."""
    return {
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB",
        "Kernel": f"{platform.system()} {platform.release()}",
        "Disk": (
            f"{_file_system(directory)}; fdatasync of {SYNC_BYTES} bytes behind a file's end: "
            f"{_sync_ms(directory, 0):.3f} ms, within its size: "
            f"{_sync_ms(directory, SYNC_BYTES * SYNC_SAMPLES):.3f} ms"
        ),
        "Python": platform.python_version(),
        "Load before": f"{os.getloadavg()[0]:.1f} processes wanted a core",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The type of the file system that holds `directory`, and of the device below it."""
    command = ["findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return " on ".join(found.stdout.split()) or "unknown file system"


def _sync_ms(directory: Path, size: int) -> float:
    """The median time of one fdatasync behind a small write, to a file of so many bytes."""
    path, samples = directory / "sync", []
    with path.open("wb", buffering=0) as file:
        file.truncate(size)
        os.fsync(file.fileno())
        for _ in range(SYNC_SAMPLES):
            file.write(bytes(SYNC_BYTES))
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            samples.append((time.perf_counter() - start) * 1000)
    path.unlink()
    return statistics.median(samples)
