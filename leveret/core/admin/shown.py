"""Common parts of commands: messages as people see them; numbers and names of requests."""

from __future__ import annotations

import codecs
from base64 import b64encode
from typing import Any

from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.validation import NAME_BYTES_MAX
from leveret.core.json_fields import plain
from leveret.ports.contents import decode_properties, open_header
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError

__all__ = ["check_short", "headers_of", "integer", "payload", "properties"]


def properties(header: bytes, flags: int) -> dict[str, object]:
    """Return a message's properties and headers as JSON, as consumers get them."""
    try:
        return {"properties": plain(_read(header, flags))}
    except MalformedFieldError:
        return {"properties": {}}


def headers_of(header: bytes, flags: int) -> dict[str, Any]:
    """Return a message's headers as JSON, for lists."""
    try:
        found: Any = plain(_read(header, flags).get("headers", {}))
    except MalformedFieldError:
        return {}
    return dict(found)


def _read(header: bytes, flags: int) -> dict[str, Any]:
    hidden = flags & RecordFlag.BLIND_COPIED  # BCC is hidden
    return decode_properties(open_header(header) if hidden else header)


def payload(
    body: bytes, bytes_max: int | None = None, *, as_text: bool = True
) -> dict[str, object]:
    """Return a message's body, or its beginning, as text if it is text, else Base64."""
    shown = body if bytes_max is None else body[:bytes_max]
    if as_text:
        try:
            # A character at the end of the beginning may have been cut in two.
            text = codecs.getincrementaldecoder("utf-8")().decode(
                shown, final=len(shown) == len(body)
            )
        except UnicodeDecodeError:
            pass
        else:
            return {"payload": text, "payload_encoding": "string"}
    return {"payload": b64encode(shown).decode(), "payload_encoding": "base64"}


def integer(name: str, value: Any) -> int:
    """Return a non-negative integer from JSON. Raises AdministrationError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise AdministrationError("invalid", f"{name} is a whole number from 0 to {(1 << 63) - 1}")
    return value


def no_cursor() -> AdministrationError:
    """Return the error for a place to continue at that no answer can have given."""
    return AdministrationError("invalid", "after is what the answer before this one has as `after`")


def check_short(what: str, text: str) -> None:
    """Raise AdministrationError for text too long for a short string of AMQP."""
    if len(text.encode()) > NAME_BYTES_MAX:
        raise AdministrationError("invalid", f"{what} has at most {NAME_BYTES_MAX} bytes")
