"""A client of any AMQP 0-9-1 broker, over a socket or within this process.

    client = await connect(address, events)         the handshake; raises ClientError
    await client.open_channel(1)
    await client.call(queue_declare, 1)             an answer; raises ClientClosedError
    client.send(basic_ack, 1); client.publish(…)    without one

What comes by itself (deliveries, confirms, blocks, the end) is told to `events`, in order. Who
cannot take more says `pause()`. Heartbeats are sent and expected as negotiated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from pamqp import commands

from leveret.amqp.client_frames import ClientFrames, Content
from leveret.amqp.handshake import PROTOCOL_HEADER
from leveret.amqp.methods import HEARTBEAT, build, encode_content, encode_method
from leveret.errors import AmqpError, LeveretError
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from pamqp import base

    from leveret.amqp.client_frames import Received

__all__ = ["AmqpClient", "ClientClosedError", "ClientError", "ClientEvents", "ClientLogin"]

READ_BYTES: Final = 16 * 1024  # some hundred small messages: milliseconds of the event loop
FRAME_BYTES_MAX: Final = 131_072  # RabbitMQ's default
FRAME_BYTES_MIN: Final = 4096
WRITE_BYTES_MAX: Final = 256 * 1024  # unsent, until events are told to wait
ANSWER_SECONDS_MAX: Final = 60.0
CLOSE_SECONDS_MAX: Final = 2.0
SILENT_CHECKS_MAX: Final = 5  # half intervals: between two and three heartbeats
CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class ClientError(LeveretError):
    """The connection failed or ended; the text says why, without secrets."""


class ClientClosedError(ClientError):
    """The broker has closed the channel or the connection, with AMQP's reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}" if not text.startswith(str(code)) else text)
        self.code = code


class ClientLogin(NamedTuple):
    """Login, and the name that the broker shows of the connection."""

    vhost: str
    user: str
    password: str
    mechanism: str  # plain, amqplain or external
    heartbeat_seconds: int
    connection_name: str


class ClientEvents(Protocol):
    """Told what comes by itself; none of these may raise."""

    def delivered(self, content: Content) -> None:
        """Take a message of a consumer."""

    def confirmed(self, method: commands.Basic.Ack | commands.Basic.Nack) -> None:
        """Take a confirm, or a refusal."""

    def returned(self) -> None:
        """Take that a mandatory message was not routed."""

    def blocked(self, *, is_blocked: bool) -> None:
        """Take that the broker reads no more publishes, or reads them again."""

    def writable(self, *, is_writable: bool) -> None:
        """Take that the connection should be sent no more, or may be again."""

    def ended(self, reason: str) -> None:
        """Take that the connection, a channel or a consumer has ended; called once."""


