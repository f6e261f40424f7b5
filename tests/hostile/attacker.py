"""Base of every attack: a seed, a budget, sockets that count, and a login."""

from __future__ import annotations

import base64
import json
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from pamqp import commands

from tests.harness.wire import Client, Wire, frame_bytes, publish_bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.hostile.budget import Budget

ANSWER_BYTES_MAX = 4 << 20  # of an HTTP answer: the rest is not read
SOCKETS_MAX = 900  # most systems let a process open 1,024 files


class CountedWire(Wire):
    """A socket of somebody who has not logged in."""

    def __init__(self, port: int, budget: Budget) -> None:
        self._budget = budget
        super().__init__(port)

    def send_bytes(self, data: bytes) -> None:
        self._budget.spend(len(data))
        super().send_bytes(data)


class CountedClient(Client):
    """An attacker's connection, with channel 1 open."""

    def __init__(self, port: int, budget: Budget, user: str, vhost: str) -> None:
        self._budget = budget
        super().__init__(port, user=user, vhost=vhost)

    def send_bytes(self, data: bytes) -> None:
        self._budget.spend(len(data))
        super().send_bytes(data)

    def drain(self) -> int:
        """Throw away what has come. Returns how many events there were."""
        return sum(1 for _ in self.events())

    def exchange(self, name: str, kind: str, **arguments: object) -> None:
        self.send(
            1, commands.Exchange.Declare(exchange=name, exchange_type=kind, arguments=arguments)
        )
        self.expect(1, commands.Exchange.DeclareOk)

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: object) -> None:
        """Bind without waiting for the answer."""
        method = commands.Queue.Bind(0, queue, exchange, key, nowait=True, arguments=arguments)
        self.send(1, method)

    def link(self, destination: str, source: str, key: str = "") -> None:
        """Bind an exchange without waiting for the answer."""
        self.send(1, commands.Exchange.Bind(0, destination, source, key, nowait=True))

    def put(
        self, exchange: str, key: str, body: bytes = b"", count: int = 1, **fields: Any
    ) -> None:
        """Publish the same message so many times."""
        properties = commands.Basic.Properties(**fields).marshal()
        data = publish_bytes(key, body, properties=properties, exchange=exchange)
        self.send_bytes(data * count)

    def put_table(self, exchange: str, key: str, table: bytes, count: int = 1) -> None:
        """Publish with octets as headers, whether or not they are a table."""
        data = publish_bytes(key, b"", properties=b"\x20\x00" + table, exchange=exchange)
        self.send_bytes(data * count)

    def declare_raw(self, queue: str, table: bytes) -> None:
        """Declare a queue with octets as arguments, without waiting for the answer."""
        name = queue.encode()
        method = b"\x00\x32\x00\x0a\x00\x00" + bytes([len(name)]) + name + b"\x10" + table
        self.send_bytes(frame_bytes(1, 1, method))

    def take(self, queue: str, number: int, **arguments: object) -> None:
        """Consume without waiting for the answer."""
        method = commands.Basic.Consume(
            queue=queue, consumer_tag=f"c{number}", nowait=True, arguments=arguments
        )
        self.send(1, method)

    def settle(self, frames: list[tuple[int, int, int]]) -> None:
        """Send acks (80), rejects (90) or nacks (120) of tags, with their bits, 500 in a write."""
        pieces = [struct.pack(">HHQB", 60, method, tag, bits) for method, tag, bits in frames]
        for at in range(0, len(pieces), 500):
            self.send_bytes(b"".join(frame_bytes(1, 1, one) for one in pieces[at : at + 500]))


class Attack:
    """One way to trouble a node. Subclasses register themselves by being defined.

    `prepare` comes once, `strike` until the budget or the time is spent; what closes a connection
    ends a strike, and the next one begins with a connection of its own.
    """

    every: ClassVar[list[type[Attack]]] = []
    finding: ClassVar[str] = ""  # the class: A before login, B cost, F unfinished, H size
    needs: ClassVar[str] = ""  # permissions, or nothing at all

    def __init_subclass__(cls) -> None:
        Attack.every.append(cls)

    def __init__(
        self, rng: random.Random, budget: Budget, ports: tuple[int, int], account: tuple[str, str]
    ) -> None:
        self.rng = rng
        self.budget = budget
        self.port, self.http_port = ports
        self.user, self.vhost = account
        self.wires: list[Wire] = []
        self._client: CountedClient | None = None

    def prepare(self) -> None:
        """Make what the strikes need."""

    def strike(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def until(self, share: float) -> Iterator[int]:
        """Numbers, while less than such a share of the budget is spent."""
        number = 0
        while self.budget.share < share:
            yield number
            number += 1

    @property
    def client(self) -> CountedClient:
        """A connection that is logged in, a new one where the last was closed."""
        if self._client is None or self._client.closed is not None:
            self._client = self.connect()
        return self._client

    def connect(self) -> CountedClient:
        client = CountedClient(self.port, self.budget, self.user, self.vhost)
        return self._keep(client)

    def stranger(self) -> CountedWire:
        """A socket without a login."""
        return self._keep(CountedWire(self.port, self.budget))

    def _keep(self, wire: Any) -> Any:
        if len(self.wires) >= SOCKETS_MAX:
            self.wires.pop(0).hang_up()
        self.wires.append(wire)
        return wire

    def failed(self) -> None:
        """Let go of the connection that an error has ended."""
        if self._client is not None:
            self._client.hang_up()
            self._client = None

    def http(self, method: str, path: str, body: bytes = b"", *, user: str | None = None) -> bytes:
        """Ask the HTTP API. Returns the beginning of the answer, its status first."""
        login = self.user if user is None else user
        token = base64.b64encode(f"{login}:guest".encode()).decode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Basic {token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        data = head.encode() + body
        self.budget.spend(len(data))
        with socket.create_connection(("127.0.0.1", self.http_port), 60) as wire:
            wire.sendall(data)
            return read_answer(wire)

    def http_json(self, method: str, path: str, value: object) -> bytes:
        return self.http(method, path, json.dumps(value).encode())

    def finish(self) -> None:
        """Wait until the node has worked off what was sent to it."""
        self.budget.is_open = True
        if self._client is not None and self._client.closed is None:
            with suppress(ConnectionError, TimeoutError):  # only who attacks waits for so long
                self._client.call(1, commands.Basic.Qos(prefetch_count=0))

    def hang_up(self) -> None:
        for wire in self.wires:
            wire.hang_up()
        self.wires.clear()


def read_answer(wire: socket.socket) -> bytes:
    answer = b""
    while len(answer) < ANSWER_BYTES_MAX:
        try:
            more = wire.recv(1 << 16)
        except ConnectionResetError:
            break
        if not more:
            break
        answer += more
    return answer
