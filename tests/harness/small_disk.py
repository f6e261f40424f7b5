"""A file system that is full soon: a tmpfs of a test's own."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(directory: Path, size_bytes: int, *options: str) -> Iterator[Path]:
    """Mount a tmpfs of `size_bytes` on `directory` for the block; skip where nobody may."""
    directory.mkdir()
    described = ",".join((f"size={size_bytes}", *options))
    mount = ["mount", "-t", "tmpfs", "-o", described, "tmpfs", str(directory)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command to mount a file system with")
    if done.returncode != 0:
        pytest.skip(f"mounting a small file system is not permitted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill_up(directory: Path) -> Path:
    """A file that takes all the space there is; remove it to have the space back."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65_536)) == 65_536:
                pass
        except OSError:
            pass
    return ballast
