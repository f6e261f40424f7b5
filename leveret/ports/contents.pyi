from collections.abc import Mapping
from typing import Any, Final

CLASS_BASIC: Final[int]
PROPERTIES: Final[Mapping[str, str]]

def decode_properties(header: bytes, *, raw_headers: bool = False) -> dict[str, Any]: ...
def encode_properties(properties: Mapping[str, Any], body_bytes: int) -> bytes: ...
def with_properties(
    header: bytes,
    *,
    table: bytes | None = None,
    reply_to: bytes | None = None,
    expires: bool = True,
) -> bytes: ...
def open_header(header: bytes) -> bytes: ...
def headers_table(header: bytes) -> bytes: ...
