"""In-process clients: the HTTP API publishes and gets messages over AMQP in memory.

So everything that applies to clients applies to it: permissions, limits and rates, all features of
messages and queues, and the texts of errors. Such a client is authenticated before it connects.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pamqp import commands

from leveret.amqp.client_frames import ClientFrames, Content
from leveret.amqp.handshake import PROTOCOL_HEADER
from leveret.amqp.methods import build, encode_content, encode_method
from leveret.amqp.rate_hold import OVER_RATE
from leveret.core.clients import Endpoints
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.sessions import Got, OverRateError, RejectedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pamqp import base

    from leveret.amqp.sockets import AmqpProtocol, ClientSockets
    from leveret.ports.authentication import Rights

__all__ = ["InProcessClient", "InProcessClients"]

CHANNEL = 1
# Longest time to wait for one answer; an alarm may hold a publisher for longer.
ANSWER_SECONDS_MAX = 10.0
# Longest time that a rate limit may hold it, since HTTP clients can retry. It is more than the
# second for which the API still lets a publish begin, and the quarter of one that a rate gathers.
HELD_SECONDS_MAX = 1.5
CAPABILITIES = {"basic.nack": True, "publisher_confirms": True, "connection.blocked": True}


class MemoryTransport(asyncio.Transport):
    """Transport of an in-process client: what is written reaches `client` at once."""

    def __init__(self, client: InProcessClient) -> None:
        super().__init__()
        self._client = client
        self._protocol: AmqpProtocol
        self._buffer: memoryview
        self._unread = bytearray()
        self._reading = True
        self._closing = False

    def attach(self, protocol: AmqpProtocol, buffer: memoryview) -> None:
        """Connect the protocol; it reads from `buffer`, which all protocols share."""
        self._protocol, self._buffer = protocol, buffer
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        """Pass the client's bytes to the node; call it in a task, not while a socket is read."""
        self._unread += data
        self._read()

    def _read(self) -> None:
        while self._unread and self._reading and not self._closing:
            count = min(len(self._unread), len(self._buffer))
            self._buffer[:count] = self._unread[:count]
            del self._unread[:count]
            self._protocol.buffer_updated(count)

    def pause_reading(self) -> None:
        """Stop passing bytes to the node (see asyncio.ReadTransport)."""
        self._reading = False

    def resume_reading(self) -> None:
        """Pass bytes to the node again (see asyncio.ReadTransport)."""
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._read)

    def is_reading(self) -> bool:
        """Whether bytes are passed to the node (see asyncio.ReadTransport)."""
        return self._reading

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pass the node's bytes to the client (see asyncio.WriteTransport)."""
        self._client.received(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Pass the node's bytes to the client (see asyncio.WriteTransport)."""
        for data in list_of_data:
            self._client.received(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the client takes all that is written at once."""

    def get_write_buffer_size(self) -> int:
        """Return 0: the client takes all that is written at once."""
        return 0

    def is_closing(self) -> bool:
        """Whether the transport is closed or about to be (see asyncio.BaseTransport)."""
        return self._closing

    def close(self) -> None:
        """Close in the next pass of the loop (see asyncio.BaseTransport)."""
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._lose)

    abort = close

    def drop(self) -> None:
        """Close at once; input that the node has not processed is dropped."""
        if not self._closing:
            self._closing = True
            self._lose()

    def _lose(self) -> None:
        self._protocol.connection_lost(None)
        self._client.lost()


class InProcessClient:
    """Client's side of one in-process connection (see leveret.ports.sessions.Session)."""

    def __init__(self) -> None:
        self.transport = MemoryTransport(self)
        self._frames = ClientFrames()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._frame_max = 0
        self._confirming = False
        self._over_rate = False  # the node has said so, and not yet that it goes on
        self._patience: asyncio.Timeout | None = None  # while an answer is awaited

    # -- what comes

    def received(self, data: bytes | bytearray | memoryview) -> None:
        """Process bytes from the node; whole frames are handled, the rest is kept."""
        for _, answer in self._frames.received(data):
            if isinstance(answer, (commands.Connection.Blocked, commands.Connection.Unblocked)):
                self._hear(getattr(answer, "reason", ""))
            else:
                self._answers.put_nowait(answer)

    def _hear(self, reason: str) -> None:
        """Note connection.blocked, or unblocked (empty `reason`); move the deadline to match."""
        self._over_rate = reason.startswith(OVER_RATE)
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(self._answer_by())

    def _answer_by(self) -> float:
        seconds = HELD_SECONDS_MAX if self._over_rate else ANSWER_SECONDS_MAX
        return asyncio.get_running_loop().time() + seconds

    def lost(self) -> None:
        """End all waiting for answers: the connection has ended."""
        self._answers.put_nowait(None)

    # -- what is asked

    async def open(self, vhost: str) -> None:
        """Do the handshake, open a virtual host and a channel."""
        self.transport.feed(PROTOCOL_HEADER)
        await self._answer()
        properties: dict[str, Any] = {"product": "Leveret HTTP API", "capabilities": CAPABILITIES}
        tune = await self._call(commands.Connection.StartOk(properties, "PLAIN", "", "en_US"), 0)
        self._frame_max = tune.frame_max
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        await self._call(commands.Connection.Open(vhost), 0)
        await self._call(commands.Channel.Open())

    async def publish(self, exchange: str, routing_key: str, header: bytes, body: bytes) -> bool:
        """Publish a message and await its confirm; return whether it was routed (see Session)."""
        if not self._confirming:
            await self._call(commands.Confirm.Select())
            self._confirming = True
        method = build(
            commands.Basic.Publish,
            ticket=0,
            exchange=exchange,
            routing_key=routing_key,
            mandatory=True,
            immediate=False,
        )
        self.transport.feed(encode_content(CHANNEL, method, header, body, self._frame_max))
        answer = await self._answer()
        routed = not isinstance(answer, Content)
        if not routed:
            answer = await self._answer()
        if isinstance(answer, commands.Basic.Nack):
            raise RejectedError(406, "Unable to publish message. Check queue limits.")
        return routed

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        """Get one message by basic.get; None if the queue is empty (see Session)."""
        method = build(commands.Basic.Get, ticket=0, queue=queue, no_ack=no_ack)
        answer = await self._call(method)
        if not isinstance(answer, Content):
            return None
        method = answer.method
        return Got(
            method.delivery_tag,
            method.redelivered,
            method.exchange,
            method.routing_key,
            method.message_count,
            answer.header,
            answer.body,
        )

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Reject a message (see Session)."""
        self._send(commands.Basic.Reject(tag, requeue))

    async def close(self) -> None:
        """Close the connection; unsettled messages return to their queues."""
        if not self.transport.is_closing():
            self._send(commands.Connection.Close(200, "", 0, 0), 0)
            while await self._next() is not None:
                pass

    def _send(self, method: base.Frame, channel: int = CHANNEL) -> None:
        self.transport.feed(encode_method(channel, method))

    async def _call(self, method: base.Frame, channel: int = CHANNEL) -> Any:
        self._send(method, channel)
        return await self._answer()

    async def _answer(self) -> Any:
        answer = await self._next()
        if isinstance(answer, commands.Channel.Close):
            self._send(commands.Channel.CloseOk())
            raise ChannelError(answer.reply_code or 0, answer.reply_text)
        if isinstance(answer, commands.Connection.Close):
            self._send(commands.Connection.CloseOk(), 0)
            raise ConnectionClosingError(answer.reply_code or 0, answer.reply_text)
        if answer is None:
            raise ConnectionClosingError(320, "CONNECTION_FORCED - the node is stopping")
        return answer

    async def _next(self) -> Any:
        while True:
            try:
                async with asyncio.timeout_at(self._answer_by()) as self._patience:
                    return await self._answers.get()
            except TimeoutError:
                if not self._over_rate:
                    raise
                if not self.transport.is_reading():
                    self.transport.drop()
                    raise OverRateError from None
                self._over_rate = False  # the node reads again, and will send connection.unblocked
            finally:
                self._patience = None


class InProcessClients:
    """Opens in-process connections to this node."""

    def __init__(self, sockets: ClientSockets) -> None:
        self._sockets = sockets

    @asynccontextmanager
    async def open(
        self, rights: Rights, vhost: str, peer: tuple[str, int]
    ) -> AsyncIterator[InProcessClient]:
        """Open a client for `rights` in a virtual host (see leveret.ports.sessions.Sessions)."""
        client = InProcessClient()
        protocol = self._sockets.protocol(Endpoints(*peer, "(HTTP)", 0), None)
        protocol.rights = rights
        client.transport.attach(protocol, self._sockets.buffer)
        try:
            await client.open(vhost)
            yield client
            await client.close()
        finally:
            client.transport.close()
