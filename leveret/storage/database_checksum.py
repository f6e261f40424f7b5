"""Checksum of a closed database, in a file beside it.

SQLite notices pages that contradict each other, not a row whose bytes the disk has changed. So the
checksum of the whole file is written at each clean close, and checked, then removed, at the next
opening; where it is missing, as after a crash, there is nothing to compare.

    leveret.db.checksum: 64 hexadecimal digits, BLAKE2b over leveret.db, and a line feed
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from leveret.storage.files import RealFileSystem, write_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["remove_checksum", "verify_checksum", "write_checksum"]

DIGEST_BYTES = 32


def _beside(database: Path) -> Path:
    return database.with_name(f"{database.name}.checksum")


def _digest(database: Path) -> str:
    with database.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)
        ).hexdigest()


def verify_checksum(database: Path) -> bool:
    """Return False if the file is not the one that was closed last. Raises OSError."""
    try:
        written = _beside(database).read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return True
    # A torn one proves nothing: it was being written when the machine died.
    if len(written) != 2 * DIGEST_BYTES or not database.exists():
        return True
    return _digest(database) == written


def remove_checksum(database: Path) -> None:
    """Remove the checksum before the database is changed; durable on return. Raises OSError."""
    checksum = _beside(database)
    if checksum.exists():
        checksum.unlink()
        RealFileSystem().sync_directory(database.parent)


def write_checksum(database: Path) -> None:
    """Write the checksum of a closed database that has no journal. Raises OSError."""
    if database.with_name(f"{database.name}-wal").exists():
        return  # another program has it open: its content is in two files
    write_file(RealFileSystem(), _beside(database), f"{_digest(database)}\n".encode(), flush=True)
