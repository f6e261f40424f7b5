"""Identity of a node, and the secret that all nodes of a cluster share."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Final

__all__ = ["ClusterSecret", "NodeIdentity"]

SECRET_BYTES_MIN: Final = 16  # whoever is dialed sees a proof, and may try secrets at leisure


class ClusterSecret:
    """Secret of a cluster's nodes. Nothing shows it."""

    __slots__ = ("_key",)

    def __init__(self, secret: bytes) -> None:
        """Raises ValueError for a secret that could be guessed."""
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"a cluster's secret needs {SECRET_BYTES_MIN} bytes or more")
        self._key = sha256(b"leveret cluster secret\0" + secret).digest()

    def __repr__(self) -> str:
        return "ClusterSecret(...)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not copied elsewhere")

    def prove(self, transcript: bytes) -> bytes:
        """Return HMAC-SHA256 of a transcript."""
        return digest(self._key, transcript, "sha256")

    def verify(self, transcript: bytes, proof: bytes) -> bool:
        """Return whether `proof` is one of somebody who knows the secret."""
        return compare_digest(self.prove(transcript), proof)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node of a cluster, in one session of its process.

    `features` are what its release can do beyond the protocol's version.
    """

    cluster: str
    node: int
    session: int
    software: str
    features: frozenset[str] = frozenset()
