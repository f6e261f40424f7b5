"""Socket of a link: the shell with the buffers, timers and the loop around its machines."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Final, Protocol, cast

from leveret.links.errors import CloseReason, HandshakeError, LinkProtocolError
from leveret.links.events import HeartbeatAnswered, LinkClosed
from leveret.links.heartbeats import Heartbeats, Pulse
from leveret.links.machine import LinkMachine
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.links.buffers import MessageBuffers
    from leveret.links.counters import PeerCounters
    from leveret.links.events import LinkEvent
    from leveret.links.handshake import LinkAgreement, LinkHandshake
    from leveret.links.settings import LinkSettings

__all__ = ["LinkOwner", "LinkSocket"]

logger = logging.getLogger(__name__)

HANDSHAKE_BYTES: Final = 8 * 1024  # read at a time of somebody who may be anybody
KEEPALIVE_IDLE_SECONDS: Final = 30


class LinkOwner(Protocol):
    """User of a socket's link: a peer that was dialed, or the handlers of one that dials."""

    def open(self, link: LinkSocket, agreement: LinkAgreement) -> PeerCounters:
        """Note that the handshake succeeded. Returns the counters to be kept."""
        ...

    def happened(self, event: LinkEvent) -> None:
        """Process an event of the machine."""
        ...

    def drained(self) -> None:
        """Note that the queue is full no more."""
        ...

    def writable_again(self, stream_id: int) -> None:
        """Note that a stream takes messages again."""
        ...

    def lost(self, reason: str, *, is_unresponsive: bool) -> None:
        """Note that the link is gone, or was never there; called once."""
        ...


