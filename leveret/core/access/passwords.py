"""Passwords: hashing, verification, and a short-lived cache of successful checks.

`hash_password` and `verify_password` take tens of milliseconds on purpose: call them in a worker
thread, never on the event loop. Nothing here is ever logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections import OrderedDict

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

__all__ = [
    "ARGON2_ALGORITHM",
    "RABBITMQ_DEFAULT_ALGORITHM",
    "RABBITMQ_SALT_BYTES",
    "SALT_BYTES",
    "PasswordCache",
    "export_hash",
    "hash_password",
    "hash_password_as_rabbitmq",
    "import_hash",
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
    "rabbit_password_hashing_md5": "rabbitmq-md5",
    "rabbit_password_hashing_sha256": "rabbitmq-sha256",
    "rabbit_password_hashing_sha512": "rabbitmq-sha512",
}
RABBITMQ_DEFAULT_ALGORITHM = "rabbit_password_hashing_sha256"
ARGON2_ALGORITHM = "leveret_password_hashing_argon2id"  # name of our own algorithm in definitions
# An imported hash may need more memory and time at each login; ours needs 19 MiB, 2 passes, 1 lane.
ARGON2_PHC = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,6}),t=([0-9]{1,2}),p=([0-9]{1,2})"
    r"\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,86}\Z"
)
ARGON2_MEMORY_KIB_MAX = 128 * 1024  # with two checks at a time
ARGON2_ITERATIONS_MAX = 16
# Memory times passes, which determines the time of a check: 64 MiB three times, RFC 9106's second
# choice, takes some 200 ms. More would delay all other logins.
ARGON2_WORK_KIB_MAX = 3 * 64 * 1024
ARGON2_LANES_MAX = 16
CACHE_ENTRIES_MAX = 4096  # a few hundred kB; rarely do more users reconnect at once


def hash_password(password: str, salt: bytes) -> str:
    """Return the PHC string `$argon2id$…` of a password. `salt` is SALT_BYTES of randomness."""
    return Argon2id(
        salt=salt,
        length=ARGON2_HASH_BYTES,
        iterations=ARGON2_ITERATIONS,
        lanes=ARGON2_LANES,
        memory_cost=ARGON2_MEMORY_KIB,
    ).derive_phc_encoded(password.encode())


def verify_password(phc: str, password: str) -> bool:
    """Whether `password` is the one hashed in `phc`.

    False for a blank password, and if no password was set: such users log in by other means or not
    at all. For an unknown user, pass an empty `phc`. A refusal takes as long for unknown users and
    for imported hashes, which are cheap to check, as for our own: so it does not reveal which users
    exist.
    """
    accepted = bool(password and phc) and _is_hash_of(phc, password.encode())
    if not accepted and _work_kib(phc) < ARGON2_MEMORY_KIB * ARGON2_ITERATIONS:
        hash_password(password, bytes(SALT_BYTES))
    return accepted


def _is_hash_of(phc: str, password: bytes) -> bool:
    if phc.startswith("$rabbitmq-"):
        return _verify_rabbitmq(phc, password)
    try:
        Argon2id.verify_phc_encoded(password, phc)
    except (InvalidKey, ValueError):
        return False
    return True


def _work_kib(phc: str) -> int:
    """Return memory (KiB) times passes of a check; 0 if it is cheap."""
    found = ARGON2_PHC.match(phc)
    return int(found[1]) * int(found[2]) if found is not None else 0


def hash_password_as_rabbitmq(
    password: str, salt: bytes, algorithm: str = RABBITMQ_DEFAULT_ALGORITHM
) -> str:
    """Return salt and digest in base64, as in RabbitMQ's definitions. Raises ValueError."""
    name = _rabbitmq_name(algorithm)
    digest = _rabbitmq_digest(name, salt + password.encode()).digest()
    return base64.b64encode(salt + digest).decode()


