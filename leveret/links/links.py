"""Links of a node: its peers, and the connections that it accepts from other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.links.accepted import AcceptedLink
from leveret.links.buffers import MessageBuffers
from leveret.links.counters import PeerCounters
from leveret.links.errors import CloseReason
from leveret.links.handshake import NONCE_BYTES, Acceptance
from leveret.links.peer import LinkServices, Peer
from leveret.links.sockets import LinkSocket
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leveret.links.accepted import Handlers
    from leveret.links.handshake import HandshakeTerms
    from leveret.links.peer import LinkTls
    from leveret.links.settings import LinkSettings

__all__ = ["Links", "PeerFigures", "bind_sockets"]

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
ACCEPT_RETRY_SECONDS: Final = 1.0  # without file descriptors left: some will be closed meanwhile


def _draw_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


async def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of `host`; 0 takes a free port for each.

    Whoever connects waits until somebody accepts. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, _, _, _, address in infos:
            opened.append(socket.create_server(address[:2], family=family, backlog=BACKLOG))
            opened[-1].setblocking(False)
    except OSError:
        for listening in opened:
            listening.close()
        raise
    return opened


class PeerFigures(NamedTuple):
    """Figures of the links with one node, in one direction of dialing."""

    node: int
    is_dialed: bool
    is_connected: bool
    breaker: str  # state of the circuit breaker; empty for links that the other node dials
    counters: PeerCounters


class Links:
    """All links of one node. `spawn` starts a task in the task group that owns them.

    Everything is called on one event loop. `random`, the clock and `nonce` are passed by tests.
    """

    def __init__(
        self,
        terms: HandshakeTerms,
        settings: LinkSettings,
        handlers: Handlers,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        *,
        tls: LinkTls | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        draw: Callable[[], float] = random.random,
        nonce: Callable[[], bytes] = _draw_nonce,
    ) -> None:
        assert terms.limits == settings.limits, "others are told what is done"
        self.handlers = handlers
        self.spawn = spawn
        self._services = LinkServices(
            terms,
            settings,
            spawn,
            monotonic_ns,
            draw,
            nonce,
            MessageBuffers(settings.kept_bytes_max),
            tls,
        )
        self._peers: dict[int, Peer] = {}
        self._accepted: dict[int, AcceptedLink] = {}
        self._accepted_counters: dict[int, PeerCounters] = {}
        self._listening: list[socket.socket] = []
        self._strangers: dict[AcceptedLink, asyncio.Task[None]] = {}

    # -- peers

    def peer(self, node: int) -> Peer:
        """Return the peer of this number; it is dialed once its address is set."""
        assert node != self._services.terms.own.node, "a node needs no link to itself"
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = Peer(node, self._services)
        return peer

    def set_address(self, node: int, host: str, port: int) -> None:
        """Dial a node at this address, and at no other one."""
        self.peer(node).set_address(host, port)

    def clear_address(self, node: int) -> None:
        """End the link to a node, and dial it no more until its address is set again.

        Its peer stays the same one. Links that the node dials stay, too.
        """
        self.peer(node).clear_address()

    def connected_nodes(self) -> frozenset[int]:
        """Return the nodes to which there is a link, whoever has dialed."""
        dialed = (node for node, peer in self._peers.items() if peer.is_connected)
        return frozenset((*dialed, *self._accepted))

    def figures(self) -> list[PeerFigures]:
        """Return the figures of all peers, dialed ones first."""
        rows = [
            PeerFigures(each.node, True, each.is_connected, each.breaker.state.value, each.counters)
            for each in self._peers.values()
        ]
        rows += [
            PeerFigures(node, False, node in self._accepted, "", counters)
            for node, counters in self._accepted_counters.items()
        ]
        return rows

    # -- connections from other nodes

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept links on every address of `host`. Returns the first (host, port).

        Raises OSError.
        """
        opened = await bind_sockets(host, port)
        self.accept_on(opened)
        name = opened[0].getsockname()
        return name[0], name[1]

    def accept_on(self, sockets: Sequence[socket.socket]) -> None:
        """Accept links on sockets that listen (see `bind_sockets`), and close them in the end."""
        self._listening += sockets
        for each in sockets:
            self._accept_from(each)

    def _accept_from(self, listening: socket.socket) -> None:
        # No task that awaits `sock_accept`: a connection is lost where that is cancelled too late.
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def close(self) -> None:
        """Accept no more, and end all links."""
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()
        for stranger in list(self._strangers):
            self._turn_away(stranger)
        for accepted in list(self._accepted.values()):
            accepted.link.close(CloseReason.GOING_AWAY, "the node stops")
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.close()

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it has hung up before
            return
        except OSError as error:
            logger.error("cannot accept a link: %s", error.strerror)  # noqa: TRY400
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_RETRY_SECONDS, self._accept_from, listening)
            return
        connection.setblocking(False)
        if len(self._strangers) >= self._services.settings.strangers_max:
            self._turn_away(next(iter(self._strangers)))
        accepted = AcceptedLink(self)
        link = accepted.link = self._socket(accepted, connection)
        task = self._strangers[accepted] = self.spawn(self._bring_in(connection, link))
        task.add_done_callback(partial(_close_unbegun, connection))

    def _socket(self, accepted: AcceptedLink, connection: socket.socket) -> LinkSocket:
        services = self._services
        link = LinkSocket(
            accepted,
            Acceptance(services.terms, services.nonce()),
            services.settings,
            services.buffers,
            is_dialer=False,
            monotonic_ns=services.monotonic_ns,
        )
        with contextlib.suppress(OSError):  # it may have hung up already
            link.address = "{}:{}".format(*connection.getpeername())
        return link

    def _turn_away(self, stranger: AcceptedLink) -> None:
        """Close a connection that has proved nothing."""
        task = self._strangers.pop(stranger)
        task.cancel()
        stranger.link.abort("others wait for their handshake as well (strangers_max)")

    async def _bring_in(self, connection: socket.socket, link: LinkSocket) -> None:
        """Do the TLS handshake, and begin that of the link."""
        services = self._services
        limit = services.settings.handshake_ms_max / 1000
        has_begun = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link,
                connection,
                ssl=services.tls.accepting() if services.tls else None,
                ssl_handshake_timeout=limit if services.tls else None,
            )
            has_begun = True
        except OSError as error:  # of TLS, its time limit, and of sockets
            link.abort(f"TLS: {one_line(error)}")
        finally:
            if not has_begun:
                connection.close()

    def accepted(self, link: AcceptedLink) -> PeerCounters:
        """Note a link whose handshake succeeded (see AcceptedLinkOwner)."""
        self._strangers.pop(link, None)
        node = link.identity.node
        before = self._accepted.get(node)
        counters = self._accepted_counters.setdefault(node, PeerCounters())
        if before is not None and before.identity.session > link.identity.session:
            self._close_soon(link, CloseReason.REPLACED, "a later session of the node is connected")
        elif before is None and len(self._accepted) >= self._services.settings.accepted_max:
            self._close_soon(link, CloseReason.TOO_MANY, "too many nodes are connected")
        else:
            self._accepted[node] = link
            counters.connects += 1
            logger.info("node %d is connected from %s", node, link.link.address)
            peer = self._peers.get(node)
            if peer is not None:
                peer.seen()
            if before is not None:
                before.link.close(CloseReason.REPLACED, "the node has connected once more")
        self._forget_counters()
        return counters

    def _close_soon(self, link: AcceptedLink, reason: CloseReason, text: str) -> None:
        """Close a link in a later turn: its socket has no machine yet."""
        asyncio.get_running_loop().call_soon(link.link.close, reason, text)

    def _forget_counters(self) -> None:
        """Forget the oldest counters of nodes that are gone."""
        too_many = len(self._accepted_counters) - 2 * self._services.settings.accepted_max
        gone = [node for node in self._accepted_counters if node not in self._accepted]
        for node in gone[: max(0, too_many)]:
            del self._accepted_counters[node]

    def gone(self, link: AcceptedLink, reason: str) -> None:
        """Note that a link is gone (see AcceptedLinkOwner)."""
        if not link.is_open:
            if self._strangers.pop(link, None) is not None:
                _tell(logging.WARNING, link.link.address, f"ended in its handshake: {reason}")
            return
        node = link.identity.node
        if self._accepted.get(node) is link:
            del self._accepted[node]
            counters = self._accepted_counters[node]
            counters.failures += 1
            counters.queued_bytes = counters.round_trip_ns = 0
            logger.info("node %d is not connected any more: %s", node, one_line(reason))


def _close_unbegun(connection: socket.socket, bringing_in: asyncio.Task[None]) -> None:
    """Close a connection whose task was cancelled, perhaps before it could run at all."""
    if bringing_in.cancelled():
        connection.close()


def _tell(level: int, address: str, text: str) -> None:
    """Log a line about a stranger; his address has a share of the log's rate limit."""
    source = {"source": address.rpartition(":")[0]}
    logger.log(level, "link from %s %s", address, one_line(text), extra=source)
