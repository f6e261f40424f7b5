from typing import Final

STRINGS: Final[dict[str, int]]
PRIORITY: Final = "priority"

class ArrowBuffer:
    size: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

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