class AmqpClient(asyncio.BufferedProtocol):
    """Client's side of one connection."""

    def __init__(self, events: ClientEvents) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._frames = ClientFrames(FRAME_BYTES_MAX)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[Any] | None = None
        self._lost = self._loop.create_future()
        self._frame_max = FRAME_BYTES_MAX
        self._is_open = False  # after the handshake, until it ends
        self._reason = ""  # why it has ended
        self._paused: set[str] = set()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beat_seconds = 0.0
        self._sent = self._heard = False
        self._silent_checks = 0

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport (see asyncio.BaseProtocol)."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # it is as small on purpose
        """Return the buffer to read into (see asyncio.BufferedProtocol)."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process what was read (see asyncio.BufferedProtocol)."""
        self._heard = True
        try:
            for channel, received in self._frames.received(self._buffer[:nbytes]):
                self._take(channel, received)
        except AmqpError as error:
            self._fail(f"the broker sent what is not AMQP: {error.explanation}")
            return
        if nbytes == len(self._buffer) and not self._transport.is_closing():
            # Let others of the loop have their turn, where the peer sends as fast as it can.
            self._pause("turn")
            self._loop.call_soon(self._resume, "turn")

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything (see asyncio.BaseProtocol)."""
        self._end(self._reason or (f"connection lost: {exc}" if exc else "connection lost"))
        if not self._lost.done():
            self._lost.set_result(None)

    def eof_received(self) -> bool:
        """Close (see asyncio.Protocol)."""
        return False

    def pause_writing(self) -> None:
        """Tell that enough is unsent (see asyncio.BaseProtocol)."""
        self._events.writable(is_writable=False)

    def resume_writing(self) -> None:
        """Tell that more can be sent (see asyncio.BaseProtocol)."""
        self._events.writable(is_writable=True)

    def pause(self) -> None:
        """Read no more for now: the peer is slowed down."""
        self._pause("events")

    def resume(self) -> None:
        """Read again."""
        self._resume("events")

    def _pause(self, reason: str) -> None:
        self._paused.add(reason)
        self._transport.pause_reading()

    def _resume(self, reason: str) -> None:
        self._paused.discard(reason)
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- what comes

    def _take(self, channel: int, received: Received) -> None:
        match received:
            case Content(commands.Basic.Deliver()):
                self._events.delivered(received)
            case Content():
                self._events.returned()
            case commands.Basic.Ack() | commands.Basic.Nack():
                self._events.confirmed(received)
            case commands.Connection.Blocked() | commands.Connection.Unblocked():
                self._events.blocked(is_blocked=isinstance(received, commands.Connection.Blocked))
            case commands.Basic.Cancel():
                self._end("the queue is gone: the broker has cancelled the consumer")
            case commands.Channel.Close():
                self.send(commands.Channel.CloseOk(), channel)
                self._refused(received)
            case commands.Connection.Close():
                self.send(commands.Connection.CloseOk())
                self._refused(received)
                self._end(str(received.reply_text))
                self._transport.close()
            case commands.Channel.Flow():
                self.send(commands.Channel.FlowOk(received.active), channel)
            case _:
                self._answered(received)

    def _answered(self, answer: Any) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _refused(self, close: Any) -> None:
        """Give a close to who waits for an answer, else end the whole connection."""
        error = ClientClosedError(close.reply_code or 0, str(close.reply_text))
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        else:
            self._end(str(error))

    def _fail(self, reason: str) -> None:
        self._end(reason)
        self._transport.abort()

    def _end(self, reason: str) -> None:
        """Tell who waits, or the events, that it has ended; once."""
        self._reason = self._reason or reason
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ClientError(self._reason))
        if self._is_open:
            self._is_open = False
            self._events.ended(self._reason)

    # -- what is sent

    async def open(self, login: ClientLogin) -> None:
        """Do the handshake and open the virtual host. Raises ClientError, TimeoutError."""
        start = await self._ask(PROTOCOL_HEADER)
        mechanism = login.mechanism.upper()
        if not isinstance(start, commands.Connection.Start):
            raise ClientError(f"the broker began with {start.name}")
        offered_mechanisms: Any = start.mechanisms  # long strings are bytes (see methods)
        if mechanism.encode() not in offered_mechanisms.split():
            raise ClientError(f"the broker does not offer the mechanism {mechanism}")
        properties: dict[str, Any] = {
            "product": "Leveret shovel",
            "connection_name": login.connection_name,
            "capabilities": CAPABILITIES,
        }
        start_ok = commands.Connection.StartOk(properties, mechanism, _response(login), "en_US")
        tune = await self.call(start_ok)
        if not isinstance(tune, commands.Connection.Tune):
            raise ClientError(f"the broker answered a login with {tune.name}")
        self._frame_max = min(tune.frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        if self._frame_max < FRAME_BYTES_MIN:
            raise ClientError(f"the broker allows frames of {self._frame_max} bytes only")
        self._frames.frame_max = self._frame_max
        offered, wanted = tune.heartbeat or 0, login.heartbeat_seconds
        heartbeat = min(offered, wanted) if offered and wanted else max(offered, wanted)
        self.send(commands.Connection.TuneOk(tune.channel_max, self._frame_max, heartbeat))
        opening = build(
            commands.Connection.Open, virtual_host=login.vhost, capabilities="", insist=False
        )
        await self.call(opening)
        self._is_open = True
        if heartbeat:
            self._beat_seconds = heartbeat / 2
            self._heartbeat = self._loop.call_later(self._beat_seconds, self._beat)

    async def open_channel(self, channel: int) -> None:
        """Open a channel. Raises ClientError, TimeoutError."""
        await self.call(commands.Channel.Open(), channel)

    async def call(self, method: base.Frame, channel: int = 0) -> Any:
        """Send a method and return its answer; one at a time. Raises ClientError, TimeoutError."""
        return await self._ask(encode_method(channel, method))

    async def _ask(self, data: bytes) -> Any:
        if self._reason:
            raise ClientError(self._reason)
        self._answer = self._loop.create_future()
        self._write(data)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._answer
        finally:
            self._answer = None

    def send(self, method: base.Frame, channel: int = 0) -> None:
        """Send a method that has no answer."""
        self._write(encode_method(channel, method))

    def publish(self, method: base.Frame, header: bytes, body: bytes, channel: int) -> None:
        """Send a message: basic.publish, content header payload and body."""
        self._write(encode_content(channel, method, header, body, self._frame_max))

    def _write(self, data: bytes) -> None:
        self._sent = True
        if not self._transport.is_closing():
            self._transport.write(data)

    async def close(self) -> bool:
        """Close in order, as far as the broker answers in time; return whether it has.

        What was sent before is processed then.
        """
        self._is_open = False  # events are told nothing of it
        is_closed = False
        self._paused.clear()
        if not self._reason and not self._transport.is_closing():
            self._transport.resume_reading()
            try:
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self.call(commands.Connection.Close(200, "Goodbye", 0, 0))
                    is_closed = True
            except (ClientError, TimeoutError):
                pass
        self.abort()
        return is_closed

    def abort(self) -> None:
        """Cut the connection, if there is one."""
        self._is_open = False
        self._end("closed")
        if hasattr(self, "_transport"):  # none was made before the attempt ended
            self._transport.abort()

    def _beat(self) -> None:
        if not self._sent:
            self._transport.write(HEARTBEAT)
        self._sent = False
        silent = not self._heard and not self._paused
        self._silent_checks = self._silent_checks + 1 if silent else 0
        self._heard = False
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self._fail("heartbeat timeout")
            return
        self._heartbeat = self._loop.call_later(self._beat_seconds, self._beat)


def _response(login: ClientLogin) -> str:
    """Return the response of a SASL mechanism."""
    if login.mechanism == "external":
        return ""
    if login.mechanism == "amqplain":
        table = encode_table({"LOGIN": login.user, "PASSWORD": login.password})[4:]
        return cast("str", table)  # the octets of a long string, which pamqp calls text
    return f"\0{login.user}\0{login.password}"
