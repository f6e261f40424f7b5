"""Encryption at rest: batches are sealed when they are written, opened when they are read.

`Segments` seals on the event loop; `LogReader` opens wherever it reads, on the loop or in a worker
thread; surveys and searches by time open in worker threads. Nobody else sees a sealed batch. What
is in memory is never sealed, and control batches are not either: they hold offsets only.

    sealed batch, little-endian
     0       the batch's header, 64 bytes (ports/records.pyx), in the clear: its length and checksum
             are those of the sealed batch, its attributes have ENCRYPTED
    64  u64  id of the data key (storage/keyring.py)
    72       16 bytes of salt, one for each segment that is begun or written to again:
             the AES-256 key is HKDF-SHA256(data key, salt, b"leveret sealed batch 1")
    88       12 bytes of nonce, random
   100       the records, encrypted (AES-GCM); header and key id are authenticated with them:
             bytes 0 to 15 and 20 to 71, so everything but the checksum
    -16      GCM tag

The checksum covers what is on the disk, so that recovery, index, damage and replication need no
key. A change of this layout takes a new attribute bit, a reader for both, and a golden file of the
old one (tests/golden/). Decision 0027 says why nonces never repeat.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.records import CHECKSUM_FROM, HEADER_BYTES, Batch, BatchAttribute
from leveret.storage.scan import verify

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DataKey",
    "MissingKeyError",
    "Sealer",
    "Unsealer",
    "checksum_of",
    "key_id_of",
    "key_id_text",
    "leader_epoch_of",
]

SEALED = struct.Struct("<Q16s12s")  # behind the header
KEY_ID = struct.Struct("<Q")
SALT_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
SEALED_BYTES_MIN = HEADER_BYTES + SEALED.size + TAG_BYTES
PAYLOAD_BYTES_MAX = 2**31 - 1 - TAG_BYTES  # limit of one call of `cryptography`
INFO = b"leveret sealed batch 1"
# A salt is one segment's: consumers of as many segments at once have a derived key at hand each.
CIPHERS_MAX = 512

LENGTH = struct.Struct("<I")
LENGTH_AT = 4
CHECKSUM = struct.Struct("<I")
CHECKSUM_AT = 16
ATTRIBUTES = struct.Struct("<H")
ATTRIBUTES_AT = 20
LEADER_EPOCH = struct.Struct("<I")
LEADER_EPOCH_AT = 28
PRODUCER_ID_AT = 48  # of a segment's checkpoint: id of the key that its batches are sealed with
HEAD_BYTES = HEADER_BYTES + KEY_ID.size  # of a segment: they contain its key's id


class MissingKeyError(StorageError):
    """A batch is sealed with a key that this node does not have."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that batches are sealed with. `id` is never 0."""

    id: int
    secret: bytes = field(repr=False)


