def with_properties(
    header: bytes,
    *,
    table: bytes | None = None,
    reply_to: bytes | None = None,
    expires: bool = True,
) -> bytes: ...
def headers_table(header: bytes) -> bytes: ...
