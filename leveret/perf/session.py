"""Setup of a connection: handshake, channels, declarations; by pamqp, as it is not hot."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, TypeAlias

from pamqp import commands, frame, heartbeat
from pamqp.base import Frame
from pamqp.header import ProtocolHeader

from leveret.errors import LeveretError
from leveret.perf.plan import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import Self

    from leveret.perf.plan import Address

__all__ = ["BrokerError", "LoadSession", "decode", "open_sessions"]

CALLS_UNANSWERED_MAX = 500  # pipelined declarations: enough to hide the round trip
HANDSHAKES_AT_ONCE = 64  # below the usual listen backlog
CLOSING = (commands.Connection.Close, commands.Channel.Close)

Handshake: TypeAlias = "Generator[bytes, Frame, int]"


class BrokerError(LeveretError):
    """The broker refused something; the text has its reply."""


def decode(data: bytes) -> tuple[int, int, Frame | None]:
    """Return bytes used, channel and method at the start of `data`; (0, 0, None) if incomplete."""
    if len(data) < 8 or len(data) < int.from_bytes(data[3:7], "big") + 8:
        return 0, 0, None
    used, channel, value = frame.unmarshal(data)
    if isinstance(value, CLOSING):
        raise BrokerError(f"the broker closed: {value.reply_code} {value.reply_text}")
    if isinstance(value, heartbeat.Heartbeat):
        return used, channel, None
    if not isinstance(value, Frame):
        raise BrokerError(f"the broker sent {type(value).__name__} instead of a method")
    return used, channel, value


def handshake(address: Address) -> Handshake:
    """Yield what to send, given the last received method; return the frame size in bytes."""
    yield ProtocolHeader().marshal()
    # Brokers send the reason of a failed login only to clients with this capability.
    capabilities: dict[str, Any] = {
        "authentication_failure_close": True,
        "publisher_confirms": True,
        "basic.nack": True,
        "connection.blocked": True,
    }
    start_ok = commands.Connection.StartOk(
        client_properties={"product": "leveret perf", "capabilities": capabilities},
        response=f"\0{address.user}\0{address.password}",
    )
    tune = yield frame.marshal(start_ok, 0)
    if not isinstance(tune, commands.Connection.Tune):
        raise BrokerError(f"{tune.name} instead of Connection.Tune")
    frame_bytes_max = min(tune.frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
    # No heartbeats: a generator that is busy for seconds must not be taken for dead.
    tune_ok = commands.Connection.TuneOk(tune.channel_max, frame_bytes_max, 0)
    opening = commands.Connection.Open(virtual_host=address.vhost)
    yield frame.marshal(tune_ok, 0) + frame.marshal(opening, 0)
    return frame_bytes_max


class LoadSession:
    """A blocking connection; once it is set up, `socket` and `received` go to a Link."""

    def __init__(self, address: Address, timeout_s: float = 30) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.frame_bytes_max = FRAME_BYTES_MAX
        self._handshake = handshake(address)
        self.socket.sendall(next(self._handshake))

    @classmethod
    def connect(cls, address: Address) -> LoadSession:
        """Return a session whose handshake is done."""
        session = cls(address)
        try:
            while not session.step():
                pass
        except (OSError, BrokerError):
            session.socket.close()
            raise
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.socket.close()

    def step(self) -> bool:
        """Do the handshake's next step; return whether the connection is open."""
        method = self.receive()
        try:
            self.socket.sendall(self._handshake.send(method))
        except StopIteration as done:
            self.frame_bytes_max = done.value
            return True
        return False

    def receive(self) -> Frame:
        """Return the next method."""
        while True:
            used, _channel, method = decode(bytes(self.received))
            del self.received[:used]
            if method is not None:
                return method
            if not used:
                self._read()

    def call(self, method: Frame, channel: int = 0) -> Frame:
        """Send a method and wait for its reply."""
        return self.calls([method], channel)[0]

    def calls(self, methods: Iterable[Frame], channel: int) -> list[Frame]:
        """Send methods without waiting for each reply; return the replies in order."""
        pending, replies = list(methods), []
        for at in range(0, len(pending), CALLS_UNANSWERED_MAX):
            part = pending[at : at + CALLS_UNANSWERED_MAX]
            self.socket.sendall(b"".join(frame.marshal(method, channel) for method in part))
            replies += [self.receive() for _ in part]
        return replies

    def close(self) -> None:
        """Close in order, if the broker still answers."""
        try:
            self.call(commands.Connection.Close(200, "done", 0, 0))
        except (OSError, BrokerError):
            pass  # the connection is closed already
        finally:
            self.socket.close()

    def _read(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise BrokerError("the broker closed the connection during the handshake")
        self.received += data


def open_sessions(
    address: Address, count: int, channels: int = 1
) -> Generator[Sequence[LoadSession], None, None]:
    """Open `count` connections with `channels` each, several at a time; yields groups of them."""
    while count > 0:
        group = [LoadSession(address) for _ in range(min(count, HANDSHAKES_AT_ONCE))]
        try:
            _open_group(group, channels)
        except (OSError, BrokerError):
            for session in group:
                session.socket.close()
            raise
        yield group
        count -= len(group)


def _open_group(group: Sequence[LoadSession], channels: int) -> None:
    """Do the handshakes of a group in parallel, so that the broker is always busy."""
    waiting = list(group)
    while waiting:
        waiting = [session for session in waiting if not session.step()]
    for channel in range(1, channels + 1):
        for session in group:
            session.socket.sendall(frame.marshal(commands.Channel.Open(), channel))
        for session in group:
            session.receive()
