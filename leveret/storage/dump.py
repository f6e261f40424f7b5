"""Showing what stands in a segment file, damaged or not: `leveret log dump`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet
from leveret.storage.checkpoint import apply_settlement
from leveret.storage.files import storage_error
from leveret.storage.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leveret.ports.records import Batch
    from leveret.storage.files import FileSystem

__all__ = ["DumpedBatch", "dump_segment"]


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One entry of a dump: a sound batch, or where the damage begins (`damage` says what it is)."""

    position: int
    batch: Batch | None = None
    settled: RangeSet | None = None
    damage: str = ""


def dump_segment(files: FileSystem, path: Path) -> Iterator[DumpedBatch]:
    """The batches of a segment file, or of what was set aside of one, up to the first damage.

    Reads only; the file may belong to a running node. Raises StorageError.
    """
    position = 0
    try:
        handle = files.open(path)
        try:
            for begin, batch in scan(files, handle, 0, files.size(path)):
                yield _dumped(begin, batch)
                position = begin + batch.size
        except CorruptBatchError as error:
            yield DumpedBatch(position, damage=str(error))
        finally:
            files.close(handle)
    except OSError as error:
        raise storage_error("read", path, error) from error


def _dumped(position: int, batch: Batch) -> DumpedBatch:
    if not batch.is_control:
        return DumpedBatch(position, batch)
    settled = RangeSet()
    apply_settlement(batch, settled)
    return DumpedBatch(position, batch, settled)
