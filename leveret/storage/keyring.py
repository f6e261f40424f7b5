"""The keyring: which virtual hosts are encrypted, and their data keys, wrapped.

    DATA/keyring.json
    {
      "version": 1,
      "master": "0123456789abcdef",        fingerprint of the master key, "" while there is no key
      "keys": [
        {
          "id": "fedcba9876543210",        random, never 0: what sealed batches name
          "vhost": "/",
          "created_ms": 1700000000000,     milliseconds since 1970
          "state": "active",               new batches are sealed with it; else "retired"
          "wrapped": "…"                   base64: 12 bytes of nonce, the key under AES-256-GCM, its
        }                                  tag; authenticated: "leveret data key 1", id, vhost
      ]
    }

A virtual host is encrypted while it has an active key, of which it has one at most. The file is
replaced as a whole and flushed before a key is used: no batch is ever sealed with a key that a
crash could take away. It is as precious as the messages: without it they cannot be read.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag

from leveret.errors import StorageError
from leveret.storage.encryption import DataKey, MissingKeyError, Sealer, Unsealer, key_id_text
from leveret.storage.files import read_file, storage_error, write_file
from leveret.storage.master_key import MasterKeyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from leveret.storage.files import FileSystem
    from leveret.storage.master_key import MasterKey

__all__ = ["KeyState", "Keyring", "VhostKey"]

FILE_NAME = "keyring.json"
VERSION = 1
KEY_BYTES = 32
NONCE_BYTES = 12
WRAP_INFO = b"leveret data key 1"
KEY_ID = struct.Struct("<Q")


class KeyState(StrEnum):
    """Purpose of a data key."""

    ACTIVE = "active"  # seals new batches
    RETIRED = "retired"  # opens old ones


@dataclass(frozen=True, slots=True)
class VhostKey:
    """One data key as stored in the file."""

    id: int
    vhost: str
    created_ms: int
    state: KeyState
    wrapped: bytes

    @property
    def context(self) -> bytes:
        """Authenticated data of the wrapped key, so that it cannot be passed off as another's."""
        return WRAP_INFO + KEY_ID.pack(self.id) + self.vhost.encode("utf-8", "surrogatepass")


