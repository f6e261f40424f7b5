from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

TABLE_DEPTH_MAX: int
TABLE_BYTES_MAX: int
TABLE_VALUES_MAX: int
FIELD_KINDS: dict[str, str]

FieldValue: TypeAlias = (
    bool
    | bytearray
    | bytes
    | datetime
    | Decimal
    | dict[str, FieldValue]
    | float
    | int
    | list[FieldValue]
    | str
    | None
)

class MalformedFieldError(ValueError): ...
class MalformedTextError(MalformedFieldError): ...
class TableLimitError(MalformedFieldError): ...
class Timestamp(int): ...
class RawValue(bytes): ...

def decode_fields(data: bytes, position: int, kinds: str) -> list[Any]: ...
def encode_fields(kinds: str, values: Iterable[Any]) -> bytes: ...
def decode_table(data: bytes) -> dict[str, FieldValue]: ...
def encode_table(values: dict[str, Any] | None) -> bytes: ...
