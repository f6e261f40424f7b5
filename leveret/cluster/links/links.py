"""All links of a node: one to the node that it wants, and one from each node that wants it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Protocol

from leveret.cluster.links.connector import LinkConnector
from leveret.cluster.links.handshake import (
    NONCE_BYTES,
    AcceptorHandshake,
    LinkPurpose,
    OpenerHandshake,
)
from leveret.cluster.links.link import LinkLimits, NodeLink
from leveret.ports.authentication import attempt_source
from leveret.ports.listening import LINKS, listening_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from leveret.cluster.links.connector import LinkDialing
    from leveret.cluster.links.handshake import LinkIdentity

__all__ = ["LinkObserver", "Links"]

logger = logging.getLogger("leveret.cluster")

BACKLOG = 128
# Peers whose last failure is remembered, so that it is logged once. Anybody can become one.
FAILURES_MAX = 256


class LinkObserver(Protocol):
    """Callbacks of a node's links, for each link in this order."""

    def connected(self, link: NodeLink) -> None:
        """Note a link, of either direction; the end of an older one of the node was told."""

    def received(self, link: NodeLink, frame: bytearray) -> None:
        """Handle a frame, without its length; it is the observer's from now on."""

    def disconnected(self, link: NodeLink, reason: str) -> None:
        """Note the end of a link that was connected; nothing of it comes after that.

        It may come within calls of `Links` and of `NodeLink.close`, but not of `NodeLink.send`.
        """


class Links:
    """Links of a node: outgoing and incoming, at most one each for a node.

    `draw` returns so many random bytes, which nobody can guess. `on_client` takes the connection of
    a client that another node passes on, and what that says of it; without it there are none.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        observer: LinkObserver,
        dialing: LinkDialing,
        limits: LinkLimits | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._identity = identity
        self._observer, self._draw = observer, draw
        self._limits = limits or LinkLimits()
        self._loop = asyncio.get_running_loop()
        self._connector = LinkConnector(
            dialing, self._limits, self._loop, self._make_outgoing, draw
        )
        self._server: asyncio.Server | None = None
        self._handshakes: dict[NodeLink, None] = {}  # incoming, the oldest first
        self.on_client: Callable[[socket.socket, bytes], None] | None = None
        self._clients: dict[NodeLink, None] = {}  # of which nothing is known yet
        self._links: dict[tuple[bool, int], NodeLink] = {}  # by `is_outgoing` and node
        self._failures: dict[object, str] = {}  # by node, or host of a peer; the oldest first
        self._is_closed = False

    @property
    def identity(self) -> LinkIdentity:
        """Identity of this node in one incarnation."""
        return self._identity

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept links of other nodes. Returns host and port. Raises LeveretError."""
        try:
            self._server = await self._loop.create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            raise listening_error(LINKS, host, port, error) from None
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def connect(self, node: int | None) -> None:
        """Keep a link open to a node, and to no other; it is opened again whenever it ends."""
        if not self._is_closed:
            self._connector.want(node)

    def disconnect(self, node: int, reason: str) -> None:
        """Close the present links to and from a node. One that is wanted is opened again."""
        for is_outgoing in (True, False):
            link = self._links.get((is_outgoing, node))
            if link is not None:
                link.close(reason)

    def close(self) -> None:
        """End all links, and accept none any more."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        self._connector.want(None)
        for link in [*self._handshakes, *self._clients, *self._links.values()]:
            link.close("this node closes its links")

    # -- making of links

    def _make_outgoing(self, node: int) -> NodeLink:
        handshake = OpenerHandshake(self._identity, node, self._draw(NONCE_BYTES))
        return NodeLink(self, handshake, self._limits, self._loop, node)

    def _accept(self) -> NodeLink:
        """Make a link for a connection; if there are too many handshakes, the oldest one ends.

        Connections that never say anything would otherwise keep nodes out.
        """
        handshake = AcceptorHandshake(
            self._identity, self._draw(NONCE_BYTES), self._incarnation_min
        )
        link = NodeLink(self, handshake, self._limits, self._loop)
        self._handshakes[link] = None
        if self._is_closed:
            link.close("this node closes its links")
        elif len(self._handshakes) > self._limits.handshakes_max:
            next(iter(self._handshakes)).abort("too many nodes connect at the same time")
        return link

    def _incarnation_min(self, node: int) -> int:
        present = self._links.get((False, node))
        return 0 if present is None else present.peer.incarnation

    # -- callbacks of links (see LinkOwner)

    def opened(self, link: NodeLink) -> None:
        """Put a link in the place of an older one of the same node, whose end is told first."""
        if link.peer.purpose is LinkPurpose.CLIENT:
            self._expect_client(link)
            return
        key = link.is_outgoing, link.peer.node
        older = self._links.get(key)
        if older is not None:
            older.abort("a newer link of the node takes its place")
        self._handshakes.pop(link, None)
        if not link.is_open:  # who was told of the older one's end has closed all
            return
        self._links[key] = link
        self._failures.pop(_peer_of(link), None)
        logger.info("the %s is open", link)
        self._observer.connected(link)

    def _expect_client(self, link: NodeLink) -> None:
        self._handshakes.pop(link, None)
        self._clients[link] = None
        if self.on_client is None:
            link.close("this node serves no clients")

    def received(self, link: NodeLink, frame: bytearray) -> None:
        """Hand a frame on."""
        if link not in self._clients:
            self._observer.received(link, frame)
        elif self.on_client is not None:
            self.on_client(link.detach(), bytes(frame))

    def ended(self, link: NodeLink, reason: str) -> None:
        """Forget a link, and open another one where it was wanted."""
        self._handshakes.pop(link, None)
        self._clients.pop(link, None)
        self._connector.ended(link)
        present = [key for key, each in self._links.items() if each is link]
        if not present:
            self._log_failure(link, reason)
            return
        del self._links[present[0]]
        logger.info("the %s has ended: %s", link, reason)
        self._observer.disconnected(link, reason)

    def _log_failure(self, link: NodeLink, reason: str) -> None:
        """Log why there was no link, once for each peer until it changes or there is one."""
        peer = _peer_of(link)
        if link.closed_here or self._failures.get(peer) == reason:
            return
        self._failures.pop(peer, None)
        self._failures[peer] = reason
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
        source = {"source": attempt_source(link.host)}
        # Without an address there was no attempt: the node is not live, or not known to be yet.
        level = logging.WARNING if link.host else logging.INFO
        logger.log(level, "there is no %s: %s", link, reason, extra=source)


def _peer_of(link: NodeLink) -> object:
    """Return by what the peers of links that failed are told apart."""
    return link.node if link.is_outgoing else link.host
