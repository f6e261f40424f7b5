"""The bytes of a client that was passed on: two connections, joined until one ends."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from leveret.cluster.passed_client import LeaderAddress

__all__ = ["ClientRelay"]

CLOSE_SECONDS = 60.0  # for one end to read what is left, and to end, when the other one has ended
BUFFERED_BYTES_MAX = 1 << 20  # that one end has not read: then the other one is not read, either


class ClientRelay:
    """Passes bytes between a client and the leader that it is connected `to`, until one ends."""

    def __init__(self, present: set[ClientRelay], to: LeaderAddress) -> None:
        self.to = to
        self._present = present
        self._ends = RelayEnd(self), RelayEnd(self)
        self._ends[0].other, self._ends[1].other = self._ends[1], self._ends[0]
        present.add(self)

    def client(self) -> RelayEnd:
        """Return the protocol of the client's connection."""
        return self._ends[0]

    def leader(self) -> RelayEnd:
        """Return the protocol of the connection to the leader."""
        return self._ends[1]

    def ended(self, end: RelayEnd) -> None:
        """End the other connection once what it was sent is written."""
        self._present.discard(self)
        end.other.close()

    def abort(self) -> None:
        """End both connections at once."""
        self._present.discard(self)
        for end in self._ends:
            end.abort()


class RelayEnd(asyncio.Protocol):
    """One of the two connections; it reads as long as the `other` one takes what it is sent."""

    other: RelayEnd

    def __init__(self, relay: ClientRelay) -> None:
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._early = b""  # what is to be sent before there is a connection
        self._is_over = False
        self._closing: asyncio.TimerHandle | None = None
        self.is_read = False  # to its end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to pass on what comes."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        if self._is_over:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES_MAX)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._early:
            self._transport.write(self._early)

    def write(self, data: bytes) -> None:
        """Send what the other end has read."""
        if self._transport is not None:
            self._transport.write(data)
        elif not self._is_over:
            self._early += data

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        self.other.write(data)

    def eof_received(self) -> bool:
        """Pass on that nothing more comes from this end; it may still be sent something."""
        self.is_read = True
        return not self.other.is_read and self.other.write_eof()

    def write_eof(self) -> bool:
        """Send the end of the input, if the connection can stay half open."""
        if self._transport is None or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        self._limit_end()
        return True

    def pause_writing(self) -> None:
        """Have the other end read nothing."""
        self.other.pause_reading()

    def resume_writing(self) -> None:
        """Have the other end read again."""
        self.other.resume_reading()

    def pause_reading(self) -> None:
        """Read nothing for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # of either, the end
        """End the other connection, too."""
        self._is_over, self._transport = True, None
        if self._closing is not None:
            self._closing.cancel()
        self._relay.ended(self)

    def close(self) -> None:
        """End the connection once all is written, or is not read in time."""
        self._is_over = True
        if self._transport is not None:
            self._transport.close()
            self._limit_end()

    def _limit_end(self) -> None:
        """Leave some time to end: who neither reads nor ends would keep its place for ever."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
