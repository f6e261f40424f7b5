"""Writing segments anew whose flush has failed (see docs/decisions/0006).

What the page cache says about such a file may not be what the device has, and another flush of it
would succeed without writing anything. What can be read of it may be all that there is of records
that other nodes count on: it is copied into a new file, which is flushed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from leveret.storage.files import copy_range, storage_error
from leveret.storage.segment import list_segments

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment

__all__ = ["renew_suspects"]


def renew_suspects(files: FileSystem, directory: Path) -> None:
    """Write the suspect segments of a log that is not open anew. Raises StorageError."""
    if not files.exists(directory):
        return
    for segment in list_segments(files, directory):
        if segment.suspect:
            try:
                _renew(files, segment)
            except OSError as error:
                raise storage_error("write anew", segment.path, error) from error


def _renew(files: FileSystem, segment: Segment) -> None:
    draft = segment.path.with_name(segment.path.name + ".new")  # recovery removes such a file
    with suppress(FileNotFoundError):
        files.unlink(draft)
    handle = files.open(segment.path)
    try:
        copy_range(files, handle, 0, segment.size, draft)
    finally:
        files.close(handle)
    files.rename(draft, segment.path)
    files.sync_directory(segment.directory)
    files.unlink(segment.suspect_path)
