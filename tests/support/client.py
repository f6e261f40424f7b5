"""An AMQP client for a Stage: pamqp on its side of the wire, a Connection on the other.

client = Client(stage).open()           # handshake and channel 1
client.call(Queue.Declare(queue="q"))   # one method, its one answer
client.publish("q", b"body")
assert client.deliveries() == [...]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pamqp import base, body, commands, frame, header

from leveret.amqp.connection import Connection
from leveret.core.clients import Endpoints
from leveret.ports.after_all import AfterAll
from tests.support.gate import Gate
from tests.support.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from leveret.core.queues.queue import Queue

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


class FakeLink:
    """Stands for a listener's protocol; the peer is a Client."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.connection = Connection(self, stage.broker, stage.configuration, stage.unfinished)
        self.touched = False
        self.writable = True
        self.held = False
        self.is_open = False
        self.deferred = 0  # how often it was to go on later
        self.peer_is_loopback = True
        self.certificate_login = ""
        self.rights = None
        self.expires_at_ms: int | None = None
        self.logged: list[tuple[str, int, str]] = []
        self.endpoints = Endpoints("127.0.0.1", 50_000, "127.0.0.1", 5672)
        self.heartbeat_seconds: int | None = None
        self.sent = b""
        self.closed = False
        self.close_after_seconds: float | None = None

    def monotonic_ns(self) -> int:
        return self.stage.monotonic_ns()

    def wall_ms(self) -> int:
        return self.stage.now

    def defer(self) -> None:
        self.deferred += 1
        self.stage.schedule(self.connection.go_on)

    def touch(self) -> None:
        if not self.touched:
            self.stage.turn.touch_sender(self)

    def send_pending(self) -> None:
        self.sent += b"".join(self.connection.outbox.take())

    def wait_for(self, work: Awaitable[None]) -> None:
        self.stage.spawn(self._wait(work))

    async def _wait(self, work: Awaitable[None]) -> None:
        error = None
        try:
            await work
        except Exception as caught:  # noqa: BLE001  # the connection answers it
            error = caught
        if not self.closed:
            self.connection.resumed(error)

    def hold(self, *, held: bool) -> None:
        self.held = held

    def log(self, category: str, level: int, text: str, fields: object) -> None:
        self.logged.append((category, level, text))

    def set_expiry(self, at_ms: int | None) -> None:
        self.expires_at_ms = at_ms

    def opened(self) -> None:
        self.is_open = True

    def set_heartbeat(self, seconds: int) -> None:
        self.heartbeat_seconds = seconds

    async def others(self) -> None:
        gate = Gate()
        self.stage.schedule(gate.open)
        await gate

    async def room(self) -> None:
        self.send_pending()

    async def committed(self, queues: Iterable[Queue]) -> bool:
        queues = list(queues)
        gate = AfterAll(len(queues))
        for queue in queues:
            queue.await_commit(gate)
        return not await gate

    async def pause(self, seconds: float) -> None:
        await self.stage.pause(seconds)

    def close(self, *, after_seconds: float = 0) -> None:
        if after_seconds:
            self.close_after_seconds = after_seconds
            return
        self.send_pending()
        self.closed = True

    def lose(self) -> None:
        """The network takes the connection away."""
        self.closed = True
        self.connection.lost()
        self.stage.run()


class Delivery(NamedTuple):
    """One basic.deliver or basic.get-ok, or a basic.return (whose tag is 0)."""

    tag: int
    body: bytes
    redelivered: bool = False