def import_hash(algorithm: str, password_hash: str) -> str:
    """Convert a hash of definitions, RabbitMQ's or ours, to its stored form.

    RabbitMQ's is 4 bytes of salt, then the digest, in base64. An empty hash matches no password.
    Raises ValueError for an unknown algorithm or an invalid hash.
    """
    if not password_hash:
        return ""
    if algorithm == ARGON2_ALGORITHM:
        _check_argon2(password_hash)
        return password_hash
    name = _rabbitmq_name(algorithm)
    try:
        salted = base64.b64decode(password_hash, validate=True)
    except ValueError:
        raise ValueError("password hash is not base64") from None
    if len(salted) != RABBITMQ_SALT_BYTES + _rabbitmq_digest(name, b"").digest_size:
        raise ValueError("password hash has the wrong length")
    return f"${name}${password_hash}"


def export_hash(phc: str) -> tuple[str, str]:
    """Return (algorithm, hash) as in definitions, the inverse of `import_hash`."""
    if not phc:
        return RABBITMQ_DEFAULT_ALGORITHM, ""
    for algorithm, name in RABBITMQ_ALGORITHMS.items():
        if phc.startswith(f"${name}$"):
            return algorithm, phc.removeprefix(f"${name}$")
    return ARGON2_ALGORITHM, phc


def _rabbitmq_name(algorithm: str) -> str:
    name = RABBITMQ_ALGORITHMS.get(algorithm)
    if name is None:
        raise ValueError(f"unknown password hashing algorithm {algorithm!r}")
    return name


def _check_argon2(phc: str) -> None:
    """Raise ValueError unless `phc` is a PHC string of Argon2id that is cheap enough to verify."""
    found = ARGON2_PHC.match(phc)
    if found is None:
        raise ValueError("password hash is not a PHC string of Argon2id")
    memory_kib, iterations, lanes = (int(part) for part in found.groups())
    if (
        memory_kib > ARGON2_MEMORY_KIB_MAX
        or memory_kib * iterations > ARGON2_WORK_KIB_MAX
        or not 1 <= iterations <= ARGON2_ITERATIONS_MAX
        or not 1 <= lanes <= ARGON2_LANES_MAX
    ):
        raise ValueError("password hash takes more memory or time than is granted")


class PasswordCache:
    """Cache of successful checks, so that 5,000 reconnects do not cost 5,000 runs of Argon2.

    It holds neither passwords nor anything to guess them from: only keyed digests of hash and
    password, whose key lives as long as the process. A changed password has another hash, so old
    entries no longer match and are evicted in time.
    """

    def __init__(self, key: bytes, entries_max: int = CACHE_ENTRIES_MAX) -> None:
        """Create a cache; `key` is 32 random bytes, made once per process."""
        self._key = key
        self._entries_max = entries_max
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def knows(self, phc: str, password: str) -> bool:
        """Whether this pair of hash and password was remembered."""
        digest = self._digest(phc, password)
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def remember(self, phc: str, password: str) -> None:
        """Store that `verify_password(phc, password)` was true."""
        self._digests[self._digest(phc, password)] = None
        if len(self._digests) > self._entries_max:
            self._digests.popitem(last=False)

    def __len__(self) -> int:
        return len(self._digests)

    def _digest(self, phc: str, password: str) -> bytes:
        # A PHC string contains no NUL, so different pairs never give the same bytes.
        return hmac.digest(self._key, phc.encode() + b"\0" + password.encode(), "sha256")


def _verify_rabbitmq(phc: str, password: bytes) -> bool:
    _, name, encoded = phc.split("$", 2)
    salted = base64.b64decode(encoded)
    salt, expected = salted[:RABBITMQ_SALT_BYTES], salted[RABBITMQ_SALT_BYTES:]
    return hmac.compare_digest(_rabbitmq_digest(name, salt + password).digest(), expected)


def _rabbitmq_digest(name: str, content: bytes) -> hashlib._Hash:
    # MD5 and a short salt are RabbitMQ's choice; a new password gets Argon2id.
    return hashlib.new(name.removeprefix("rabbitmq-"), content, usedforsecurity=False)