class Sealer:
    """Seals the batches of one segment; each segment has a sealer of its own."""

    def __init__(self, key: DataKey, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self.key = key
        self._random_bytes = random_bytes
        self._salt = random_bytes(SALT_BYTES)
        self._cipher = AESGCM(_derive(key.secret, self._salt))

    def seal(self, batch: Batch) -> Batch:
        """Return a batch as written to disk, checksum included. Raises StorageError."""
        payload = batch.payload
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise StorageError(f"a batch of {batch.size} bytes is too large to be encrypted")
        header = bytearray(memoryview(batch)[:HEADER_BYTES])
        size = SEALED_BYTES_MIN + len(payload)
        LENGTH.pack_into(header, LENGTH_AT, size)
        ATTRIBUTES.pack_into(header, ATTRIBUTES_AT, batch.attributes | BatchAttribute.ENCRYPTED)
        nonce = self._random_bytes(NONCE_BYTES)
        front = SEALED.pack(self.key.id, self._salt, nonce)
        records = self._cipher.encrypt(nonce, payload, _authenticated(header, front))
        sealed = Batch.parse(b"".join((header, front, records)))
        sealed.set_checksum()
        return sealed


class Unsealer:
    """Opens sealed batches. `secret_of` returns the data key of an id, None if there is none.

    May be called from any thread.
    """

    def __init__(self, secret_of: Callable[[int], bytes | None]) -> None:
        self._secret_of = secret_of
        self._cipher = lru_cache(CIPHERS_MAX)(self._derived)

    def _derived(self, key_id: int, salt: bytes) -> AESGCM:
        secret = self._secret_of(key_id)
        if secret is None:
            raise MissingKeyError(
                f"messages are encrypted with the key {key_id_text(key_id)}, which the keyring "
                "does not have: restore keyring.json from a backup of this data directory"
            )
        return AESGCM(_derive(secret, salt))

    def open(self, batch: Batch) -> Batch:
        """Return a batch as it was before sealing, also if it is not sealed; its checksum is void.

        Raises CorruptBatchError if authentication fails, and MissingKeyError.
        """
        if not batch.attributes & BatchAttribute.ENCRYPTED:
            return batch
        if batch.size < SEALED_BYTES_MIN:
            raise CorruptBatchError(f"{batch.size} bytes hold no sealed batch")
        sealed = memoryview(batch)
        header = bytearray(sealed[:HEADER_BYTES])
        front = bytes(sealed[HEADER_BYTES : HEADER_BYTES + SEALED.size])
        key_id, salt, nonce = SEALED.unpack(front)
        cipher = self._cipher(key_id, salt)
        try:
            records = cipher.decrypt(
                nonce, sealed[HEADER_BYTES + SEALED.size :], _authenticated(header, front)
            )
        except InvalidTag:
            raise CorruptBatchError(
                f"the encrypted batch at offset {batch.base_offset} is not what was written "
                f"with the key {key_id_text(key_id)}"
            ) from None
        LENGTH.pack_into(header, LENGTH_AT, HEADER_BYTES + len(records))
        ATTRIBUTES.pack_into(header, ATTRIBUTES_AT, batch.attributes & ~BatchAttribute.ENCRYPTED)
        return Batch.parse(b"".join((header, records)))

    def verify(self, batch: Batch) -> None:
        """Raise CorruptBatchError unless a batch is sound, as far as this shows without its key.

        A batch whose key is missing counts as sound: the key may come back.
        """
        verify(batch)
        try:
            self.open(batch)
        except MissingKeyError:
            return


def key_id_text(key_id: int) -> str:
    """Return a key's id as text for people."""
    return f"{key_id:016x}"


def leader_epoch_of(head: bytes | bytearray) -> int:
    """Return the epoch in which a segment was begun, from its first `HEAD_BYTES`.

    Raises CorruptBatchError if it cannot be read.
    """
    if len(head) < HEADER_BYTES:
        raise CorruptBatchError("no batch header")
    return int(LEADER_EPOCH.unpack_from(head, LEADER_EPOCH_AT)[0])


def checksum_of(head: bytes | bytearray) -> int:
    """Return the checksum of a batch, from its first `HEAD_BYTES`."""
    return int(CHECKSUM.unpack_from(head, CHECKSUM_AT)[0])


def key_id_of(head: bytes | bytearray) -> int:
    """Return the id of the key that a segment is sealed with, from its first `HEAD_BYTES`; 0: none.

    A segment's first batch is its checkpoint, which names the key, or, in a log that keeps nothing,
    one with records. Raises CorruptBatchError if neither can be read.
    """
    if len(head) < HEADER_BYTES:
        raise CorruptBatchError("no batch header")
    (attributes,) = ATTRIBUTES.unpack_from(head, ATTRIBUTES_AT)
    if attributes & BatchAttribute.CONTROL:
        return int(KEY_ID.unpack_from(head, PRODUCER_ID_AT)[0])
    if not attributes & BatchAttribute.ENCRYPTED:
        return 0
    if len(head) < HEAD_BYTES:
        raise CorruptBatchError("no key id")
    return int(KEY_ID.unpack_from(head, HEADER_BYTES)[0])


def _derive(secret: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=INFO).derive(secret)


def _authenticated(header: bytearray, front: bytes) -> bytes:
    """Return the authenticated clear text: all but the checksum, which is computed later."""
    return bytes(header[:CHECKSUM_AT] + header[CHECKSUM_FROM:]) + front[: KEY_ID.size]
