"""Sockets of clients: the shell with the buffers, timers and the loop around `Connection` machines.

PROXY headers and TLS handshakes, which precede AMQP on a socket, are in `leveret.amqp.acceptor`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from leveret.amqp.client_socket import ClientSocket
from leveret.amqp.connection import Connection
from leveret.amqp.deliveries import OUTBOX_BYTES_MAX
from leveret.amqp.handshake import ConnectionState
from leveret.amqp.handshakes import Handshakes
from leveret.amqp.methods import HEARTBEAT
from leveret.amqp.poller import BusyPoller
from leveret.amqp.unfinished import Unfinished
from leveret.core.access.permissions import is_loopback
from leveret.core.clients import Endpoints
from leveret.ports.authentication import attempt_source
from leveret.ports.callbacks import has_failed
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping

    from leveret.amqp.tls import TlsContexts
    from leveret.amqp.transport import LogLevel
    from leveret.broker.broker import Broker
    from leveret.config import Configuration
    from leveret.core.logs.log_writer import Committing
    from leveret.errors import AmqpError
    from leveret.ports.authentication import Rights


# Sockets beyond the limit of connections that may do the handshake to be told of it; those
# beyond these are closed without a word.
REFUSALS_MAX = 32
# Longest time for a peer to read the last output before its socket is closed anyway.
CLOSE_SECONDS_MAX = 10.0
# Half heartbeat intervals without a byte from the peer after which it counts as dead. RabbitMQ
# closes between two and three intervals.
SILENT_CHECKS_MAX = 5
EXPIRY_CHECK_SECONDS_MAX = 3600.0  # a clock that was set is noticed this late
LOGGERS = {name: logging.getLogger(f"leveret.{name}") for name in ("connection", "channel")}
HANDSHAKE_STATES = (
    ConnectionState.HEADER,
    ConnectionState.START,
    ConnectionState.TUNE,
    ConnectionState.OPEN,
)


async def committed(queues: Collection[Committing]) -> bool:
    """Wait until all publishes to `queues` so far are committed; False if some were lost."""
    return not queues or not await has_failed(*(queue.await_commit for queue in queues))


class AmqpProtocol(ClientSocket, asyncio.BufferedProtocol):
    """One socket: reads into the shared buffer, writes once a turn, sends and checks heartbeats.

    `endpoints` are those of a trusted PROXY header, if any; `tls` can name the user of the peer's
    certificate where the socket is one of TLS.
    """

    # More attributes than CPython keeps without a dictionary per instance: see LogWriter.
    __slots__ = (
        "__weakref__",
        "_admitted",
        "_awaited",
        "_clogged",
        "_closing",
        "_cut_because",
        "_deferred",
        "_expiry",
        "_handshake",
        "_has_begun",
        "_heartbeat",
        "_heartbeat_seconds",
        "_held",
        "_loop",
        "_silent_checks",
        "_sockets",
        "_stopping",
        "_tls",
        "_unserved",
        "certificate_login",
        "endpoints",
        "peer",
        "peer_is_loopback",
        "rights",
        "wall_ms",
    )

    def __init__(
        self,
        sockets: ClientSockets,
        endpoints: Endpoints | None = None,
        tls: TlsContexts | None = None,
    ) -> None:
        super().__init__(sockets.broker.turn, sockets.poller, sockets.stranger_buffer)
        self.certificate_login = ""  # the user that the peer's verified certificate names
        self.rights: Rights | None = None  # of a client within (leveret.amqp.in_process)
        self.endpoints = endpoints or Endpoints()
        self._tls = tls
        self._sockets = sockets
        self._loop = sockets.loop
        self.wall_ms = sockets.broker.timers.wall_ms
        self._admitted = False  # whether it may
        self._has_begun = False
        self._awaited: asyncio.Future[None] | None = None  # until it may, before a TLS handshake
        self._unserved = b""  # input of a stranger that waits for its turn
        self.peer = ""
        self.peer_is_loopback = False
        self._silent_checks = 0
        self._clogged: asyncio.Future[None] | None = None  # until the peer reads its answers
        self._deferred = False  # until others were served
        self._held = False  # while an alarm stands
        self._stopping = False
        self._cut_because = ""  # where this side has cut the socket
        self._heartbeat_seconds = 0
        self._handshake: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection, and begin or await its handshake."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        if self.endpoints == Endpoints():
            peer = self._transport.get_extra_info("peername") or ("unknown", 0)
            here = self._transport.get_extra_info("sockname") or ("unknown", 0)
            self.endpoints = Endpoints(peer[0], peer[1], here[0], here[1])
        self.peer = f"{self.endpoints.peer_host}:{self.endpoints.peer_port}"
        self.peer_is_loopback = is_loopback(self.endpoints.peer_host)
        if self._tls is None:
            plain = self._transport.get_extra_info("socket")
            self.send_directly(-1 if plain is None else plain.fileno())
        else:
            secured = self._transport.get_extra_info("ssl_object")
            self.certificate_login = self._tls.login(secured)
            self.endpoints = replace(self.endpoints, is_secure=True)
        self._transport.set_write_buffer_limits(
            high=self._sockets.configuration.write_high_water_bytes
        )
        self._sockets.protocols.add(self)
        if self.rights is not None:
            self._is_stranger = False
            self._buffer = self._sockets.buffer
            self._begin()
        elif self._admitted:  # before its TLS handshake
            self._begin()
        else:
            source = attempt_source(self.endpoints.peer_host)
            self._sockets.handshakes.begin(self, source)

    async def admission(self, peer_host: str) -> None:
        """Wait for admission to the TLS handshake, before there is a transport.

        Raises ConnectionAbortedError if too many wait.
        """
        self._awaited = self._loop.create_future()
        self._sockets.handshakes.begin(self, attempt_source(peer_host))
        await self._awaited

    def admit(self) -> None:
        """Begin the AMQP handshake, or let the TLS handshake begin (see Stranger)."""
        self._admitted = True
        if self._transport is not None:
            self._begin()
            self._resume_reading()
        elif self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def turn_away(self) -> None:
        """Close the socket (see Stranger)."""
        if self._transport is not None:
            self._transport.abort()
        elif self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(ConnectionAbortedError("too many wait to shake hands"))

    def _begin(self) -> None:
        """Begin the handshake and start its time limit."""
        sockets = self._sockets
        self._has_begun = True
        self._connection = Connection(
            self, sockets.broker, sockets.configuration, sockets.unfinished
        )
        self._handshake = self._loop.call_later(
            sockets.configuration.handshake_timeout_seconds, self._handshake_expired
        )
        if self._unserved:
            sockets.handshakes.hear(self)

    def _keep(self, nbytes: int) -> None:
        """Buffer what a stranger has sent until its turn, at most one frame's size.

        It is read meanwhile, because only that shows whether it has hung up.
        """
        is_heard = bool(self._unserved)
        self._unserved += self._buffer[:nbytes]
        self._buffer = self._buffer[nbytes:]
        if not self._buffer and self._transport is not None:
            self._transport.pause_reading()
        if self._has_begun and not is_heard:
            self._sockets.handshakes.hear(self)

    def serve(self) -> None:
        """Process the buffered bytes of a stranger (see Stranger)."""
        data, self._unserved = self._unserved, b""
        if self._transport is None or not data:
            return
        if self._is_stranger:
            self._buffer = self._sockets.stranger_buffer
        self._turn.begin_read()
        try:
            self._connection.received(memoryview(data))
        finally:
            self._turn.end_read(more=False)
        self._resume_reading()

    def opened(self) -> None:
        """Lift the limits of strangers, because the connection is open (see Transport)."""
        self._is_stranger = False
        self._buffer = self._sockets.buffer
        if self._unserved and self._transport is not None:
            self._transport.pause_reading()  # the buffered input comes first
        self._sockets.handshakes.end(self)
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def _pace(self) -> None:
        """Stop reading after a full buffer, so that this turn's consumers are served first.

        The loop would otherwise keep reading from a publisher that sends faster than the consumers
        consume, many buffers long, and every queue would grow while its consumers wait.
        """
        if not self._paced and self._transport is not None:
            self._paced = True
            self._transport.pause_reading()
            self.touch()

    def eof_received(self) -> bool:
        """Close the connection, because the peer sends no more."""
        if self._has_begun:
            self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that the connection holds."""
        for timer in (self._handshake, self._heartbeat, self._closing, self._expiry):
            if timer is not None:
                timer.cancel()
        self._sockets.protocols.discard(self)
        self._sockets.handshakes.end(self)
        self.writable = False
        self._transport = None
        self._unclog()
        self._unserved = b""
        if not self._has_begun:
            return
        if self._cut_because:
            self._connection.lost(self._cut_because, cut=True)
        else:
            self._connection.lost(one_line(exc) if exc else "")
        del self._connection  # break the reference cycle

    def pause_writing(self) -> None:
        """Stop deliveries: the peer does not read fast enough."""
        self.writable = False

    def resume_writing(self) -> None:
        """Resume deliveries and reading: the peer has caught up."""
        self.writable = True
        self._unclog()
        self._resume_reading()
        self._connection.channels.wake_consumers()

    def _unclog(self) -> None:
        if self._clogged is not None:
            clogged, self._clogged = self._clogged, None
            clogged.set_result(None)

    # -- what the connection asks for (leveret.amqp.connection.Transport)

    monotonic_ns = staticmethod(time.monotonic_ns)

    def _check_unread(self) -> None:
        """Stop reading from a peer that sends requests and does not read the answers.

        Deliveries alone never get here, since they stop at the high-water mark: a client that sends
        before it reads what it was delivered must not be kept from sending.
        """
        transport = self._transport
        if transport is None or self._clogged is not None:
            return
        unread_bytes = transport.get_write_buffer_size()
        if unread_bytes > self._sockets.unread_bytes_max:
            self._clogged = self._loop.create_future()
            transport.pause_reading()

    def defer(self) -> None:
        """Continue with what was read after the loop has polled all sockets."""
        if not self._deferred and self._transport is not None:
            self._deferred = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._deferred = False
        if self._transport is None:
            return
        self._turn.begin_read()
        try:
            self._connection.go_on()
        finally:
            self._turn.end_read(more=True)
        self._resume_reading()

    async def others(self) -> None:
        """Wait until the loop has polled all sockets."""
        await asyncio.sleep(0)

    async def room(self) -> None:
        """Send the output and wait until the peer has read enough of it."""
        self.send_pending()
        if self._clogged is not None:
            await self._clogged

    def wait_for(self, work: Awaitable[None]) -> None:
        """Stop reading until `work` is done, then call `resumed(error)`."""
        if self._transport is not None:
            self._transport.pause_reading()
        self._sockets.spawn(self._wait(work))

    async def _wait(self, work: Awaitable[None]) -> None:
        error: Exception | None = None
        try:
            await work
        except Exception as caught:  # noqa: BLE001  # the connection answers it
            error = caught
        if self._transport is not None:
            self._connection.resumed(error)
        error = None  # its traceback has this frame: nothing is to wait for the garbage collector
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Resume reading unless another reason to pause is left."""
        if self._transport is None:
            return
        pausing = self._connection.is_waiting or self._paced or self._stopping or self._held
        pausing = pausing or self._deferred or not self._buffer
        pausing = pausing or bool(self._unserved and not self._is_stranger)
        if not pausing and self._clogged is None:
            self._transport.resume_reading()

    def hold(self, *, held: bool) -> None:
        """Stop reading while `held`."""
        self._held = held
        if not held:
            self._resume_reading()
        elif self._transport is not None:
            self._transport.pause_reading()

    async def committed(self, queues: Collection[Committing]) -> bool:
        """Wait until all publishes to `queues` so far are committed; False if some were lost."""
        return await committed(queues)

    def log(self, category: str, level: LogLevel, text: str, fields: Mapping[str, object]) -> None:
        """Log a line about a client; in-process clients get their errors themselves instead."""
        if self.rights is None and LOGGERS[category].isEnabledFor(level):
            about = {"source": attempt_source(self.endpoints.peer_host), "fields": fields}
            LOGGERS[category].log(level, "%s", text, extra=about)

    async def pause(self, seconds: float) -> None:
        """Sleep for this time."""
        await asyncio.sleep(seconds)

    def close(self, *, after_seconds: float = 0) -> None:
        """Send the output and close, at once or when the peer has not answered in time."""
        if not self._has_begun:
            self.turn_away()
            return
        if self._closing is not None:
            self._closing.cancel()
        # A peer that reads nothing must not keep the socket: what it did not take is dropped then.
        self._closing = self._loop.call_later(after_seconds or CLOSE_SECONDS_MAX, self._abort)
        if not after_seconds:
            self.send_pending()
            if self._transport is not None:
                self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def stop_reading(self) -> None:
        """Stop reading for good, because the node stops."""
        self._stopping = True
        if self._transport is not None:
            self._transport.pause_reading()

    def shut(self, error: AmqpError) -> None:
        """Close the connection with `error`, because the node stops."""
        if not self._has_begun:
            self.turn_away()
            return
        self._connection.shut(error)
        self.send_pending()
        self._stopping = False
        self._resume_reading()

    # -- time

    def _handshake_expired(self) -> None:
        if self._connection.state in HANDSHAKE_STATES and self._transport is not None:
            seconds = self._sockets.configuration.handshake_timeout_seconds
            self._cut_because = f"it did not finish its handshake in time, {seconds:g} s"
            self._transport.abort()

    def set_heartbeat(self, seconds: int) -> None:
        """Check twice an interval: send if nothing was sent, close after two silent intervals."""
        self._heartbeat_seconds = seconds
        if seconds:
            self._heartbeat = self._loop.call_later(seconds / 2, self._beat)

    def set_expiry(self, at_ms: int | None) -> None:
        """Set the expiry timer; it may fire early, as clocks are set and timers have limits."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if at_ms is not None:
            seconds = min((at_ms - self.wall_ms()) / 1000, EXPIRY_CHECK_SECONDS_MAX)
            self._expiry = self._loop.call_later(max(seconds, 0), partial(self._expire, at_ms))

    def _expire(self, at_ms: int) -> None:
        if self.wall_ms() >= at_ms:
            self._connection.credential_expired()
        else:
            self.set_expiry(at_ms)

    def _beat(self) -> None:
        if self._transport is None:
            return
        if not self._sent:
            self._transport.write(HEARTBEAT)
        self._sent = False
        # The byte heard last came up to one check before the first silent one: five of them are
        # between two and a half and three intervals.
        paused = not self._transport.is_reading()
        self._silent_checks = 0 if self._heard or paused else self._silent_checks + 1
        self._heard = False
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self._cut_because = f"missed heartbeats, timeout {self._heartbeat_seconds} s"
            self._transport.abort()
            return
        self._heartbeat = self._loop.call_later(self._heartbeat_seconds / 2, self._beat)


