"""One link: an authenticated connection between two nodes, as a protocol of asyncio.

    frame      u32 length, little-endian | so many bytes
    keepalive  u32 0

The first frames are those of the handshake. A frame is read in place, into a bytearray of its size;
a length above the limit ends the link before anything is allocated.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from leveret.cluster.links.handshake import (
    HANDSHAKE_FRAME_BYTES_MAX,
    LinkRefusedError,
    OpenerHandshake,
    RefusalCode,
)
from leveret.ports.log_text import one_line
from leveret.replication.codec import FRAME_BYTES_MAX, LENGTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.cluster.links.handshake import AcceptorHandshake, LinkPeer

__all__ = ["KEEPALIVE", "LinkLimits", "LinkOwner", "NodeLink"]

KEEPALIVE = LENGTH.pack(0)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Limits of links, and their times."""

    # For all up to READY: name lookup and TCP, on a busy machine. A peer that is slower is gone.
    handshake_ms: int = 5_000
    # A machine that is gone never says so: a link is silent at most half of what ends it.
    keepalive_ms: int = 1_000
    silence_ms: int = 5_000
    frame_bytes_max: int = FRAME_BYTES_MAX
    # Bytes that a peer has not read. Whoever sends has a window of 8 MiB for each peer; several
    # windows are a mistake, which must not fill the memory. One frame may go beyond: it is longer.
    buffered_bytes_max: int = 64 << 20
    close_ms: int = 1_000  # for a peer to read the last frames of a link that this node closes
    # Incoming links whose peers have not proved anything: all nodes of a large cluster at once.
    handshakes_max: int = 64
    # Between attempts to connect. The longest is how late a node that is back may be noticed.
    pause_ms_min: int = 100
    pause_ms_max: int = 2_000
    steady_ms: int = 5_000  # a link that has lived so long was no failed attempt


class LinkOwner(Protocol):
    """Callbacks of a link. None comes after `ended`."""

    def opened(self, link: NodeLink) -> None:
        """Note that the peer is known, and that frames may be sent and may come."""

    def received(self, link: NodeLink, frame: bytearray) -> None:
        """Handle a frame, without its length; it is the owner's from now on."""

    def ended(self, link: NodeLink, reason: str) -> None:
        """Note the end, which comes once for each link, also for one that was never open."""


