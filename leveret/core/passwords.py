"""Passwords: hashed once, checked slowly, remembered briefly.

`hash_password` and `verify_password` take tens of milliseconds on purpose: call them in a worker
thread, never on the event loop. Nothing here is ever logged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

__all__ = [
    "SALT_BYTES",
    "PasswordCache",
    "hash_password",
    "import_rabbitmq_hash",
    "verify_password",
]

# OWASP's first recommendation for Argon2id: 19 MiB, two passes, one lane.
ARGON2_MEMORY_KIB = 19 * 1024
ARGON2_ITERATIONS = 2
ARGON2_LANES = 1
ARGON2_HASH_BYTES = 32
SALT_BYTES = 16  # NIST SP 800-132 asks for at least 128 random bits

RABBITMQ_SALT_BYTES = 4
RABBITMQ_ALGORITHMS = {
    "rabbit_password_hashing_sha256": "rabbitmq-sha256",
    "rabbit_password_hashing_sha512": "rabbitmq-sha512",
}
CACHE_ENTRIES_MAX = 4096  # a few hundred kB; more users than this reconnect at once rarely


def hash_password(password: str, salt: bytes) -> str:
    """PHC string `$argon2id$…` of a password. `salt` is SALT_BYTES of randomness."""
    return Argon2id(
        salt=salt,
        length=ARGON2_HASH_BYTES,
        iterations=ARGON2_ITERATIONS,
        lanes=ARGON2_LANES,
        memory_cost=ARGON2_MEMORY_KIB,
    ).derive_phc_encoded(password.encode())


def verify_password(phc: str, password: str) -> bool:
    """Whether `password` is the one hashed in `phc`.

    A blank password never is, nor is anything where no password was set: such users log in by
    other means or not at all. For a user that does not exist, pass an empty `phc`: the answer then
    takes as long as for one that does, which tells a stranger nothing.
    """
    if not password or not phc:
        hash_password(password, bytes(SALT_BYTES))
        return False
    if phc.startswith("$rabbitmq-"):
        return _verify_rabbitmq(phc, password.encode())
    try:
        Argon2id.verify_phc_encoded(password.encode(), phc)
    except (InvalidKey, ValueError):
        return False
    return True


def import_rabbitmq_hash(algorithm: str, password_hash: str) -> str:
    """A hash from RabbitMQ's definitions (4 bytes of salt, then the digest, in base64), as PHC.

    Raises ValueError for an algorithm or a hash that is none.
    """
    name = RABBITMQ_ALGORITHMS.get(algorithm)
    if name is None:
        raise ValueError(f"unknown password hashing algorithm {algorithm!r}")
    try:
        salted = base64.b64decode(password_hash, validate=True)
    except binascii.Error:
        raise ValueError("password hash is not base64") from None
    if len(salted) != RABBITMQ_SALT_BYTES + _rabbitmq_digest(name, b"").digest_size:
        raise ValueError("password hash has the wrong length")
    return f"${name}${password_hash}"


class PasswordCache:
    """Remembers successful checks, so that 5,000 reconnects do not cost 5,000 runs of Argon2.

    It holds neither passwords nor anything to guess them from: only keyed digests over hash and
    password, whose key lives as long as the process. A changed password has another hash, so old
    entries no longer match and are pushed out in time.
    """

    def __init__(self, key: bytes, entries_max: int = CACHE_ENTRIES_MAX) -> None:
        """`key` is 32 bytes of randomness, made once for the process."""
        self._key = key
        self._entries_max = entries_max
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def knows(self, phc: str, password: str) -> bool:
        """Whether this very pair was remembered."""
        digest = self._digest(phc, password)
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def remember(self, phc: str, password: str) -> None:
        """Note that `verify_password(phc, password)` was true."""
        self._digests[self._digest(phc, password)] = None
        if len(self._digests) > self._entries_max:
            self._digests.popitem(last=False)

    def __len__(self) -> int:
        return len(self._digests)

    def _digest(self, phc: str, password: str) -> bytes:
        # A PHC string holds no NUL: no other pair runs together to the same bytes.
        return hmac.digest(self._key, phc.encode() + b"\0" + password.encode(), "sha256")


def _verify_rabbitmq(phc: str, password: bytes) -> bool:
    _, name, encoded = phc.split("$", 2)
    salted = base64.b64decode(encoded)
    salt, expected = salted[:RABBITMQ_SALT_BYTES], salted[RABBITMQ_SALT_BYTES:]
    return hmac.compare_digest(_rabbitmq_digest(name, salt + password).digest(), expected)


def _rabbitmq_digest(name: str, content: bytes) -> hashlib._Hash:
    return hashlib.new(name.removeprefix("rabbitmq-"), content)
