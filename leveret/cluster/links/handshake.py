"""Handshake of a link: both nodes prove that they know the secret of the cluster's links.

Machines: a frame goes in, the frame that answers it comes out. A frame is what stands behind its
length (see `link`); all integers are little-endian.

    1 HELLO      magic | u16 lowest, u16 highest protocol that is spoken | cluster id 16
    opener       | u16 its node | u64 its incarnation | u16 the node that it means | nonce 32
                 | u8 purpose: 1 replication, 2 the connection of a client

    2 WELCOME    magic | u16 protocol that is chosen | cluster id 16 | u16 its node
    acceptor     | u64 its incarnation | nonce 32 | proof 32

    3 PROOF      proof 32
    opener

    4 READY      nothing
    acceptor

    5 REFUSAL    u16 code | text in UTF-8, up to the end of the frame
    either       instead of an answer; the link is closed behind it

In front of each of them stands its number, a u8. A proof is the HMAC-SHA256, by the secret, of the
label of who proves, HELLO, and WELCOME up to its proof. Both have a fixed size, so nothing of one
can pass for the other; the labels keep a proof from being sent back to who made it, the nonces keep
an old one from counting again. HELLO and REFUSAL are the same in all protocols: what else changes
gets a new number of the protocol. All this shows who is there when a link begins; what follows can
be read and changed by whoever can do so to the network between the nodes.

A peer is refused before it is known, so a refusal says what is wrong and what to do, never who or
what is here; the range of protocols is told, as nobody could act without it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from leveret.errors import LeveretError
from leveret.ports.cluster import ID_BYTES
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HANDSHAKE_FRAME_BYTES_MAX",
    "NONCE_BYTES",
    "AcceptorHandshake",
    "LinkIdentity",
    "LinkPeer",
    "LinkPurpose",
    "LinkRefusedError",
    "OpenerHandshake",
    "RefusalCode",
    "RefusedByPeerError",
]

PROTOCOLS = (1, 1)  # lowest and highest that this release speaks
MAGIC = b"LVRTLINK"
NONCE_BYTES = 32
SECRET_BYTES_MIN = 16  # who sees a handshake can try secrets at home
# A REFUSAL is the longest; nobody who has not proved anything makes a node keep more than this.
HANDSHAKE_FRAME_BYTES_MAX = 512
TEXT_CHARACTERS_MAX = 400  # of a peer's refusal, in the log

KIND = Struct("<B")
HELLO = Struct("<B8sHH16sHQH32sB")
WELCOME = Struct("<B8sH16sHQ32s")  # up to its proof
PROOF = Struct("<B32s")
REFUSAL = Struct("<BH")
PROOF_BYTES = 32

(KIND_HELLO, KIND_WELCOME, KIND_PROOF, KIND_READY, KIND_REFUSAL) = range(1, 6)
SIZES = {
    KIND_HELLO: HELLO.size,
    KIND_WELCOME: WELCOME.size + PROOF_BYTES,
    KIND_PROOF: PROOF.size,
    KIND_READY: KIND.size,
}
ACCEPTOR_LABEL = b"leveret link, acceptor"
OPENER_LABEL = b"leveret link, opener"


class LinkPurpose(IntEnum):
    """Purpose of a connection: frames of replication, or the bytes of a client (client_proxy)."""

    REPLICATION = 1
    CLIENT = 2


class RefusalCode(IntEnum):
    """Reasons for which a node refuses a link."""

    MALFORMED = 1
    OTHER_PROTOCOL = 2
    OTHER_CLUSTER = 3
    OTHER_NODE = 4
    SAME_NODE = 5
    WRONG_SECRET = 6
    OLD_INCARNATION = 7


PURPOSES = frozenset(LinkPurpose)
# The same sentence is read by the operators of both nodes.
TEXTS = {
    RefusalCode.MALFORMED: "what came is no handshake of a link: check that the address is that of "
    "a node's cluster port",
    RefusalCode.OTHER_CLUSTER: "the two nodes belong to different clusters: check the addresses "
    "that nodes advertise, and which ZooKeeper each node uses",
    RefusalCode.OTHER_NODE: "another node answers than the one that was meant: check the addresses "
    "that nodes advertise",
    RefusalCode.SAME_NODE: "both ends say that they are the same node: give each node a number of "
    "its own, and check that no node's address leads to another one",
    RefusalCode.WRONG_SECRET: "the two nodes have different secrets for links: check that both use "
    "the same ZooKeeper, and that nobody else answers at the addresses of nodes",
    RefusalCode.OLD_INCARNATION: "a later start of the node has a link already: stop the older "
    "process",
}


class LinkRefusedError(LeveretError):
    """This end refuses a link; `answer` is the frame that tells the peer so."""

    def __init__(self, code: RefusalCode, text: str = "") -> None:
        """Without a `text`, it is the usual one of the code."""
        text = text or TEXTS[code]
        super().__init__(text)
        self.code: int = code
        self.answer = REFUSAL.pack(KIND_REFUSAL, code) + text.encode()


class RefusedByPeerError(LinkRefusedError):
    """The other end has refused the link; anybody may have sent the text. There is no answer."""

    def __init__(self, code: int, text: str) -> None:
        """`code` may be one of a later release, and `text` anything."""
        LeveretError.__init__(self, f"the other end says: {one_line(text, TEXT_CHARACTERS_MAX)}")
        self.code = code
        self.answer = b""


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """Identity of a node among the nodes of its cluster, and the secret that proves it."""

    cluster_id: bytes  # 16 bytes
    node: int  # u16
    incarnation: int  # u64
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.cluster_id) == ID_BYTES, "as HELLO has it"
        assert len(self.secret) >= SECRET_BYTES_MIN, "it cannot be guessed"


class LinkPeer(NamedTuple):
    """Node at the other end of a link, the protocol that both speak, and what for."""

    node: int
    incarnation: int
    protocol: int
    purpose: LinkPurpose = LinkPurpose.REPLICATION


class OpenerHandshake:
    """Handshake of the node that opens a link: HELLO, then PROOF.

    `nonce` is 32 random bytes, never used before. `peer` is known when READY has come.
    """

    def __init__(
        self,
        own: LinkIdentity,
        meant: int,
        nonce: bytes,
        purpose: LinkPurpose = LinkPurpose.REPLICATION,
    ) -> None:
        assert meant != own.node, "a node has no link to itself"
        self._own, self._meant, self._purpose = own, meant, purpose
        self._awaited = KIND_WELCOME
        self._welcomed: LinkPeer | None = None
        self.peer: LinkPeer | None = None
        self.first = HELLO.pack(
            *(KIND_HELLO, MAGIC, *PROTOCOLS, own.cluster_id, own.node, own.incarnation, meant),
            *(nonce, purpose),
        )

    def receive(self, frame: bytes | bytearray) -> bytes:
        """Return the frame that answers one of the acceptor; empty where it has no answer.

        Raises LinkRefusedError.
        """
        _check_kind(frame, self._awaited)
        if self._awaited == KIND_READY:
            self.peer, self._awaited = self._welcomed, 0
            return b""
        welcome, proof = bytes(frame[: WELCOME.size]), bytes(frame[WELCOME.size :])
        _, magic, protocol, cluster_id, node, incarnation, _ = WELCOME.unpack(welcome)
        _check_cluster(magic, cluster_id, self._own)
        if not hmac.compare_digest(proof, _proof(self._own, ACCEPTOR_LABEL, self.first, welcome)):
            raise LinkRefusedError(RefusalCode.WRONG_SECRET)
        if node != self._meant:
            raise LinkRefusedError(RefusalCode.OTHER_NODE)
        if not PROTOCOLS[0] <= protocol <= PROTOCOLS[1]:
            raise LinkRefusedError(RefusalCode.MALFORMED)
        self._welcomed, self._awaited = (
            LinkPeer(node, incarnation, protocol, self._purpose),
            KIND_READY,
        )
        return PROOF.pack(KIND_PROOF, _proof(self._own, OPENER_LABEL, self.first, welcome))


class AcceptorHandshake:
    """Handshake of the node that accepts a link: WELCOME, then READY.

    `nonce` is 32 random bytes, never used before. `incarnation_min` returns the lowest incarnation
    that is accepted of a node that has proved itself. `peer` is known when PROOF has come.
    """

    first = b""  # the opener speaks first

    def __init__(
        self, own: LinkIdentity, nonce: bytes, incarnation_min: Callable[[int], int]
    ) -> None:
        self._own, self._nonce, self._incarnation_min = own, nonce, incarnation_min
        self._awaited = KIND_HELLO
        self._greeted: LinkPeer | None = None
        self._proof = b""
        self.peer: LinkPeer | None = None

    def receive(self, frame: bytes | bytearray) -> bytes:
        """Return the frame that answers one of the opener. Raises LinkRefusedError."""
        _check_kind(frame, self._awaited)
        if self._awaited == KIND_HELLO:
            return self._welcome(bytes(frame))
        return self._ready(bytes(frame[KIND.size :]))

    def _welcome(self, hello: bytes) -> bytes:
        own = self._own
        _, magic, lowest, highest, cluster_id, node, incarnation, meant, _, purpose = HELLO.unpack(
            hello
        )
        if magic != MAGIC or lowest > highest or purpose not in PURPOSES:
            raise LinkRefusedError(RefusalCode.MALFORMED)
        protocol = _choose(lowest, highest)
        _check_cluster(magic, cluster_id, own)
        if node == own.node:
            raise LinkRefusedError(RefusalCode.SAME_NODE)
        if meant != own.node:
            raise LinkRefusedError(RefusalCode.OTHER_NODE)
        welcome = WELCOME.pack(
            KIND_WELCOME, MAGIC, protocol, own.cluster_id, own.node, own.incarnation, self._nonce
        )
        peer = LinkPeer(node, incarnation, protocol, LinkPurpose(purpose))
        self._greeted, self._awaited = peer, KIND_PROOF
        self._proof = _proof(own, OPENER_LABEL, hello, welcome)
        return welcome + _proof(own, ACCEPTOR_LABEL, hello, welcome)

    def _ready(self, proof: bytes) -> bytes:
        assert self._greeted is not None, "HELLO came before PROOF"
        if not hmac.compare_digest(proof, self._proof):
            raise LinkRefusedError(RefusalCode.WRONG_SECRET)
        if self._greeted.incarnation < self._incarnation_min(self._greeted.node):
            raise LinkRefusedError(RefusalCode.OLD_INCARNATION)
        self.peer, self._awaited = self._greeted, 0
        return KIND.pack(KIND_READY)


def _proof(own: LinkIdentity, label: bytes, hello: bytes, welcome: bytes) -> bytes:
    return hmac.digest(own.secret, label + hello + welcome, "sha256")


def _check_kind(frame: bytes | bytearray, awaited: int) -> None:
    """Raise LinkRefusedError if a frame is not the one that is awaited."""
    kind = frame[0] if frame else 0
    if kind == KIND_REFUSAL and len(frame) >= REFUSAL.size:
        _, code = REFUSAL.unpack_from(frame)
        raise RefusedByPeerError(code, bytes(frame[REFUSAL.size :]).decode(errors="replace"))
    if kind != awaited or len(frame) != SIZES[kind]:
        raise LinkRefusedError(RefusalCode.MALFORMED)


def _check_cluster(magic: bytes, cluster_id: bytes, own: LinkIdentity) -> None:
    if magic != MAGIC:
        raise LinkRefusedError(RefusalCode.MALFORMED)
    if cluster_id != own.cluster_id:
        raise LinkRefusedError(RefusalCode.OTHER_CLUSTER)


def _choose(lowest: int, highest: int) -> int:
    """Return the highest protocol that both ends speak. Raises LinkRefusedError."""
    own_lowest, own_highest = PROTOCOLS
    if max(lowest, own_lowest) <= min(highest, own_highest):
        return min(highest, own_highest)
    older = "opened" if highest < own_lowest else "accepted"
    raise LinkRefusedError(
        RefusalCode.OTHER_PROTOCOL,
        f"the node that opened the link speaks protocols {lowest} to {highest}, the one that "
        f"accepted it {own_lowest} to {own_highest}: upgrade the node that {older} it, whose "
        "release is older",
    )
