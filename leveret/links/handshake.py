"""Machines of the handshake: versions, a proof that both know the cluster's secret, who is who.

    dialer ── HELLO(versions, nonce) ─────────────────────────► acceptor
           ◄─ HELLO(versions, nonce) ───────────────────────
           ── PROOF(HMAC, identity and limits) ───────────────►
           ◄─ PROOF(HMAC, identity and limits) ─────────────
    either ── REFUSED(text), and then the end of the connection

    message   2 length of what follows, 1 type, payload; numbers are little-endian
    HELLO     8 "LEVERET" and a line feed, 2 lowest version, 2 highest version, 32 nonce
    PROOF     32 HMAC-SHA256, JSON
    REFUSED   text

The versions of HELLO are those of everything that follows it: the highest that both know. HELLO
itself never changes.

Each HMAC covers the role of its sender and all bytes before it, both nonces and both ranges of
versions among them. So a proof of another connection, the other side's own sent back, or a HELLO
that was altered on its way does not verify, and nothing but HELLO is read of somebody who has not
proved to know the secret. Who is dialed sees no proof before it has one to check; who dials
gives his first. Whoever can alter bytes on the network can still do so after the handshake: against
that there is TLS. (TLS's own exporter, to tie the proof to its channel, is not in Python's ssl.)
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.links.errors import HandshakeError
from leveret.links.identity import NodeIdentity
from leveret.links.settings import LinkLimits
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from leveret.links.identity import ClusterSecret

__all__ = ["VERSIONS", "Acceptance", "Dialing", "HandshakeTerms", "LinkAgreement", "LinkHandshake"]


class VersionRange(NamedTuple):
    """Versions of the protocol that a release knows, both included."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


# A new version is added at the upper end; the lower end follows once no release that nodes are
# upgraded from knows only the old one.
VERSIONS: Final = VersionRange(1, 1)

PREFIX: Final = Struct("<HB")
HELLO_BODY: Final = Struct("<8sHH32s")
MAGIC: Final = b"LEVERET\n"
HELLO, PROOF, REFUSED = 1, 2, 3
NONCE_BYTES: Final = 32
HMAC_BYTES: Final = 32
# What a message may have after its length. Identities take some hundred bytes.
MESSAGE_BYTES_MAX: Final = 4096
TEXT_BYTES_MAX: Final = 512
NAME_CHARACTERS_MAX: Final = 255
FEATURES_MAX: Final = 64
NUMBER_MAX: Final = 2**63 - 1
LIMIT_MAX: Final = 2**31 - 1  # so that sizes and credit fit into a frame's header
DIALER: Final = b"leveret link, dialer\0"
ACCEPTOR: Final = b"leveret link, acceptor\0"


@dataclass(frozen=True, slots=True)
class HandshakeTerms:
    """Contribution of a node to each handshake, beside a nonce."""

    own: NodeIdentity
    secret: ClusterSecret
    limits: LinkLimits
    versions: VersionRange = VERSIONS

    def __post_init__(self) -> None:
        """Raises ValueError for an identity that no other node would read."""
        content = _identity_bytes(self.own, self.limits)
        try:
            _read_identity(content)
        except HandshakeError as error:
            raise ValueError(str(error)) from None
        if len(content) > MESSAGE_BYTES_MAX - HMAC_BYTES:
            raise ValueError("the names of the cluster and of its features are too long")


class LinkAgreement(NamedTuple):
    """Outcome of a handshake: who the other side is, and what it accepts."""

    peer: NodeIdentity
    limits: LinkLimits
    version: int
    features: frozenset[str]  # that both have