class LinkSocket(asyncio.BufferedProtocol):
    """One connection between two nodes."""

    def __init__(
        self,
        owner: LinkOwner,
        handshake: LinkHandshake,
        settings: LinkSettings,
        buffers: MessageBuffers,
        *,
        is_dialer: bool,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.machine: LinkMachine  # once the handshake has succeeded
        self.address = "unknown"
        self.is_open = False
        self._owner = owner
        self._handshake: LinkHandshake | None = handshake
        self._handshake_buffer = memoryview(bytearray(HANDSHAKE_BYTES))
        self._settings = settings
        self._buffers = buffers
        self._is_dialer = is_dialer
        self._monotonic_ns = monotonic_ns
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._heartbeats: Heartbeats
        self._counters: PeerCounters
        self._timer: asyncio.TimerHandle | None = None  # of the handshake, heartbeat or end
        self._touched = False
        self._writable = True
        self._was_full = False
        self._turn_bytes = 0  # read since others had their turn
        self._closing = False
        self._reason = ""
        self._is_unresponsive = False
        self._is_lost = False

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self.address = f"{peer[0]}:{peer[1]}"
        _set_options(transport.get_extra_info("socket"), self._settings)
        self._transport.set_write_buffer_limits(high=self._settings.write_high_water_bytes)
        self._timer = self._loop.call_later(
            self._settings.handshake_ms_max / 1000, self._handshake_expired
        )
        self._send_handshake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the machine knows better
        """Return where the next bytes are to be put."""
        return self.machine.buffer() if self._handshake is None else self._handshake_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read."""
        if self._handshake is not None:
            self._shake_hands(self._handshake, nbytes)
            return
        self._heartbeats.heard = True
        self._receive(nbytes)
        self._turn_bytes += nbytes
        if self._turn_bytes >= self._settings.turn_bytes_max and self._transport is not None:
            # The loop would otherwise read on from a socket that is filled as fast as it is read.
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._turn_bytes = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Close: the peer sends no more."""
        return False

    def pause_writing(self) -> None:
        """Keep further output in the machine, where it can be overtaken."""
        self._writable = False

    def resume_writing(self) -> None:
        """Send on."""
        self._writable = True
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._be_lost(self._reason or (one_line(exc) if exc else "the other side hung up"))

    def _be_lost(self, reason: str) -> None:
        self.is_open = False
        if not self._is_lost:
            self._is_lost = True
            self._owner.lost(reason, is_unresponsive=self._is_unresponsive)

    # -- the handshake

    def _handshake_expired(self) -> None:
        self.abort("the handshake took too long")

    def _shake_hands(self, handshake: LinkHandshake, nbytes: int) -> None:
        try:
            handshake.received(self._handshake_buffer[:nbytes])
        except HandshakeError as error:
            self._reason = str(error)
            self._send_handshake()
            self._end()
            self._be_lost(self._reason)
            return
        self._send_handshake()
        if handshake.agreement is not None and self._transport is not None:
            self._handshake = None
            self._open(handshake.agreement, handshake.rest)

    def _send_handshake(self) -> None:
        handshake = self._handshake
        if handshake is not None and handshake.output and self._transport is not None:
            self._transport.write(handshake.output)
            handshake.output = b""

    def _open(self, agreement: LinkAgreement, rest: bytes) -> None:
        del self._handshake_buffer
        if self._timer is not None:
            self._timer.cancel()
        self._counters = self._owner.open(self, agreement)
        self.machine = LinkMachine(
            self._settings,
            agreement.limits,
            self._counters,
            self._buffers,
            is_dialer=self._is_dialer,
        )
        self.is_open = True
        self._heartbeats = Heartbeats(self._settings, self._monotonic_ns())
        self._beat()
        while rest:
            room = self.machine.buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self._receive(count)

    # -- an open link

    def _receive(self, nbytes: int) -> None:
        machine = self.machine
        try:
            machine.received(nbytes)
        except LinkProtocolError as error:
            self._tell_events(machine)
            self._break(error)
            return
        self._tell_events(machine)
        if machine.has_output:
            self.touch()

    def _tell_events(self, machine: LinkMachine) -> None:
        events = machine.events
        if not events:
            return
        machine.events = []
        happened = self._owner.happened
        for event in events:
            if self._is_lost:
                return
            if isinstance(event, HeartbeatAnswered):
                self._note_round_trip(event)
            elif isinstance(event, LinkClosed):
                self.abort(f"the other side closes the link: {one_line(event.text)}")
            else:
                happened(event)
        if machine.writable_again:
            self._tell_writable(machine)

    def _tell_writable(self, machine: LinkMachine) -> None:
        again, machine.writable_again = machine.writable_again, []
        for stream_id in again:
            self._owner.writable_again(stream_id)

    def _note_round_trip(self, event: HeartbeatAnswered) -> None:
        took_ns = self._heartbeats.answered(event.sent_ns, self._monotonic_ns())
        if took_ns is not None:
            self._counters.round_trip_ns = took_ns

    def _break(self, error: LinkProtocolError) -> None:
        """Close the link because of what the peer sent."""
        logger.warning(
            "closed the link with %s: %s; if it happens again, compare the releases of both nodes "
            "and look for a network that alters data",
            self.address,
            one_line(error.text),
            extra={"source": self.address.rpartition(":")[0]},
        )
        self.close(error.reason, error.text)

    def _beat(self) -> None:
        now_ns = self._monotonic_ns()
        pulse = self._heartbeats.beat(now_ns)
        if pulse is not Pulse.ALIVE:
            self._is_unresponsive = True
            self.abort(pulse.value)
            return
        self._timer = self._loop.call_later(self._settings.heartbeat_ms / 1000, self._beat)
        self.machine.ping(now_ns)
        self.touch()

    # -- output

    def touch(self) -> None:
        """Schedule the output to be sent in this turn of the loop."""
        if not self._touched and self._writable:
            self._touched = True
            self._loop.call_soon(self._flush_touched)

    def _flush_touched(self) -> None:
        self._touched = False
        self._flush()

    def _flush(self) -> None:
        """Send what the transport takes; after `turn_bytes_max`, others have their turn."""
        transport = self._transport
        if transport is None or not self.is_open:
            return
        machine, left = self.machine, self._settings.turn_bytes_max
        while self._writable and machine.has_output:
            if left <= 0:
                self.touch()
                break
            buffers = machine.take(self._settings.write_high_water_bytes)
            sent = sum(map(len, buffers))
            self._counters.bytes_sent += sent
            left -= sent
            if len(buffers) == 1:
                transport.write(buffers[0])
            else:
                transport.writelines(buffers)
        if machine.writable_again:
            self._tell_writable(machine)
        self._watch_fill(machine)

    def _watch_fill(self, machine: LinkMachine) -> None:
        queued_bytes = self._counters.queued_bytes = machine.queued_bytes
        if self._was_full and queued_bytes <= self._settings.queued_bytes_max // 2:
            self._was_full = False
            self._owner.drained()

    @property
    def is_full(self) -> bool:
        """Whether too much is queued; `drained` of the owner is called once it is so no more."""
        if self.machine.is_full:
            self._was_full = True
        return self._was_full

    # -- the end

    def close(self, reason: CloseReason, text: str) -> None:
        """Send why, and close the socket once that is sent."""
        self._reason = self._reason or text
        if self.is_open and self._transport is not None:
            self.is_open = False
            self.machine.close(reason, text)
            self._transport.writelines(self.machine.take(1))
        self._end()
        self._be_lost(self._reason)  # the transport says so later, perhaps when the peer reads

    def _end(self) -> None:
        """Close the socket once its output is sent, and soon in any case."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._closing:
            self._closing = True
            self._transport.pause_reading()
            self._transport.close()
            self._timer = self._loop.call_later(
                self._settings.close_ms_max / 1000, self.abort, self._reason
            )

    def abort(self, reason: str) -> None:
        """Close the socket at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()
        # The transport says so in a later turn: nobody is to use the link until then.
        self._be_lost(self._reason)


def _set_options(connection: socket.socket, settings: LinkSettings) -> None:
    """Set what the kernel does by itself: no delay, and no waiting for a peer that is gone."""
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, settings.answer_ms_max),
        (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, settings.unsent_bytes_max),
    ]
    for level, option, value in options:
        connection.setsockopt(level, option, value)
