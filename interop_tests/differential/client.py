"""A thin AMQP client that says exactly what it is told and writes down every answer.

It never repairs, retries or hides anything; pamqp encodes and decodes single frames. The only thing
it does by itself is to answer `close` with `close-ok`, as every client must (`polite=False` stops
even that).
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Self

from pamqp import base, body, commands, encode, exceptions, frame, header, heartbeat

from interop_tests.brokers import IN_CLUSTER
from interop_tests.differential.transcript import Content, Transcript, Undecoded, describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from interop_tests.brokers import Address

ANSWER_SECONDS_MAX = 8.0  # a refused login is answered after 3 s; everything else at once
QUIET_SECONDS = 0.25  # how long "nothing more comes" is watched for
FRAME_HEADER = struct.Struct(">BHI")
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CONTENT_METHODS = ("Basic.Deliver", "Basic.GetOk", "Basic.Return")
CAPABILITIES = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


# A value of each type that a field table may hold, by its letter.
VALUES_OF_EVERY_TYPE = {
    b"S": b"\x00\x00\x00\x03abc",
    b"T": b"\x00\x00\x00\x00\x65\x00\x00\x00",
    b"t": b"\x01",
    b"b": b"\xff",
    b"B": b"\xff",
    b"s": b"\xff\xfe",
    b"u": b"\xff\xfe",
    b"I": b"\xff\xff\xff\xfd",
    b"i": b"\xff\xff\xff\xfd",
    b"l": b"\xff\xff\xff\xff\xff\xff\xff\xfc",
    b"L": b"\xff\xff\xff\xff\xff\xff\xff\xfc",
    b"f": b"\x3f\xc0\x00\x00",
    b"d": b"\x3f\xf8\x00\x00\x00\x00\x00\x00",
    b"D": b"\x02\x00\x00\x00\x7b",
    b"F": b"\x00\x00\x00\x04\x01at\x01",
    b"A": b"\x00\x00\x00\x04t\x01t\x00",
    b"x": b"\x00\x00\x00\x02\xff\x00",
    b"V": b"",
}


def integer_as_clients_send_it(value: int) -> bytes:
    """Integers in tables as `I` or `l`, as pika and py-amqp do; pamqp takes the smallest type."""
    fits = -(2**31) <= value < 2**31
    return struct.pack(">ci", b"I", value) if fits else struct.pack(">cq", b"l", value)


encode.table_integer = integer_as_clients_send_it


def unchecked(method: type[base.Frame], **fields: object) -> Any:
    """A method with values that pamqp itself would refuse to send."""
    lenient = type(
        method.__name__,
        (method,),
        {"validate": lambda _self: None, "__slots__": method.__slots__, "name": method.name},
    )
    return lenient(**fields)


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """The bytes of one frame of any kind, right or wrong."""
    return FRAME_HEADER.pack(kind, channel, len(payload)) + payload + end


class Wire:
    """A socket that carries frames, with what was said written to the transcript."""

    def __init__(self, address: Address, transcript: Transcript, label: str) -> None:
        self.socket = socket.create_connection((address.host, address.port), ANSWER_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address
        self.transcript = transcript
        self.label = label
        self.polite = True
        self.last_content: Content | None = None  # of the delivery or return read last
        self._buffer = b""
        self._closed = False

    # -- speaking

    def send(self, channel: int, *frames: Any) -> None:
        """Send frames in one write and note them."""
        for one in frames:
            self.transcript.add(f"{self.label}{channel} > {describe(one)}")
        self.send_bytes(b"".join(frame.marshal(one, channel) for one in frames))

    def send_raw(self, data: bytes, what: str) -> None:
        """Send any bytes; `what` says in the transcript what they are."""
        self.transcript.add(f"{self.label} > bytes: {what}")
        self.send_bytes(data)

    def send_bytes(self, data: bytes) -> None:
        """Send without a note; a broker that has hung up is seen at the next read."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self._closed = True

    def hang_up(self) -> None:
        """Close the socket without a word."""
        self.transcript.add(f"{self.label} > hangs up")
        self.socket.close()

    # -- listening

    def read(self, count: int = 1) -> Any:
        """Note the next `count` frames (a method with its content is one) and return the last."""
        found: Any = None
        for _ in range(count):
            line, found = self._next_line(ANSWER_SECONDS_MAX)
            self.transcript.add(line)
            if found is None:
                break
            self._answer_close(found)
        return found

    def read_any_order(self, count: int) -> None:
        """Note `count` frames as a group whose order is not compared."""
        self.transcript.add_group([self._next_line(ANSWER_SECONDS_MAX)[0] for _ in range(count)])

    def read_confirms(self, last: int, first: int = 1) -> None:
        """Read confirms until every tag from `first` to `last` is settled, and note which how.

        How confirms are gathered into `multiple` is the broker's choice.
        """
        outstanding, nacked = set(range(first, last + 1)), set()
        while outstanding:
            line, found = self._next_line(ANSWER_SECONDS_MAX)
            if not isinstance(found, commands.Basic.Ack | commands.Basic.Nack):
                self.transcript.add(line)
                if found is None:
                    return
                continue
            tag = int(found.delivery_tag or 0)
            settled = {n for n in outstanding if n == tag or (found.multiple and n <= tag)}
            outstanding -= settled
            nacked |= settled if isinstance(found, commands.Basic.Nack) else set()
        self.transcript.add(f"{self.label} < confirmed {first}..{last}, nacked {sorted(nacked)}")

    def expect_quiet(self) -> None:
        """Note that nothing came for a moment, or what did."""
        line, found = self._next_line(QUIET_SECONDS)
        self.transcript.add(line)
        if found is not None:
            self._answer_close(found)

    def read_bytes(self, count: int) -> bytes:
        """Note and return up to `count` raw bytes (the answer to a wrong protocol header)."""
        data = self.skip_bytes(count)
        self.transcript.add(f"{self.label} < bytes {data!r}")
        return data

    def skip_bytes(self, count: int) -> bytes:
        """Return up to `count` raw bytes without a note."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while len(self._buffer) < count and self._fill(deadline):
            pass
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def next_frame(self, seconds: float = ANSWER_SECONDS_MAX) -> tuple[int, Any]:
        """The next frame without a note: channel and frame, or (0, reason) when none came."""
        deadline = time.monotonic() + seconds
        while (size := self._frame_size()) is None or len(self._buffer) < size:
            if not self._fill(deadline):
                return 0, "closed" if self._closed else "nothing"
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        try:
            _, channel, found = frame.unmarshal(data)
        except exceptions.UnmarshalingException:  # methods that pamqp does not know
            return FRAME_HEADER.unpack_from(data)[1], Undecoded(data[FRAME_HEADER.size : -1])
        return channel, found

    def _frame_size(self) -> int | None:
        if len(self._buffer) < FRAME_HEADER.size:
            return None
        if self._buffer.startswith(b"AMQP"):
            return len(PROTOCOL_HEADER)
        return FRAME_HEADER.size + int(FRAME_HEADER.unpack_from(self._buffer)[2]) + 1

    def _fill(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return False
        except ConnectionResetError:  # closed while bytes of ours were unread: the same to a client
            data = b""
        self._buffer += data
        self._closed = self._closed or not data
        return bool(data)

    def _next_line(self, seconds: float) -> tuple[str, Any]:
        channel, found = self._next_wanted(seconds)
        if isinstance(found, str):
            return f"{self.label} < {found}", None
        content = None
        if getattr(found, "name", "") in CONTENT_METHODS:
            content = self.last_content = self._read_content()
        return f"{self.label}{channel} < {describe(found, content)}", found

    def _next_wanted(self, seconds: float) -> tuple[int, Any]:
        """Heartbeats come when they come; only the heartbeat conversations look at them."""
        while True:
            channel, found = self.next_frame(seconds)
            if not isinstance(found, heartbeat.Heartbeat):
                return channel, found

    def _read_content(self) -> Content | None:
        _, content_header = self.next_frame()
        if not isinstance(content_header, header.ContentHeader):
            return None
        data = b""
        while len(data) < content_header.body_size:
            _, part = self.next_frame()
            if not isinstance(part, body.ContentBody):
                return None
            data += part.value
        return content_header, data

    def _answer_close(self, found: Any) -> None:
        if not self.polite:
            return
        if isinstance(found, commands.Connection.Close):
            self.send_bytes(frame.marshal(commands.Connection.CloseOk(), 0))
            self.transcript.add(self._next_line(ANSWER_SECONDS_MAX)[0])


class Connection(Wire):
    """An open connection, with the sugar that conversations share."""

    def handshake(
        self,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        capabilities: dict[str, bool] | None = None,
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat_seconds: int = 0,
    ) -> None:
        """Log in; nothing of it is noted. Failures are: the conversation goes on from there."""
        self.send_bytes(PROTOCOL_HEADER)
        self.next_frame()
        response = f"\x00{user}\x00{password}"
        known = CAPABILITIES if capabilities is None else capabilities
        properties: Any = {"capabilities": known}
        self._say(commands.Connection.StartOk(properties, "PLAIN", response, "en_US"))
        self.next_frame()
        self._say(commands.Connection.TuneOk(channel_max, frame_max, heartbeat_seconds))
        self._say(unchecked(commands.Connection.Open, virtual_host=vhost))
        _, answer = self.next_frame()
        assert isinstance(answer, commands.Connection.OpenOk), describe(answer)

    def _say(self, method: Any) -> None:
        self.send_bytes(frame.marshal(method, 0))

    def channel(self, number: int = 1) -> Channel:
        """Open a channel; not noted."""
        self.send_bytes(frame.marshal(commands.Channel.Open(), number))
        _, answer = self.next_frame()
        assert isinstance(answer, commands.Channel.OpenOk), answer
        return Channel(self, number)

    def close(self) -> None:
        """Close politely; noted."""
        self.send(0, commands.Connection.Close(200, "bye", 0, 0))
        self.read()
        self.socket.close()


class Channel:
    """An open channel: what is sent and the one answer to it are noted."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.read = connection.read
        self.read_any_order = connection.read_any_order
        self.expect_quiet = connection.expect_quiet

    def send(self, *frames: Any) -> None:
        self.connection.send(self.number, *frames)

    def call(self, method: Any) -> Any:
        """Send a method and read one answer. A channel closed by the broker is closed by us too."""
        self.send(method)
        return self.read_answer()

    def read_answer(self) -> Any:
        answer = self.connection.read()
        if isinstance(answer, commands.Channel.Close) and self.connection.polite:
            self.connection.send_bytes(frame.marshal(commands.Channel.CloseOk(), self.number))
        return answer

    def declare(self, queue: str, **options: Any) -> Any:
        """Declare a queue, in a cluster a durable one: it has replicas, and a leader elsewhere."""
        if IN_CLUSTER and not options.get("exclusive") and not options.get("passive"):
            options = {"durable": True, **options}
        return self.call(commands.Queue.Declare(queue=queue, **options))

    def exchange(self, exchange: str, kind: str = "direct", **options: Any) -> Any:
        method = commands.Exchange.Declare(exchange=exchange, exchange_type=kind, **options)
        return self.call(method)

    def bind(self, queue: str, exchange: str, key: str = "", **options: Any) -> Any:
        return self.call(commands.Queue.Bind(0, queue, exchange, key, **options))

    def publish(
        self,
        exchange: str,
        key: str,
        data: bytes = b"hello",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Publish one message; nothing is read."""
        method = unchecked(
            commands.Basic.Publish,
            exchange=exchange,
            routing_key=key,
            mandatory=mandatory,
            immediate=immediate,
        )
        content = header.ContentHeader(0, len(data), commands.Basic.Properties(**properties))
        self.send(method, content, *([body.ContentBody(data)] if data else []))

    def get(self, queue: str, *, no_ack: bool = False) -> Any:
        return self.call(commands.Basic.Get(0, queue, no_ack))

    def consume(self, queue: str, tag: str = "", **options: Any) -> Any:
        method = commands.Basic.Consume(queue=queue, consumer_tag=tag, **options)
        return self.call(method)

    def confirm(self) -> Any:
        return self.call(commands.Confirm.Select())

    def qos(self, count: int, *, shared: bool = False) -> Any:
        return self.call(commands.Basic.Qos(0, count, shared))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(commands.Basic.Ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(commands.Basic.Nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self.send(commands.Basic.Reject(tag, requeue))

    def count(self, queue: str, ready: int | None = None) -> Any:
        """How many ready messages and consumers: a passive declare.

        With `ready`, ask until so many messages are ready: RabbitMQ's counts overtake publishes.
        """
        if ready is not None:
            with Observer(self.connection.address) as observer:
                observer.await_counts(
                    queue, lambda counts: counts is not None and counts[0] == ready
                )
        return self.declare(queue, passive=True)

    def close(self) -> Any:
        return self.call(commands.Channel.Close(200, "bye", 0, 0))


class Observer:
    """Looks at a broker beside the conversation, without a note in the transcript."""

    def __init__(self, address: Address) -> None:
        self.connection = Connection(address, Transcript(""), "observer")
        self.connection.handshake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.socket.close()

    def counts(self, queue: str) -> tuple[int, int] | None:
        """Ready messages and consumers of a queue; None when there is no such queue."""
        channel = self.connection.channel()
        answer = channel.call(unchecked(commands.Queue.Declare, queue=queue, passive=True))
        if not isinstance(answer, commands.Queue.DeclareOk):
            return None
        channel.close()
        return int(answer.message_count or 0), int(answer.consumer_count or 0)

    def await_counts(self, queue: str, wanted: Callable[[tuple[int, int] | None], bool]) -> bool:
        """Poll until the counts are as wanted; False when they are not in time."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            if wanted(self.counts(queue)):
                return True
            time.sleep(0.02)
        return False

    def delete(self, queues: list[str], exchanges: list[str]) -> None:
        """Remove what a conversation left behind."""
        methods = [unchecked(commands.Queue.Delete, queue=name) for name in queues]
        removals = [*methods, *(unchecked(commands.Exchange.Delete, exchange=n) for n in exchanges)]
        for method in removals:
            channel = self.connection.channel()
            if not isinstance(channel.call(method), commands.Channel.Close):
                channel.close()