class LinkHandshake(ABC):
    """Handshake of either side. `output` is to be sent; `rest` came after the handshake's end."""

    def __init__(self, terms: HandshakeTerms, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES, "a nonce that nobody guesses"
        self.output = b""
        self.agreement: LinkAgreement | None = None
        self.rest = b""
        self._terms = terms
        self._nonce = nonce
        self._input = b""
        self._transcript = b""
        self._version = 0

    def received(self, data: bytes | memoryview) -> None:
        """Process bytes. Raises HandshakeError; `output` is sent even so, before the end."""
        self._input += data
        try:
            while self.agreement is None and (message := self._message()) is not None:
                self._take(*message)
        except HandshakeError as error:
            if not isinstance(error, _RefusedError):
                self.output += _encode(REFUSED, str(error).encode()[:TEXT_BYTES_MAX])
            raise
        if self.agreement is not None:
            self.rest, self._input = self._input, b""

    def _message(self) -> tuple[int, bytes, bytes] | None:
        """Return (type, payload, all its bytes) of the next message; None if it is incomplete."""
        if len(self._input) < PREFIX.size:
            return None
        length, kind = PREFIX.unpack_from(self._input)
        if length > MESSAGE_BYTES_MAX or kind not in (HELLO, PROOF, REFUSED):
            raise HandshakeError("this is not a node's link: is the port that of another service?")
        stop = PREFIX.size + length
        if len(self._input) < stop:
            return None
        raw, self._input = self._input[:stop], self._input[stop:]
        return kind, raw[PREFIX.size :], raw

    def _take(self, kind: int, payload: bytes, raw: bytes) -> None:
        if kind == REFUSED:
            text = one_line(payload[:TEXT_BYTES_MAX].decode(errors="replace"))
            raise _RefusedError(f"the other node refuses: {text}")
        if not self._version:
            if kind != HELLO:
                raise HandshakeError("the handshake does not begin with HELLO")
            self._take_hello(payload, raw)
        elif kind == PROOF:
            self._take_proof(payload, raw)
        else:
            raise HandshakeError("the handshake goes on with another HELLO")

    def _hello(self) -> bytes:
        return _encode(HELLO, HELLO_BODY.pack(MAGIC, *self._terms.versions, self._nonce))

    def _take_hello(self, payload: bytes, raw: bytes) -> None:
        if len(payload) != HELLO_BODY.size:
            raise HandshakeError("this is not a node's link: HELLO has another length")
        magic, lowest, highest, nonce = HELLO_BODY.unpack(payload)
        if magic != MAGIC:
            raise HandshakeError("this is not a node's link: HELLO begins otherwise")
        own = self._terms.versions
        theirs = VersionRange(lowest, highest)
        common = min(own.highest, highest)
        if common < max(own.lowest, lowest):
            raise HandshakeError(
                f"no common version of the protocol: {own} here, {theirs} there: upgrade the older "
                "node by a release in between"
            )
        if nonce == self._nonce:
            raise HandshakeError("the other side sends this node's own bytes back")
        self._version = common
        self._heard_hello(raw)

    @abstractmethod
    def _heard_hello(self, raw: bytes) -> None:
        """Go on after the other side's HELLO."""

    @abstractmethod
    def _take_proof(self, payload: bytes, raw: bytes) -> None:
        """Check the other side's proof, and go on."""

    def _prove(self, role: bytes) -> None:
        content = _identity_bytes(self._terms.own, self._terms.limits)
        proof = self._terms.secret.prove(role + self._transcript + content)
        message = _encode(PROOF, proof + content)
        self._transcript += message
        self.output += message

    def _verify(self, role: bytes, payload: bytes, raw: bytes) -> LinkAgreement:
        proof, content = payload[:HMAC_BYTES], payload[HMAC_BYTES:]
        if not self._terms.secret.verify(role + self._transcript + content, proof):
            raise HandshakeError(
                "the proof is wrong: the nodes have different cluster secrets, give them the same"
            )
        self._transcript += raw
        peer, limits = _read_identity(content)
        own = self._terms.own
        if peer.cluster != own.cluster:
            raise HandshakeError(
                f"node {peer.node} is of cluster {one_line(peer.cluster)}, and node {own.node} of "
                f"cluster {one_line(own.cluster)}: correct the address, or the cluster's name"
            )
        if peer.node == own.node:
            raise HandshakeError(
                f"both sides are node {own.node}: correct the address, or give each node its number"
            )
        return LinkAgreement(peer, limits, self._version, own.features & peer.features)


class _RefusedError(HandshakeError):
    """A refusal by the other side, which is not answered."""


class Dialing(LinkHandshake):
    """Handshake of the side that has connected, and expects a certain node."""

    def __init__(self, terms: HandshakeTerms, nonce: bytes, expected: int) -> None:
        super().__init__(terms, nonce)
        self._expected = expected
        self.output = self._transcript = self._hello()

    def _heard_hello(self, raw: bytes) -> None:
        self._transcript += raw
        self._prove(DIALER)

    def _take_proof(self, payload: bytes, raw: bytes) -> None:
        agreement = self._verify(ACCEPTOR, payload, raw)
        if agreement.peer.node != self._expected:
            raise HandshakeError(
                f"node {agreement.peer.node} answers where node {self._expected} was expected: "
                "is its address the one that the other node had?"
            )
        self.agreement = agreement


class Acceptance(LinkHandshake):
    """Handshake of the side that was connected to."""

    def _heard_hello(self, raw: bytes) -> None:
        self.output += self._hello()
        self._transcript = raw + self.output

    def _take_proof(self, payload: bytes, raw: bytes) -> None:
        agreement = self._verify(DIALER, payload, raw)
        self._prove(ACCEPTOR)
        self.agreement = agreement


def _encode(kind: int, payload: bytes) -> bytes:
    assert len(payload) <= MESSAGE_BYTES_MAX, "names are bounded"
    return PREFIX.pack(len(payload), kind) + payload


def _identity_bytes(own: NodeIdentity, limits: LinkLimits) -> bytes:
    content = {
        "cluster": own.cluster,
        "node": own.node,
        "session": own.session,
        "software": own.software,
        "features": sorted(own.features),
        "limits": asdict(limits),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _read_identity(content: bytes) -> tuple[NodeIdentity, LinkLimits]:
    """Read what a peer says of itself; fields that are not known here are of later releases.

    Raises HandshakeError.
    """
    try:
        said = json.loads(content)
        features = said["features"]
        if not isinstance(features, list) or len(features) > FEATURES_MAX:
            raise ValueError("features")  # noqa: TRY301
        identity = NodeIdentity(
            cluster=_name(said["cluster"]),
            node=_number(said["node"]),
            session=_number(said["session"]),
            software=_name(said["software"]),
            features=frozenset(map(_name, features)),
        )
        limits = LinkLimits(
            **{
                field.name: _number(said["limits"][field.name], LIMIT_MAX)
                for field in fields(LinkLimits)
            }
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HandshakeError(
            "the other node describes itself in a way that is not understood here"
        ) from None
    if not limits.window_bytes or not limits.interleaved_max:
        raise HandshakeError("the other node accepts nothing")
    return identity, limits


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS_MAX:
        raise ValueError("not a name")
    return value


def _number(value: object, highest: int = NUMBER_MAX) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise ValueError("not a number")
    return value