class NodeLink(asyncio.BufferedProtocol):
    """A connection to a node (`is_outgoing`) or from one. It ends once.

    The peer is at `host` and `port`, which are empty before there is a connection; `closed_here`
    says whether `close` has ended the link.
    """

    def __init__(
        self,
        owner: LinkOwner,
        handshake: OpenerHandshake | AcceptorHandshake,
        limits: LinkLimits,
        loop: asyncio.AbstractEventLoop,
        node: int | None = None,
    ) -> None:
        self.node = node  # that is known, or the one that is meant
        self.host, self.port = "", 0
        self.closed_here = False
        self.is_outgoing = isinstance(handshake, OpenerHandshake)
        self.is_open = False
        self._owner, self._limits, self._loop = owner, limits, loop
        self._handshake: OpenerHandshake | AcceptorHandshake | None = handshake
        self._peer: LinkPeer | None = None
        self._opened_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._is_over = False  # nothing is sent or delivered any more
        self._is_told = False
        self._length = bytearray(LENGTH.size)
        self._frame: bytearray | None = None  # that is being read
        self._missing = memoryview(self._length)
        self._has_sent = False  # since the last look
        self._silent_looks = 0
        self._timer = loop.call_later(limits.handshake_ms / 1000, self._handshake_expired)

    @property
    def peer(self) -> LinkPeer:
        """Node at the other end; known when the link is open, and after that."""
        assert self._peer is not None, "the handshake is over"
        return self._peer

    @property
    def is_steady(self) -> bool:
        """Whether the link has been open for so long that it was worth opening."""
        if self._peer is None:
            return False
        return self._loop.time() - self._opened_at >= self._limits.steady_ms / 1000

    def __str__(self) -> str:
        """Describe the link for the log: `link to node 3 at HOST:PORT`."""
        peer = "a peer" if self.node is None else f"node {self.node}"
        place = f" at {self.host}:{self.port}" if self.host else ""
        return f"link {'to' if self.is_outgoing else 'from'} {peer}{place}"

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Send frames, in pieces, each with its length in front as `LinkEncoder` returns it.

        The pieces may be sent later: their bytes must stay as they are. Once the link has ended
        nothing happens. A peer that does not read ends it; that is told later, not in this call.
        """
        transport = self._transport
        if not self.is_open or transport is None:
            return
        buffered = transport.get_write_buffer_size()
        if buffered > self._limits.buffered_bytes_max:
            self.is_open, self._is_over = False, True  # a frame is missing: no other may follow
            self._loop.call_soon(self._end, f"the other node has not read {buffered} bytes")
            return
        self._has_sent = True
        transport.writelines(pieces)

    def close(self, reason: str) -> None:
        """End the link, which is told before this returns; what was sent may still arrive."""
        self.closed_here = True
        self._end(reason, is_flushed=True)

    def abort(self, reason: str) -> None:
        """End the link as `close` does, because it failed: what was not sent yet is dropped."""
        self._end(reason)

    def detach(self) -> socket.socket:
        """End the link, and return its connection, of which nothing more was read."""
        assert self._transport is not None, "the link is open"
        connection = self._transport.get_extra_info("socket")
        detached = socket.socket(fileno=os.dup(connection.fileno()))
        detached.setblocking(False)
        self.close("its connection is a client's")
        return detached

    def _end(self, reason: str, *, is_flushed: bool = False) -> None:
        if self._is_told:
            return
        self.is_open, self._is_over, self._is_told = False, True, True
        self._timer.cancel()
        self._frame, self._missing = None, memoryview(self._length)
        if self._transport is not None and is_flushed:
            self._transport.close()
            delay = self._limits.close_ms / 1000
            self._timer = self._loop.call_later(delay, self._transport.abort)
        elif self._transport is not None:
            self._transport.abort()
        self._owner.ended(self, reason)

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        if self._is_over:
            self._transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host, self.port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        assert self._handshake is not None, "it begins"
        self._write(self._handshake.first)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's hint
        """Return where the next bytes belong: in a length, or in a frame."""
        return self._missing

    def buffer_updated(self, nbytes: int) -> None:
        """Handle a frame when all of it is there."""
        if self._is_over:
            return
        self._silent_looks = 0
        self._missing = self._missing[nbytes:]
        if self._missing:
            return
        frame, self._frame, self._missing = self._frame, None, memoryview(self._length)
        if frame is None:
            self._begin_frame(*LENGTH.unpack(self._length))
        elif self._handshake is None:
            self._owner.received(self, frame)
        else:
            self._shake_hands(self._handshake, frame)

    def eof_received(self) -> None:
        """End: a peer that sends no more has closed its link."""
        self._lost("")

    def connection_lost(self, exc: Exception | None) -> None:
        """End, unless this end has closed the link."""
        self._lost(one_line(exc or ""))
        self._timer.cancel()
        self._transport = None

    # -- within

    def _begin_frame(self, length: int) -> None:
        shakes_hands = self._handshake is not None
        limit = HANDSHAKE_FRAME_BYTES_MAX if shakes_hands else self._limits.frame_bytes_max
        if length > limit and shakes_hands:
            self._refuse(LinkRefusedError(RefusalCode.MALFORMED))
        elif length > limit:
            self._end(f"the other node sends a frame of {length} bytes, more than {limit}")
        elif length:  # else it is a keepalive
            self._frame = bytearray(length)
            self._missing = memoryview(self._frame)

    def _shake_hands(
        self, handshake: OpenerHandshake | AcceptorHandshake, frame: bytearray
    ) -> None:
        try:
            self._write(handshake.receive(frame))
        except LinkRefusedError as error:
            self._refuse(error)
            return
        if handshake.peer is not None:
            self._peer, self._handshake, self.is_open = handshake.peer, None, True
            self.node = handshake.peer.node
            self._opened_at = self._loop.time()
            self._timer.cancel()
            self._schedule_look()
            self._owner.opened(self)

    def _refuse(self, error: LinkRefusedError) -> None:
        self._write(error.answer)
        self._end(str(error), is_flushed=True)

    def _write(self, frame: bytes) -> None:
        if frame and self._transport is not None:
            self._transport.write(LENGTH.pack(len(frame)) + frame)

    def _handshake_expired(self) -> None:
        self._end(f"there was no link within {self._limits.handshake_ms} ms")

    def _schedule_look(self) -> None:
        self._timer = self._loop.call_later(self._limits.keepalive_ms / 1000, self._look)

    def _look(self) -> None:
        """Send a keepalive where nothing was sent since the last look, and end a silent link.

        Looks are counted, not time: after this process has stood still there is one, and then the
        loop reads what came meanwhile.
        """
        self._silent_looks += 1
        if self._silent_looks * self._limits.keepalive_ms > self._limits.silence_ms:
            self._end(f"nothing came for {self._limits.silence_ms} ms")
            return
        assert self._transport is not None, "the link is open"
        if not self._has_sent and not self._transport.get_write_buffer_size():
            self._transport.write(KEEPALIVE)
        self._has_sent = False
        self._schedule_look()

    def _lost(self, reason: str) -> None:
        if self._handshake is None:
            self._end(reason or "the other node has closed the link")
        else:
            self._end(
                f"{reason or 'the connection was closed'} before the handshake was over: look into "
                "the log of the other node"
            )
