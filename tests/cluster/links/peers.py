"""Both ends of a handshake."""

from __future__ import annotations

from leveret.cluster.links.handshake import (
    NONCE_BYTES,
    AcceptorHandshake,
    LinkIdentity,
    OpenerHandshake,
)

CLUSTER = b"cluster of tests"
SECRET = b"a secret that nobody logs"
OPENER, ACCEPTOR = 2, 1


def identity(node, incarnation=7, cluster_id=CLUSTER, secret=SECRET):
    return LinkIdentity(cluster_id, node, incarnation, secret)


def opener(own=None, meant=ACCEPTOR, nonce=b"o" * NONCE_BYTES):
    return OpenerHandshake(own or identity(OPENER), meant, nonce)


def acceptor(own=None, nonce=b"a" * NONCE_BYTES, incarnation_min=0):
    return AcceptorHandshake(own or identity(ACCEPTOR), nonce, lambda node: incarnation_min)
