from collections.abc import Mapping
from typing import Any, TypeAlias

from leveret.spark.arrow_buffer import ArrowBuffer

Buffer: TypeAlias = Any  # whatever has the buffer protocol, Arrow's buffers included

class ArrowColumn: ...

class TextColumn(ArrowColumn):
    def __init__(
        self, first: int, valid: Buffer | None, offsets: Buffer, values: Buffer
    ) -> None: ...

class NumberColumn(ArrowColumn):
    def __init__(self, first: int, valid: Buffer | None, values: Buffer) -> None: ...

class ListColumn(ArrowColumn):
    def __init__(
        self,
        first: int,
        valid: Buffer | None,
        offsets: Buffer,
        items: TextColumn,
        names: TextColumn | None = None,
    ) -> None: ...

class HeaderPacker:
    @property
    def table(self) -> ArrowBuffer: ...
    @property
    def values(self) -> ArrowBuffer: ...
    def __init__(self, columns: Mapping[str, ArrowColumn], *, persistent: bool) -> None: ...
    def pack(self, first: int, stop: int) -> None: ...
