"""Headers exchanges compare values of every type with every other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands, frame

from interop_tests.differential.client import VALUES_OF_EVERY_TYPE, raw_frame

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk

ONE = {
    "b": b"b\x01",
    "B": b"B\x01",
    "s": b"s\x00\x01",
    "u": b"u\x00\x01",
    "I": b"I\x00\x00\x00\x01",
    "i": b"i\x00\x00\x00\x01",
    "l": b"l\x00\x00\x00\x00\x00\x00\x00\x01",
    "L": b"L\x00\x00\x00\x00\x00\x00\x00\x01",
    "f": b"f\x3f\x80\x00\x00",
    "d": b"d\x3f\xf0\x00\x00\x00\x00\x00\x00",
    "D": b"D\x00\x00\x00\x00\x01",
    "T": b"T\x00\x00\x00\x00\x00\x00\x00\x01",
    "t": b"t\x01",
    "S": b"S\x00\x00\x00\x011",
    "x": b"x\x00\x00\x00\x011",
    "V": b"V",
}
"""A one of each type, or what comes near it."""


def _table(value: bytes) -> bytes:
    entry = b"\x01h" + value
    return len(entry).to_bytes(4, "big") + entry


def _bind(talk: Talk, queue: str, value: bytes) -> bytes:
    name, exchange = talk.name(queue).encode(), talk.name("x").encode()
    names = bytes([len(name)]) + name + bytes([len(exchange)]) + exchange
    return raw_frame(1, 1, b"\x00\x32\x00\x14\x00\x00" + names + b"\x00\x00" + _table(value))


def _publish(talk: Talk, letter: str, value: bytes) -> bytes:
    method = commands.Basic.Publish(exchange=talk.name("x"), routing_key="")
    properties = b"\x20\x00" + _table(value)
    start = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big")
    content = raw_frame(2, 1, start + properties) + raw_frame(3, 1, letter.encode())
    return frame.marshal(method, 1) + content


@pytest.mark.covers("B-172", "B-016")
def every_type_matches_what_rabbitmq_says(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "headers")
    for letter, value in ONE.items():
        channel.declare(talk.name(f"q{letter}"))
        channel.connection.send_raw(_bind(talk, f"q{letter}", value), f"bind to a {letter}")
        channel.read()
    for letter, value in ONE.items():
        channel.connection.send_raw(_publish(talk, letter, value), f"publish a {letter}")
    for letter in ONE:
        while isinstance(channel.get(talk.name(f"q{letter}"), no_ack=True), commands.Basic.GetOk):
            pass


@pytest.mark.covers("B-172", "B-016")
def every_type_matches_itself(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "headers")
    for letter, value in VALUES_OF_EVERY_TYPE.items():
        word = letter.decode()
        channel.declare(talk.name(f"q{word}"))
        channel.connection.send_raw(_bind(talk, f"q{word}", letter + value), f"bind to a {word}")
        channel.read()
        channel.connection.send_raw(_publish(talk, word, letter + value), f"publish a {word}")
        channel.get(talk.name(f"q{word}"), no_ack=True)
