"""Envelope and fields of what is written to the coordinator.

    magic "LV" │ kind u8 │ version u8 │ CRC-32C u32 of all behind it, kind and version │ body

Numbers are little-endian. A release that changes a body counts its version up, reads the older ones
too, and writes the old one until all nodes know the new one.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from leveret.errors import NewerFormatError

__all__ = ["FieldReader", "MalformedError", "open_envelope", "pack_text", "seal"]

VERSION = 1
_ENVELOPE = struct.Struct("<2sBBI")
_LENGTH = struct.Struct("<H")
_MAGIC = b"LV"


class MalformedError(ValueError):
    """Bytes are not what a node has written; the text says why, and the caller where they lie."""


def seal(kind: int, body: bytes) -> bytes:
    """Return the body in its envelope."""
    checksum = crc32c(body, crc32c(bytes((kind, VERSION))))
    return _ENVELOPE.pack(_MAGIC, kind, VERSION, checksum) + body


def open_envelope(kind: int, data: bytes, place: str) -> bytes:
    """Return the body. Raises MalformedError, or NewerFormatError that names `place`."""
    if len(data) < _ENVELOPE.size:
        raise MalformedError(f"it has {len(data)} bytes, fewer than an envelope")
    magic, found, version, checksum = _ENVELOPE.unpack_from(data)
    if magic != _MAGIC:
        raise MalformedError("it does not begin with LV")
    body = data[_ENVELOPE.size :]
    if crc32c(body, crc32c(bytes((found, version)))) != checksum:
        raise MalformedError("its checksum is wrong")
    if version > VERSION:
        raise NewerFormatError(f"{place} (version {version})")
    if found != kind or version < 1:
        raise MalformedError(f"it is of kind {found}, version {version}; kind {kind} is expected")
    return body


def pack_text(text: str) -> bytes:
    """Return a length and the text."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


class FieldReader:
    """Reads fields from a body; each may turn out to lie behind its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers. Raises MalformedError."""
        position = self.position
        self.position += layout.size
        if self.position > len(self.data):
            raise MalformedError("it is cut short")
        return layout.unpack_from(self.data, position)

    def take(self, length: int) -> bytes:
        """Return the next bytes. Raises MalformedError."""
        position = self.position
        self.position += length
        if self.position > len(self.data):
            raise MalformedError("it is cut short")
        return self.data[position : self.position]

    def text(self, length: int) -> str:
        """Return the next bytes as text. Raises MalformedError."""
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise MalformedError("a text in it is no UTF-8") from None

    def end(self) -> None:
        """Raise MalformedError if anything follows."""
        if self.position != len(self.data):
            raise MalformedError(f"{len(self.data) - self.position} bytes follow its end")
