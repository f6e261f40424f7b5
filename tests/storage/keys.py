"""Keys in tests: a master key that is always the same, and randomness that can be foretold."""

from __future__ import annotations

import hashlib
from itertools import count
from pathlib import Path

from leveret.storage.keyring import Keyring
from leveret.storage.master_key import MasterKey

MASTER = MasterKey(bytes(range(32)), "a test")
OTHER = MasterKey(bytes(range(1, 33)), "another test")
NOW_MS = 1_700_000_000_000


class Foretold:
    """Bytes that never repeat within a test and are the same in each run."""

    def __init__(self) -> None:
        self._numbers = count()

    def __call__(self, size: int) -> bytes:
        return hashlib.shake_128(b"%d" % next(self._numbers)).digest(size)


def make_keyring(files, data: Path, *, master=MASTER, random_bytes=None) -> Keyring:
    return Keyring(files, data, master, random_bytes or Foretold())


def encrypted_keyring(files, data: Path, vhost: str = "/") -> Keyring:
    """The data directory's keyring, in which `vhost` is encrypted."""
    files.make_directory(data)
    keyring = make_keyring(files, data)
    if keyring.active(vhost) is None:
        keyring.add(vhost, NOW_MS)
    return keyring
