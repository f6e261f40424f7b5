"""Frames: cut anywhere they are the same frames; damaged or hostile bytes are one kind of error."""

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from leveret.links.errors import CloseReason, LinkProtocolError
from leveret.links.frames import (
    CHECKSUM,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    IN_PLACE_BYTES_MAX,
    LAYOUT,
    FrameKind,
    LinkFrame,
    LinkFrameReader,
    encode,
)

INPUT_BYTES = HEADER_BYTES + IN_PLACE_BYTES_MAX
LENGTHS = st.one_of(
    st.integers(0, 40),
    st.sampled_from([IN_PLACE_BYTES_MAX, IN_PLACE_BYTES_MAX + 1, 40_000]),
)


class Sink:
    """Keeps what it is given."""

    def __init__(self):
        self.taken = []

    def place(self, frame):
        if frame.length <= IN_PLACE_BYTES_MAX:
            return None
        return memoryview(bytearray(frame.length))

    def take_frame(self, frame, payload):
        self.taken.append((frame, bytes(payload)))


def written(frame, payload, checked=True):
    return encode(frame, [payload], checked=checked) + payload


def read(reader, data, cuts):
    """Give a reader bytes in pieces of these sizes, and then the rest."""
    cuts = iter([*cuts, len(data)])
    while data:
        room = reader.buffer()
        assert room.nbytes
        count = min(max(1, next(cuts, len(data))), len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        reader.received(count)


@given(
    frames=st.lists(st.tuples(st.sampled_from(FrameKind), LENGTHS, st.booleans()), max_size=8),
    cuts=st.lists(st.integers(1, 30_000), max_size=60),
)
def test_frames_survive_any_cut_of_the_bytes(frames, cuts):
    expected, data = [], b""
    for number, (kind, length, checked) in enumerate(frames):
        payload = bytes([number]) * length
        frame = LinkFrame(length, kind, number, 2**64 - 1 - number, 2**32 - 1)
        expected.append((frame, payload))
        data += written(frame, payload, checked)
    sink = Sink()
    read(LinkFrameReader(sink, INPUT_BYTES), data, cuts)
    assert sink.taken == expected


@given(
    at=st.integers(0, HEADER_BYTES + 99),
    bit=st.integers(0, 7),
    cuts=st.lists(st.integers(1, 50), max_size=9),
)
def test_a_flipped_bit_is_noticed(at, bit, cuts):
    frame = LinkFrame(100, FrameKind.REQUEST, 1, 1, 100)
    data = bytearray(written(frame, b"x" * 100) + b"\0" * 400)
    data[at] ^= 1 << bit
    sink = Sink()
    with contextlib.suppress(LinkProtocolError):
        read(LinkFrameReader(sink, INPUT_BYTES), bytes(data), cuts)
    assert (frame, b"x" * 100) not in sink.taken
    assert not sink.taken


def test_a_damaged_header_without_checksum_of_the_payload_is_noticed():
    frame = LinkFrame(5, FrameKind.ANSWER, 0, 1, 5)
    data = bytearray(written(frame, b"12345", checked=False))
    data[8] ^= 1
    with pytest.raises(LinkProtocolError) as caught:
        read(LinkFrameReader(Sink(), INPUT_BYTES), bytes(data), [])
    assert caught.value.reason is CloseReason.CHECKSUM


def header(length=0, kind=1, flags=0):
    head = LAYOUT.pack(length, kind, flags, 0, 0, 0)
    return head + CHECKSUM.pack(crc32c(head))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(kind=0), CloseReason.UNKNOWN_KIND),
        (header(kind=99), CloseReason.UNKNOWN_KIND),
        (header(flags=2), CloseReason.MALFORMED),
        (header(length=FRAME_BYTES_MAX + 1), CloseReason.TOO_LARGE),
        (header(length=2**32 - 1), CloseReason.TOO_LARGE),
    ],
)
def test_what_cannot_be_a_frame_is_refused_before_room_is_made(data, reason):
    class Strict(Sink):
        def place(self, frame):
            raise AssertionError("room is made")

    with pytest.raises(LinkProtocolError) as caught:
        read(LinkFrameReader(Strict(), INPUT_BYTES), data, [])
    assert caught.value.reason is reason


@given(st.binary(max_size=400), st.lists(st.integers(1, 60), max_size=9))
def test_random_bytes_are_a_protocol_error_at_most(data, cuts):
    with contextlib.suppress(LinkProtocolError):
        read(LinkFrameReader(Sink(), INPUT_BYTES), data, cuts)