class ClientSockets:
    """Sockets of all clients of a node, and what they share: buffers, limits, a busy poller.

    `spawn` starts a task.
    """

    def __init__(
        self,
        broker: Broker,
        configuration: Configuration,
        spawn: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        self.broker = broker
        self.configuration = configuration
        self.spawn = spawn
        self.loop = asyncio.get_running_loop()
        self.protocols: set[AmqpProtocol] = set()
        self.poller = BusyPoller(self.loop, configuration.busy_poll_microseconds)
        self.buffer = memoryview(bytearray(configuration.read_buffer_bytes))
        self.unfinished = Unfinished(
            configuration.node_unfinished_bytes_max,
            configuration.unfinished_stall_ms,
            broker.timers,
            lambda: bool(broker.alarms.reason),
        )
        self.stranger_buffer = self.buffer[: configuration.initial_frame_max]
        self.handshakes = Handshakes(
            configuration,
            self.loop.call_soon,
            time.monotonic_ns,
            configuration.connection_turn_microseconds * 1000,
            self._no_room_to_wait,
        )
        # Bytes that deliveries alone may leave unread on one connection; more must be answers.
        self.unread_bytes_max = (
            configuration.write_high_water_bytes
            + OUTBOX_BYTES_MAX
            + configuration.message_bytes_max
        )
        self.arriving = 0  # sockets that have not come as far as AMQP

    def has_room(self) -> bool:
        """Whether the limits allow one more connection."""
        open_count = len(self.protocols) + self.arriving
        if open_count < self.configuration.connections_max + REFUSALS_MAX:
            return True
        LOGGERS["connection"].warning(
            "refused a connection: %d are open, more than the limit (connections_max)", open_count
        )
        return False

    def _no_room_to_wait(self, address: str) -> None:
        self.broker.feature_counters.handshakes_refused += 1
        LOGGERS["connection"].warning(
            "closed a connection from %s before its handshake: %d others wait for theirs "
            "(handshakes_waiting_max)",
            address,
            self.handshakes.waiting_count,
            extra={"source": address},
        )

    def protocol(self, endpoints: Endpoints | None, tls: TlsContexts | None) -> AmqpProtocol:
        """Return the AMQP protocol of an accepted socket."""
        return AmqpProtocol(self, endpoints, tls)
