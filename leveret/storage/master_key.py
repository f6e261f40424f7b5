"""The master key: 32 bytes kept by the operator, with which the keyring's keys are wrapped.

It comes from a file or from the environment, as text: base64 or hexadecimal. It is never logged,
never sent, and never stored by a node.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from leveret.errors import StorageError
from leveret.ports.secret_file import SECRET_FILE_BYTES_MAX, SecretFileError, read_secret_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MasterKey", "MasterKeyError", "generate_master_key_file", "read_master_key"]

KEY_BYTES = 32
HEX_CHARACTERS = 2 * KEY_BYTES
FINGERPRINT_BYTES = 8  # distinguishes keys without revealing them
FINGERPRINT_INFO = b"leveret master key fingerprint"
WRAPPING_INFO = b"leveret master key wrapping"


class MasterKeyError(StorageError):
    """The master key is missing, malformed, or another one; the text never holds it."""


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A master key. `source` says where it was read from."""

    secret: bytes = field(repr=False)
    source: str

    @property
    def fingerprint(self) -> str:
        """Fingerprint stored in the keyring, so that a wrong key is told from damage."""
        return self._derive(FINGERPRINT_INFO, FINGERPRINT_BYTES).hex()

    @property
    def cipher(self) -> AESGCM:
        """Cipher that wraps data keys."""
        return AESGCM(self._derive(WRAPPING_INFO, KEY_BYTES))

    def _derive(self, info: bytes, length: int) -> bytes:
        return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(self.secret)


def read_master_key(file: Path | None, text: str) -> MasterKey | None:
    """Return the master key from its file, else from `text`; None without either.

    Raises MasterKeyError.
    """
    if file is not None:
        return MasterKey(_decode(_read(file), str(file)), str(file))
    if text:
        source = "LEVERET_ENCRYPTION_KEY"
        return MasterKey(_decode(text, source), source)
    return None


def _read(file: Path) -> str:
    try:
        content = read_secret_file(file, "the master key file")
    except SecretFileError as error:
        raise MasterKeyError(str(error)) from None
    return content.decode("ascii", "replace") if len(content) <= SECRET_FILE_BYTES_MAX else ""


def _decode(text: str, source: str) -> bytes:
    stripped = text.strip()
    try:
        if len(stripped) == HEX_CHARACTERS:
            secret = binascii.unhexlify(stripped)
        else:
            secret = base64.b64decode(stripped, validate=True)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise MasterKeyError(
            f"{source} holds no master key: it is {KEY_BYTES} bytes in base64 or hexadecimal; "
            "`leveret encryption generate-key FILE` makes one"
        )
    return secret


def generate_master_key_file(file: Path) -> MasterKey:
    """Make a new master key in a new file that only its owner may read. Raises MasterKeyError."""
    secret = os.urandom(KEY_BYTES)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, base64.b64encode(secret) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise MasterKeyError(f"cannot create {file}: {error.strerror}") from None
    return MasterKey(secret, str(file))
