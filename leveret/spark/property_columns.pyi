from typing import Final

from leveret.spark.arrow_buffer import ArrowBuffer

STRINGS: Final[dict[str, int]]
PRIORITY: Final = "priority"

class NullableBytes:
    rows: int
    nulls: int
    @property
    def buffers(self) -> list[object]: ...

class NullableNumbers:
    rows: int
    nulls: int
    @property
    def buffers(self) -> list[object]: ...

class PropertyColumns:
    strings: dict[str, NullableBytes]
    priorities: NullableNumbers
    ends: ArrowBuffer
    keys: NullableBytes
    values: NullableBytes
    def __init__(self, names: list[str], has_headers: bool) -> None: ...
    def add(self, headers: memoryview, table: memoryview, first: int, stop: int) -> None: ...
