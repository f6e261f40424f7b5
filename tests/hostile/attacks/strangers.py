"""Before login: what anybody may send who reaches the port."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from pamqp import commands, frame

from tests.harness.wire import PROTOCOL_HEADER, frame_bytes
from tests.hostile.attacker import Attack, read_answer
from tests.hostile.mutation import any_table, long, size, wide_table, word

START_OK = b"\x00\x0a\x00\x0b"
INITIAL_FRAME_MAX = 8192


def start_ok(table: bytes, response: bytes, mechanism: bytes = b"PLAIN") -> bytes:
    mechanisms = bytes([len(mechanism)]) + mechanism
    return frame_bytes(1, 0, START_OK + table + mechanisms + long(response) + b"\5en_US")


class StartOkTables(Attack):
    finding = "A"

    def strike(self) -> None:
        table = any_table(self.rng, INITIAL_FRAME_MAX - 100)
        response = self.rng.choice((b"\0guest\0wrong", b"", self.rng.randbytes(20)))
        mechanism = self.rng.choice((b"PLAIN", b"AMQPLAIN", b"EXTERNAL", b"NONE"))
        self.stranger().send_bytes(PROTOCOL_HEADER + start_ok(table, response, mechanism))


class OverlongStartOk(Attack):
    finding = "A"

    def strike(self) -> None:
        table = wide_table(self.rng, size(self.rng, 131_000))
        self.stranger().send_bytes(PROTOCOL_HEADER + start_ok(table, b"\0guest\0wrong"))


class HalfHandshakes(Attack):
    finding = "A"

    def strike(self) -> None:
        login = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        steps = [
            PROTOCOL_HEADER,
            frame.marshal(login, 0),
            frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0),
            frame.marshal(commands.Connection.Open(), 0),
        ]
        said = b"".join(steps[: self.rng.randrange(1, 5)])
        self.stranger().send_bytes(said[: self.rng.randrange(1, len(said) + 1)])


class ManySockets(Attack):
    finding = "A"

    def strike(self) -> None:
        self.stranger().send_bytes(self.rng.randbytes(self.rng.randrange(1, 9)))


class FrameFragments(Attack):
    finding = "A"

    def strike(self) -> None:
        wire = self.stranger()
        wire.send_bytes(PROTOCOL_HEADER)
        announced = self.rng.choice((0, 1, 4096, 8184, 8192, 2**31, 2**32 - 1))
        kind = self.rng.randrange(0, 10)
        said = struct.pack(">BHI", kind, self.rng.choice((0, 1, 65_535)), announced)
        said += self.rng.randbytes(min(announced, 64))
        for octet in said:
            wire.send_bytes(bytes([octet]))


class TlsGarbage(Attack):
    finding = "A"

    def strike(self) -> None:
        hello = self.rng.randbytes(size(self.rng, 4000))
        record = b"\x16\x03\x01" + struct.pack(">H", min(len(hello), 65_535)) + hello
        self.stranger().send_bytes(record[: self.rng.randrange(1, len(record) + 1)])


class GuessedPasswords(Attack):
    finding = "A"

    def strike(self) -> None:
        guess = f"\0{self.rng.choice(('guest', word(self.rng)))}\0{word(self.rng)}"
        self.stranger().send_bytes(PROTOCOL_HEADER + start_ok(long(b""), guess.encode()))


class HttpStrangers(Attack):
    """Requests without a password: broken, long, slow, of many headers."""

    finding = "A"

    def strike(self) -> None:
        body = self.rng.randbytes(size(self.rng, 60_000))
        lines = [f"X-{word(self.rng)}: {word(self.rng, 20)}" for _ in range(self.rng.randrange(90))]
        path = self.rng.choice(("/api/queues", "/", "/api/login", "/" + word(self.rng, 4000)))
        length = self.rng.choice((len(body), len(body) + 9, 2**40))
        method = self.rng.choice(("GET", "POST", "PUT", "XYZZY"))
        top = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *lines]
        data = "\r\n".join(top).encode() + b"\r\n\r\n" + body
        self.budget.spend(len(data))
        with socket.create_connection(("127.0.0.1", self.http_port), 10) as wire:
            wire.sendall(data)
            wire.shutdown(socket.SHUT_WR)
            wire.settimeout(0.2)
            with suppress(TimeoutError):
                read_answer(wire)
