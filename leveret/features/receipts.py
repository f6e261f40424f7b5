"""Receipt handles: how who pulled a message names his lease of it.

    queue digest (8 bytes) | offset (u64) | token (u64)      in base64 for URLs, 32 characters

The token is drawn for each receive: it is what makes a handle good for one lease only, and not to
be guessed. Handles are told to clients, who hand them back: they may hold anything. Called by the
pull machine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import NamedTuple

__all__ = ["Receipt", "parse_receipt", "queue_digest", "token_from"]

LAYOUT = struct.Struct(">8sQQ")
DIGEST_BYTES = 8
TEXT_CHARACTERS = 32


class Receipt(NamedTuple):
    """One lease of one record of a queue."""

    queue: bytes
    offset: int
    token: int

    @property
    def text(self) -> str:
        """The handle."""
        return base64.urlsafe_b64encode(LAYOUT.pack(*self)).decode()


def parse_receipt(text: object) -> Receipt | None:
    """What a handle says; None where it is none."""
    if not isinstance(text, str) or len(text) != TEXT_CHARACTERS:
        return None
    try:
        receipt = Receipt(*LAYOUT.unpack(base64.b64decode(text, altchars=b"-_", validate=True)))
    except (binascii.Error, struct.error, ValueError):
        return None
    return receipt if receipt.text == text else None  # base64 has several ways to say the same


def token_from(secret: str) -> int:
    """A token that gives nothing away of what it was made from."""
    return int.from_bytes(hashlib.blake2b(secret.encode(), digest_size=8).digest())


def queue_digest(vhost: str, name: str, incarnation: str) -> bytes:
    """What tells a queue from all others, those of its name before and after it included."""
    text = f"{vhost}\0{name}\0{incarnation}".encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
