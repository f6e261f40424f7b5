"""A raw AMQP client: publishes as prepared bytes, deliveries as plain values, nothing hidden.

Fast enough to load a broker from Python (a prepared burst is one write), and honest: it repairs
nothing, never reconnects, and hands every frame to whoever asks. pamqp encodes all but publishes.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pamqp import commands, frame

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_HEADER = struct.Struct(">BHI")
FRAME_MAX = 131_072
CAPABILITIES = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
PERSISTENT = b"\x10\x00\x02"  # property flags with delivery-mode, then its value
TRANSIENT = b"\x10\x00\x01"
DELIVER, ACK, NACK = (60, 60), (60, 80), (60, 120)


class ClosedError(ConnectionError):
    """The broker closed the connection or channel with a code and a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Delivery:
    channel: int
    tag: int
    redelivered: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class Confirm:
    tag: int
    multiple: bool
    nack: bool


@dataclass(frozen=True, slots=True)
class Method:
    """Any other method, decoded."""

    channel: int
    method: Any


Event = Delivery | Confirm | Method


def frame_bytes(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEADER.pack(kind, channel, len(payload)) + payload + b"\xce"


def publish_bytes(
    queue: str, body: bytes, *, channel: int = 1, properties: bytes = PERSISTENT, exchange: str = ""
) -> bytes:
    """One whole publish."""
    key, name = queue.encode(), exchange.encode()
    method = b"\x00\x3c\x00\x28\x00\x00" + bytes([len(name)]) + name + bytes([len(key)]) + key
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    parts = [frame_bytes(1, channel, method + b"\x00"), frame_bytes(2, channel, header)]
    step = FRAME_MAX - 8
    parts += [frame_bytes(3, channel, body[i : i + step]) for i in range(0, len(body), step)]
    return b"".join(parts)


class Wire:
    """A socket that carries frames. Raises ClosedError, or an OSError when the broker is gone."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._events: deque[Event] = deque()
        self._assembling: dict[int, list[Any]] = {}
        self.closed: ClosedError | None = None  # what connection.close has said
        self.blocked: list[str] = []  # what connection.blocked and unblocked have said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Close the socket without a word."""
        self.socket.close()

    # -- speaking

    def send(self, channel: int, *methods: Any) -> None:
        self.send_bytes(b"".join(frame.marshal(one, channel) for one in methods))

    def send_bytes(self, data: bytes) -> None:
        """Send everything, taking in what comes meanwhile: neither side waits for the other."""
        view = memoryview(data)
        deadline = time.monotonic() + LIMIT_SECONDS
        self.socket.setblocking(False)
        while view:
            if self.closed is not None:
                raise self.closed
            readable, writable, _ = select.select([self.socket], [self.socket], [], 1.0)
            if readable:
                self._receive()
            if writable:
                with suppress(BlockingIOError):
                    view = view[self.socket.send(view) :]
            if time.monotonic() > deadline:
                raise TimeoutError("the broker takes nothing in")

    def call(self, channel: int, method: Any, answer: type | None = None) -> Any:
        """Send a synchronous method and wait for its answer; other events are kept for `events`."""
        expected = (
            answer
            or getattr(commands, method.name.split(".")[0]).__dict__[
                method.name.split(".")[1] + "Ok"
            ]
        )
        self.send(channel, method)
        return self.expect(channel, expected)

    def expect(self, channel: int, expected: type) -> Any:
        """Wait for one method."""
        kept: list[Event] = []
        try:
            for event in self.events(LIMIT_SECONDS):
                if (
                    isinstance(event, Method)
                    and event.channel == channel
                    and isinstance(event.method, expected)
                ):
                    return event.method
                check_open(event)
                kept.append(event)
        finally:
            self._events.extendleft(reversed(kept))
        raise TimeoutError(f"no {expected.__name__} in {LIMIT_SECONDS} s")

    # -- listening

    def events(self, seconds: float = 0.0) -> Iterator[Event]:
        """Return what has come, and what comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            while self._events:
                yield self._events.popleft()
            remaining = deadline - time.monotonic()
            if not self._wait(max(remaining, 0.0)) and remaining <= 0:
                return

    def _wait(self, seconds: float) -> bool:
        readable, _, _ = select.select([self.socket], [], [], seconds)
        if readable:
            self._receive()
        return bool(readable)

    def _receive(self) -> None:
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise self.closed or ConnectionResetError("the broker closed the socket")
        self._buffer += data
        self._parse()

    def _parse(self) -> None:
        buffer, position = self._buffer, 0
        while len(buffer) - position >= 7:
            kind, channel, size = FRAME_HEADER.unpack_from(buffer, position)
            end = position + 8 + size
            if len(buffer) < end:
                break
            assert buffer[end - 1] == 0xCE, "the broker's own frame is broken"
            self._frame(kind, channel, buffer[position + 7 : end - 1], bytes(buffer[position:end]))
            position = end
        del buffer[:position]

    def _frame(self, kind: int, channel: int, payload: bytearray, whole: bytes) -> None:
        if kind == 1:
            self._method(channel, payload, whole)
        elif kind == 2:
            self._assembling[channel][1] = int.from_bytes(payload[4:12], "big")
            self._finish(channel)
        elif kind == 3:
            self._assembling[channel][2] += payload
            self._finish(channel)

    def _method(self, channel: int, payload: bytearray, whole: bytes) -> None:
        ids = (payload[1], payload[3])
        if ids == DELIVER:
            after_tag = 5 + payload[4]
            number = int.from_bytes(payload[after_tag : after_tag + 8], "big")
            self._assembling[channel] = [(number, bool(payload[after_tag + 8])), -1, bytearray()]
        elif ids in {ACK, NACK}:
            tag, bits = int.from_bytes(payload[4:12], "big"), payload[12]
            self._events.append(Confirm(tag, bool(bits & 1), ids == NACK))
        else:
            self._other(channel, frame.unmarshal(whole)[2])

    def _other(self, channel: int, method: Any) -> None:
        if isinstance(method, commands.Basic.GetOk | commands.Basic.Return):
            tag = getattr(method, "delivery_tag", None) or 0
            redelivered = bool(getattr(method, "redelivered", False))
            self._assembling[channel] = [(tag, redelivered), -1, bytearray()]
        if isinstance(method, commands.Connection.Blocked):
            self.blocked.append(method.reason)
        elif isinstance(method, commands.Connection.Unblocked):
            self.blocked.append("")
        elif isinstance(method, commands.Connection.Close):
            self.closed = ClosedError(method.reply_code, method.reply_text)
            with suppress(OSError):
                self.socket.send(frame.marshal(commands.Connection.CloseOk(), 0))
        self._events.append(Method(channel, method))

    def _finish(self, channel: int) -> None:
        (tag, redelivered), size, body = self._assembling[channel]
        if len(body) == size:
            del self._assembling[channel]
            self._events.append(Delivery(channel, tag, redelivered, bytes(body)))

    def kept(self) -> Iterator[Event]:
        """Return what has come already, whatever has become of the socket."""
        while self._events:
            yield self._events.popleft()

    def await_close(self, seconds: float = LIMIT_SECONDS) -> ClosedError:
        """Read until connection.close comes. Fails when the socket just ends."""
        for _ in self.events(seconds):
            if self.closed is not None:
                return self.closed
        raise TimeoutError(f"no connection.close in {seconds} s")

    def await_end(self, seconds: float = LIMIT_SECONDS) -> bytes:
        """Everything until the broker closes the socket."""
        deadline = time.monotonic() + seconds
        data = bytes(self._buffer)
        self.socket.setblocking(True)
        while True:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return data
            if not more:
                return data
            data += more


class Client(Wire):
    """A connection through its handshake, with channel 1 open."""

    def __init__(
        self,
        port: int,
        *,
        capabilities: dict[str, bool] | None = None,
        user: str = "guest",
        vhost: str = "/",
    ) -> None:
        super().__init__(port)
        try:
            self._shake_hands(capabilities, f"\0{user}\0guest", vhost)
        except BaseException:
            self.hang_up()
            raise

    def _shake_hands(
        self, capabilities: dict[str, bool] | None, credentials: str, vhost: str
    ) -> None:
        self.send_bytes(PROTOCOL_HEADER)
        self.expect(0, commands.Connection.Start)
        properties = {"capabilities": CAPABILITIES if capabilities is None else capabilities}
        self.send(0, commands.Connection.StartOk(properties, "PLAIN", credentials, "en_US"))
        tune = self.expect(0, commands.Connection.Tune)
        self.tune = tune
        self.send(
            0,
            commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0),
            commands.Connection.Open(virtual_host=vhost),
        )
        self.expect(0, commands.Connection.OpenOk)
        self.open_channel(1)

    def open_channel(self, number: int) -> None:
        self.call(number, commands.Channel.Open())

    def declare(self, queue: str, *, durable: bool = True, **arguments: object) -> Any:
        return self.call(
            1, commands.Queue.Declare(queue=queue, durable=durable, arguments=arguments)
        )

    def count(self, queue: str) -> int:
        """Messages that are ready in a queue that exists."""
        answer = self.call(1, commands.Queue.Declare(queue=queue, passive=True))
        return int(answer.message_count)

    def confirming(self) -> Self:
        self.call(1, commands.Confirm.Select())
        return self

    def qos(self, prefetch: int) -> None:
        self.call(1, commands.Basic.Qos(prefetch_count=prefetch))

    def consume(self, queue: str, *, no_ack: bool = False) -> None:
        self.call(1, commands.Basic.Consume(queue=queue, no_ack=no_ack))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send_bytes(frame_bytes(1, 1, struct.pack(">HHQB", 60, 80, tag, 1 if multiple else 0)))

    def publish(self, queue: str, bodies: Iterable[bytes], **options: Any) -> None:
        self.send_bytes(b"".join(publish_bytes(queue, body, **options) for body in bodies))

    def await_confirms(self, last: int, seconds: float = LIMIT_SECONDS) -> None:
        """Wait until the publishes up to `last` are confirmed. A nack is an error here."""
        for event in self.events(seconds):
            if isinstance(event, Confirm):
                assert not event.nack, f"nack of {event.tag}"
                if event.tag >= last:
                    return
            else:
                check_open(event)
        raise TimeoutError(f"no confirm of {last} in {seconds} s")

    def deliveries(self, count: int, seconds: float = LIMIT_SECONDS) -> Iterator[Delivery]:
        """The next `count` deliveries; each must come within `seconds` of the one before."""
        while count:
            came = False
            for event in self.events(seconds):
                if isinstance(event, Delivery):
                    came = True
                    count -= 1
                    yield event
                    if not count:
                        return
                else:
                    check_open(event)
            if not came:
                raise TimeoutError(f"{count} deliveries are missing")


def check_open(event: Event) -> None:
    """Raise what the broker closed the connection or the channel with."""
    if isinstance(event, Method) and isinstance(
        event.method, commands.Connection.Close | commands.Channel.Close
    ):
        raise ClosedError(event.method.reply_code, event.method.reply_text)