class Client:
    """`step` bytes are fed at a time; 0 feeds everything at once."""

    def __init__(self, stage: Stage, step: int = 0) -> None:
        self.stage = stage
        self.step = step
        self.transport = FakeLink(stage)
        self.connection = self.transport.connection
        self.frames: list[tuple[int, object]] = []  # received and not asked for yet

    # -- sending

    def feed(self, data: bytes) -> None:
        """Bytes as the network brings them, then a turn of the loop."""
        step = self.step or max(len(data), 1)
        for start in range(0, len(data), step):
            self.connection.received(memoryview(bytearray(data[start : start + step])))
        self.stage.run()
        self._receive()

    def send(self, *methods: base.Frame, channel: int = 1) -> None:
        self.feed(b"".join(wire(method, channel) for method in methods))

    def call(self, method: base.Frame, channel: int = 1) -> object:
        """Send one method and take what comes back; exactly one frame must."""
        self.send(method, channel=channel)
        (answer,) = self.received()
        assert answer[0] == channel
        return answer[1]

    def publish(self, key: str, *bodies: bytes, channel: int = 1, **options: object) -> None:
        self.feed(b"".join(message(key, each, channel, **options) for each in bodies))

    # -- receiving

    def _receive(self) -> None:
        data = self.transport.sent
        while data and not data.startswith(b"AMQP"):
            size, channel, value = frame.unmarshal(data)
            self.frames.append((channel, value))
            data = data[size:]
        self.transport.sent = data

    def received(self) -> list[tuple[int, object]]:
        """(channel, frame) of everything that came since the last look."""
        self.stage.run()
        self._receive()
        frames, self.frames = self.frames, []
        return frames

    def methods(self, channel: int = 1) -> list[tuple[str, ...]]:
        """Everything that came, as (name, the argument that matters most)."""
        return [_brief(value) for number, value in self.received() if number == channel]

    def names(self) -> list[str]:
        """Names of the methods that came; contents are left out."""
        return [value.name for _, value in self.received() if isinstance(value, base.Frame)]

    def deliveries(self, channel: int = 1) -> list[Delivery]:
        """Everything that came, which must be nothing but messages of this channel."""
        found: list[Delivery] = []
        missing = 0
        for number, value in self.received():
            assert number == channel
            if isinstance(value, header.ContentHeader):
                missing = value.body_size
            elif isinstance(value, body.ContentBody):
                found[-1] = found[-1]._replace(body=found[-1].body + value.value)
                missing -= len(value.value)
            else:
                assert not missing
                assert isinstance(value, commands.Basic.Deliver | commands.Basic.GetOk), value
                found.append(Delivery(value.delivery_tag, b"", value.redelivered))
        assert not missing
        return found

    # -- the usual beginnings

    def handshake(
        self,
        *,
        capabilities: dict[str, bool] | None = None,
        frame_max: int = 131072,
        channel_max: int = 2047,
        user: str = "guest",
    ) -> Client:
        self.feed(PROTOCOL_HEADER)
        properties = {"capabilities": capabilities or {}}
        self.send(commands.Connection.StartOk(properties, "PLAIN", f"\0{user}\0{user}"), channel=0)
        self.send(
            commands.Connection.TuneOk(channel_max, frame_max, 0),
            commands.Connection.Open("/"),
            channel=0,
        )
        names = [value.name for _, value in self.received()]
        assert names == ["Connection.Start", "Connection.Tune", "Connection.OpenOk"], names
        return self

    def open(self, *channels: int, **options: object) -> Client:
        """Handshake, and channels (number 1 unless told)."""
        self.handshake(**options)
        for channel in channels or (1,):
            self.open_channel(channel)
        return self

    def open_channel(self, channel: int) -> None:
        assert self.call(commands.Channel.Open(), channel).name == "Channel.OpenOk"

    def declare(self, name: str, channel: int = 1, **options: object) -> None:
        answer = self.call(commands.Queue.Declare(queue=name, **options), channel)
        assert answer.name == "Queue.DeclareOk", answer

    def consume(self, queue: str, tag: str = "c", channel: int = 1, **options: object) -> None:
        """Start a consumer; what it is delivered at once stays to be asked for."""
        self.send(commands.Basic.Consume(queue=queue, consumer_tag=tag, **options), channel=channel)
        number, answer = self.frames.pop(0)
        assert (number, answer.name) == (channel, "Basic.ConsumeOk"), answer

    def prefetch(self, count: int, channel: int = 1, *, global_: bool = False) -> None:
        answer = self.call(commands.Basic.Qos(prefetch_count=count, global_=global_), channel)
        assert answer.name == "Basic.QosOk"

    def count(self, queue: str, channel: int = 1) -> int:
        """How many messages are ready, as a passive declare says."""
        return self.call(commands.Queue.Declare(queue=queue, passive=True), channel).message_count


def wire(method: base.Frame, channel: int = 1) -> bytes:
    return frame.marshal(method, channel)


def message(
    key: str,
    content: bytes,
    channel: int = 1,
    *,
    exchange: str = "",
    mandatory: bool = False,
    immediate: bool = False,
    frame_max: int = 131072,
    **properties: object,
) -> bytes:
    """basic.publish with its content frames."""
    method = commands.Basic.Publish(
        exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    head = header.ContentHeader(0, len(content), commands.Basic.Properties(**properties))
    step = frame_max - 8
    pieces = [content[start : start + step] for start in range(0, len(content), step)]
    return b"".join(
        frame.marshal(part, channel)
        for part in (method, head, *(body.ContentBody(piece) for piece in pieces))
    )


BRIEF = {
    "Basic.Ack": ("delivery_tag", "multiple"),
    "Basic.Nack": ("delivery_tag", "multiple"),
    "Basic.Cancel": ("consumer_tag",),
    "Basic.CancelOk": ("consumer_tag",),
    "Basic.Return": ("reply_code", "reply_text"),
    "Basic.Deliver": ("consumer_tag", "delivery_tag"),
    "Channel.Close": ("reply_code", "reply_text", "class_id", "method_id"),
    "Connection.Close": ("reply_code", "reply_text", "class_id", "method_id"),
    "Queue.DeclareOk": ("message_count",),
    "Queue.DeleteOk": ("message_count",),
    "Queue.PurgeOk": ("message_count",),
}


def _brief(value: object) -> tuple[object, ...]:
    if isinstance(value, header.ContentHeader):
        return ("header", value.body_size)
    if isinstance(value, body.ContentBody):
        return ("body", value.value)
    return (value.name, *(getattr(value, field) for field in BRIEF.get(value.name, ())))
