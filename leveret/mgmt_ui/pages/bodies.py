"""Message bodies as text, as indented JSON, or as a hex dump. Pure functions.

    00000000  7b 22 6f 72 64 65 72 22  3a 20 31 7d              |{"order": 1}|

The content type given by the publisher may be wrong: each form is tried, none is trusted.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BODY_BYTES_MAX", "FORMS", "body_of", "hex_dump", "pretty_json", "shown_as"]

BODY_BYTES_MAX = 64 * 1024  # on a page; all of it can be downloaded
FORMS = ("text", "json", "hex")
LINE_BYTES = 16
PRINTABLE = range(0x20, 0x7F)


def body_of(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message's `payload`, as operations show it."""
    payload: str = message["payload"]
    return b64decode(payload) if message["payload_encoding"] == "base64" else payload.encode()


def shown_as(body: bytes, wanted: str) -> tuple[str, str]:
    """Return (form, text) of a body: the wanted form, or the best possible one."""
    text = _text(body)
    if text is None or wanted == "hex":
        return "hex", hex_dump(body)
    if wanted != "text":
        pretty = pretty_json(text)
        if pretty is not None:
            return "json", pretty
    return "text", text


def _text(body: bytes) -> str | None:
    """Return a body as text; None for invalid UTF-8, or with NUL characters."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def pretty_json(text: str) -> str | None:
    """Return an indented JSON object or array; None if it is neither, or nested too deeply."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return None


def hex_dump(body: bytes) -> str:
    """Return a hex dump: sixteen bytes per line, with offset and characters."""
    return "\n".join(
        _line(at, body[at : at + LINE_BYTES]) for at in range(0, len(body), LINE_BYTES)
    )


def _line(at: int, octets: bytes) -> str:
    half = LINE_BYTES // 2
    numbers = f"{octets[:half].hex(' '):23}  {octets[half:].hex(' '):23}"
    characters = "".join(chr(octet) if octet in PRINTABLE else "." for octet in octets)
    return f"{at:08x}  {numbers}  |{characters}|"
