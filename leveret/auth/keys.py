"""Keys that sign tokens: from a file or an address, read again in time and for unknown ids.

Each key is stored by identifier and by the algorithms that fit its type: a token can only choose
among these pairs, so that no public key ever serves as a secret, and `none` does not exist.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import jwt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["KeySet", "parse_keys"]

logger = logging.getLogger(__name__)

KEYS_MAX = 64  # a provider has one or two in use, and some that were
RSA_BITS_MIN = 2048  # NIST SP 800-131A
# A token that names an unknown key makes the set be read again, but not by every such token.
UNKNOWN_KEY_SECONDS_MIN = 10.0

# By type and curve. Longer hashes are used only with keys that name their algorithm.
ALGORITHMS = {
    ("RSA", None): ("RS256", "RS384", "RS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
SYMMETRIC = "HS256"

Key = Any  # PyJWT's type of a key
Keys = dict[tuple[str | None, str], Key]  # by identifier and algorithm


class KeySet:
    """Keys of one provider. `fetch()` returns the text of a JWK set, or raises OSError.

    `clock` gives seconds from some fixed moment. `secret` is a shared key for HS256.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]] | None,
        secret: bytes | None,
        refresh_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._fetch = fetch
        self._secret = secret
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._keys: Keys = {}
        self._tried_at: float | None = None
        self._stale_at = clock()
        self._reading = asyncio.Lock()

    async def find(self, identifier: str | None, algorithm: str) -> Key | None:
        """Return the key that a token's header names; without an identifier, the only one."""
        if algorithm == SYMMETRIC:
            return self._secret
        if self._clock() >= self._stale_at:
            await self._read()
        key = self._known(identifier, algorithm)
        if key is None:
            await self._read()
            key = self._known(identifier, algorithm)
        return key

    def _known(self, identifier: str | None, algorithm: str) -> Key | None:
        if identifier is not None:
            return self._keys.get((identifier, algorithm))
        fitting = [key for (_, fits), key in self._keys.items() if fits == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    async def _read(self) -> None:
        """Read the keys again, unless it was done just now; on failure keep the old ones."""
        async with self._reading:
            now = self._clock()
            just_now = self._tried_at is not None and now - self._tried_at < UNKNOWN_KEY_SECONDS_MIN
            if self._fetch is None or just_now:
                return
            self._tried_at = now
            try:
                self._keys = parse_keys(await self._fetch())
            except (OSError, ValueError) as error:
                logger.error("cannot read the keys of tokens: %s", error)  # noqa: TRY400
            else:
                self._stale_at = now + self._refresh_seconds


def parse_keys(text: bytes) -> Keys:
    """Return the usable keys of a JWK set; others are ignored. Raises ValueError."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no JWK set")  # noqa: TRY004  # of the document, not of our caller
    keys: Keys = {}
    for entry in entries[:KEYS_MAX]:
        if isinstance(entry, dict) and entry.get("use") in {None, "sig"}:
            keys |= _parse_key(entry)
    return keys


def _parse_key(entry: dict[str, Any]) -> Keys:
    kind, curve, identifier = entry.get("kty"), entry.get("crv"), entry.get("kid")
    if not isinstance(kind, str) or not all(
        isinstance(value, str | None) for value in (curve, identifier)
    ):
        return {}
    found: Keys = {}
    for algorithm in ALGORITHMS.get((kind, curve), ()):
        if entry.get("alg") in {None, algorithm}:
            try:
                key = jwt.PyJWK(entry, algorithm).key
            except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
                logger.warning("passed over a key of tokens: %s", error)
                return {}
            if getattr(key, "key_size", RSA_BITS_MIN) >= RSA_BITS_MIN or kind != "RSA":
                found[identifier, algorithm] = key
    return found
