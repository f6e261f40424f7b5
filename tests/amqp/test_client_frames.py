"""Frames for a client of ours are read whole and byte by byte, or refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from leveret.amqp.client_frames import ClientFrames, Content
from leveret.amqp.methods import HEARTBEAT, encode_content, encode_method
from leveret.errors import ConnectionClosingError
from leveret.ports.contents import encode_properties

DELIVER = commands.Basic.Deliver("c", 1, False, "e", "k")
HEADER = encode_properties({"app_id": "a"}, 9)
MESSAGE = encode_content(1, DELIVER, HEADER, b"body body", 12)
SENT = HEARTBEAT + MESSAGE + encode_method(0, commands.Connection.CloseOk())


@pytest.mark.parametrize("step", [1, 7, len(SENT)])
def test_methods_and_messages(step):
    frames = ClientFrames(4096)
    found = [
        each
        for start in range(0, len(SENT), step)
        for each in frames.received(SENT[start : start + step])
    ]
    (channel, content), (_, method) = found
    assert isinstance(content, Content)
    assert (channel, content.header, content.body) == (1, HEADER, b"body body")
    assert content.method.delivery_tag == 1
    assert isinstance(method, commands.Connection.CloseOk)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x01\x00\x10\x00\x00",
        HEARTBEAT[:-1] + b"\x00",
        MESSAGE[: MESSAGE.index(HEADER) - 7] * 2,
        b"\x03\x00\x01\x00\x00\x00\x01x\xce",
        b"\x02\x00\x01\x00\x00\x00\x01x\xce",
        encode_method(1, DELIVER) + b"\x02\x00\x01\x00\x00\x00\x01x\xce",
        encode_content(1, DELIVER, encode_properties({}, 1), b"too long", 0),
        encode_content(1, DELIVER, encode_properties({}, 1 << 40), b"", 0),
    ],
)
def test_what_is_no_amqp(data):
    with pytest.raises(ConnectionClosingError):
        list(ClientFrames(4096).received(data))


@given(st.integers(0, len(SENT) - 1), st.integers(0, 255))
def test_changed_bytes_raise_nothing_else(place, value):
    data = bytearray(SENT)
    data[place] = value
    with contextlib.suppress(ConnectionClosingError):
        list(ClientFrames(4096).received(bytes(data)))
