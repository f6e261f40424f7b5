"""Receipt handles: how a client that received a message by pull identifies its lease.

    queue digest (8 bytes) | offset (u64) | token (u64)      in base64 for URLs, 32 characters

The token is drawn for each receive: it makes a handle valid for one lease only, and impossible to
guess. Clients send handles back, so they may contain anything. Called by the
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
    """Lease of one record of a queue, by the digest of its partition."""

    queue: bytes
    offset: int
    token: int

    @property
    def text(self) -> str:
        """Handle of this lease."""
        return base64.urlsafe_b64encode(LAYOUT.pack(*self)).decode()


def parse_receipt(text: object) -> Receipt | None:
    """Parse a handle; None if it is invalid."""
    if not isinstance(text, str) or len(text) != TEXT_CHARACTERS:
        return None
    try:
        receipt = Receipt(*LAYOUT.unpack(base64.b64decode(text, altchars=b"-_", validate=True)))
    except (binascii.Error, struct.error, ValueError):
        return None
    return receipt if receipt.text == text else None  # reject other encodings of the same bytes


def token_from(secret: str) -> int:
    """Return a token derived from a secret, which it does not reveal."""
    return int.from_bytes(hashlib.blake2b(secret.encode(), digest_size=8).digest())


def queue_digest(vhost: str, name: str, incarnation: str, partition: int) -> bytes:
    """Return a digest that identifies a partition, and differs from those of earlier namesakes."""
    text = f"{vhost}\0{name}\0{incarnation}\0{partition}".encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
