from collections.abc import Sequence
from typing import Final

from leveret.features.filters.filters import RecordFilter
from leveret.ports.records import Batch

COLUMNS: Final[tuple[str, ...]]
MAGIC: Final[bytes]
VERSION: Final[int]
MORE: Final[int]
COMPACTED: Final[int]

class ColumnPacker:
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def stored_bytes(self) -> int: ...
    def __init__(
        self,
        columns: Sequence[int],
        record_filter: RecordFilter | None = None,
        passed_over: int = 0,
    ) -> None: ...
    def add(self, batch: Batch, first: int, stop: int, rows_max: int, bytes_max: int) -> int: ...
    def finish(
        self,
        *,
        offset: int,
        next_offset: int,
        first: int,
        end: int,
        missing: int,
        log: int,
        partition: int,
        flags: int,
    ) -> list[memoryview]: ...