class Keyring:
    """Keys of one node. A change writes the file, waiting for the device: one at a time.

    Readers on other threads see either the keys before a change or those after it.
    """

    def __init__(
        self,
        files: FileSystem,
        data: Path,
        master: MasterKey | None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Read the file, if there is one. Without `master` its keys stay wrapped.

        Raises StorageError, MasterKeyError where `master` is another key than the file's.
        """
        self._files = files
        self._path = data / FILE_NAME
        self._random_bytes = random_bytes
        self.master = master
        self._fingerprint, self.keys = self._load()
        self._secrets = self._unwrapped(master) if master is not None else {}
        self.unsealer = Unsealer(self._secret)

    # Asking

    def of_vhost(self, vhost: str) -> list[VhostKey]:
        """Return a virtual host's keys, oldest first."""
        return [key for key in self.keys if key.vhost == vhost]

    @property
    def vhosts(self) -> list[str]:
        """Virtual hosts that have keys, sorted."""
        return sorted({key.vhost for key in self.keys})

    def active(self, vhost: str) -> DataKey | None:
        """Return the key for a virtual host's new batches; None if they are not encrypted.

        Raises MasterKeyError if they are, and the key cannot be unwrapped.
        """
        for key in self.keys:
            if key.vhost == vhost and key.state is KeyState.ACTIVE:
                self.require_master()
                return DataKey(key.id, self._secrets[key.id])
        return None

    def require_master(self) -> None:
        """Raise MasterKeyError where there are keys and no master key to unwrap them."""
        if self.keys and self.master is None:
            raise MasterKeyError(
                f"virtual host '{self.keys[0].vhost}' is encrypted, and the master key "
                f"{self._fingerprint} was not given: name its file in encryption_key_file "
                "(LEVERET_ENCRYPTION_KEY_FILE)"
            )

    def _secret(self, key_id: int) -> bytes | None:
        return self._secrets.get(key_id)

    def key(self, key_id: int) -> DataKey:
        """Return a data key by its id. Raises MissingKeyError."""
        secret = self._secret(key_id)
        if secret is None:
            raise MissingKeyError(f"the keyring does not have the key {key_id_text(key_id)}")
        return DataKey(key_id, secret)

    def sealer(self, key: DataKey) -> Sealer:
        """Return a sealer for one segment."""
        return Sealer(key, self._random_bytes)

    # Changing

    def add(self, vhost: str, now_ms: int) -> VhostKey:
        """Add an active key; the previous one retires. On StorageError nothing has changed."""
        if self.master is None:
            raise MasterKeyError(
                "there is no master key: make one with `leveret encryption generate-key FILE`, "
                "name it in encryption_key_file, and start the node with it"
            )
        taken = {key.id for key in self.keys}
        key_id = 0
        while key_id in taken or key_id == 0:
            (key_id,) = KEY_ID.unpack(self._random_bytes(KEY_ID.size))
        secret = self._random_bytes(KEY_BYTES)
        key = VhostKey(key_id, vhost, now_ms, KeyState.ACTIVE, b"")
        key = replace(key, wrapped=self._wrap(key, secret, self.master))
        self._replace([*self._retired(vhost), key], {**self._secrets, key_id: secret})
        return key

    def retire(self, vhost: str) -> None:
        """Retire a virtual host's active key. Raises StorageError; then nothing changed."""
        self._replace(self._retired(vhost), self._secrets)

    def remove(self, key_ids: Collection[int]) -> None:
        """Remove retired keys for ever. Raises StorageError; then nothing changed."""
        kept = [key for key in self.keys if key.id not in key_ids or key.state is KeyState.ACTIVE]
        kept_ids = {key.id for key in kept}
        self._replace(kept, {i: secret for i, secret in self._secrets.items() if i in kept_ids})

    def rewrap(self, master: MasterKey) -> None:
        """Wrap every key with another master key, which becomes the node's.

        Raises StorageError; then nothing changed.
        """
        self.require_master()
        before, self.master = self.master, master
        keys = [replace(k, wrapped=self._wrap(k, self._secrets[k.id], master)) for k in self.keys]
        try:
            self._replace(keys, self._secrets)
        except StorageError:
            self.master = before
            raise

    def _retired(self, vhost: str) -> list[VhostKey]:
        return [
            replace(key, state=KeyState.RETIRED) if key.vhost == vhost else key for key in self.keys
        ]

    # Wrapping

    def _wrap(self, key: VhostKey, secret: bytes, master: MasterKey) -> bytes:
        nonce = self._random_bytes(NONCE_BYTES)
        return nonce + master.cipher.encrypt(nonce, secret, key.context)

    def _unwrapped(self, master: MasterKey) -> dict[int, bytes]:
        if self.keys and master.fingerprint != self._fingerprint:
            raise MasterKeyError(
                f"the keyring {self._path} belongs to the master key {self._fingerprint}; "
                f"{master.source} holds {master.fingerprint}: after `leveret encryption "
                "rotate-master` the new file must be named in encryption_key_file"
            )
        cipher = master.cipher
        secrets = {}
        for key in self.keys:
            nonce, wrapped = key.wrapped[:NONCE_BYTES], key.wrapped[NONCE_BYTES:]
            try:
                secrets[key.id] = cipher.decrypt(nonce, wrapped, key.context)
            except (InvalidTag, ValueError):
                raise self._damaged(f"key {key_id_text(key.id)} cannot be unwrapped") from None
        return secrets

    # The file

    def _load(self) -> tuple[str, list[VhostKey]]:
        try:
            document = json.loads(bytes(read_file(self._files, self._path)))
        except FileNotFoundError:
            return "", []
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        except (ValueError, RecursionError):
            raise self._damaged("it is not JSON") from None
        try:
            if document["version"] != VERSION:
                raise self._damaged("its version is unknown")
            return str(document["master"]), [_from_json(entry) for entry in document["keys"]]
        except (KeyError, TypeError, ValueError):
            raise self._damaged("an entry makes no sense") from None

    def _damaged(self, reason: str) -> StorageError:
        return StorageError(
            f"the keyring {self._path} is damaged ({reason}): restore it from a backup; without it "
            "encrypted messages cannot be read"
        )

    def _replace(self, keys: list[VhostKey], secrets: dict[int, bytes]) -> None:
        fingerprint = self.master.fingerprint if self.master is not None else self._fingerprint
        document = {
            "version": VERSION,
            "master": fingerprint if keys else "",
            "keys": [_to_json(key) for key in keys],
        }
        self._write(json.dumps(document, indent=2).encode() + b"\n")
        # In this order: others look a key up, then its secret.
        self._secrets = secrets
        self._fingerprint, self.keys = fingerprint, keys

    def _write(self, content: bytes) -> None:
        """Replace the file atomically and durably. Raises StorageError."""
        try:
            write_file(self._files, self._path, content, flush=True)
            self._files.sync_directory(self._path.parent)
        except OSError as error:
            raise storage_error("write", self._path, error) from error


def _to_json(key: VhostKey) -> dict[str, Any]:
    return {
        "id": key_id_text(key.id),
        "vhost": key.vhost,
        "created_ms": key.created_ms,
        "state": key.state.value,
        "wrapped": base64.b64encode(key.wrapped).decode(),
    }


def _from_json(entry: dict[str, Any]) -> VhostKey:
    """Return the keyring's keys from JSON. Raises KeyError, TypeError, ValueError."""
    key = VhostKey(
        int(entry["id"], 16),
        entry["vhost"],
        entry["created_ms"],
        KeyState(entry["state"]),
        base64.b64decode(entry["wrapped"], validate=True),
    )
    sound = isinstance(key.vhost, str) and type(key.created_ms) is int
    if not sound or not 0 < key.id < 1 << 64:
        raise ValueError("wrong kind")
    return key
