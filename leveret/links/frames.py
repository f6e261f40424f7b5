"""Frames of a link, and the machine that reads them. All numbers are little-endian.

    offset  bytes
         0      4  length of the payload in this frame
         4      1  kind of the frame
         5      1  flags: 1 = the checksum does not cover the payload
         6      2  code: kind of the message, or reason of an error
         8      8  id of the request or stream; 0 for the link and for one-way messages
        16      4  size: bytes of the whole message, or of credit
        20      4  CRC-32C of the 20 bytes above, and then of the payload
        24         payload

A message that is larger than a frame's payload goes on in frames MORE with its id. The layout may
change with the version that the handshake agrees on (`leveret.links.handshake.VERSIONS`): for a new
one, add a reader and a writer beside these, and keep these for as long as two releases may meet.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from crc32c import crc32c

from leveret.links.errors import CloseReason, LinkProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FRAME_BYTES_MAX", "FrameKind", "FrameSink", "LinkFrame", "LinkFrameReader", "encode"]

LAYOUT: Final = Struct("<IBBHQI")
CHECKSUM: Final = Struct("<I")
HEADER_BYTES: Final = LAYOUT.size + CHECKSUM.size
UNCHECKED: Final = 1
# Payload of one frame. It bounds what is read before a checksum is compared, and how long a
# heartbeat waits for the frame before it.
FRAME_BYTES_MAX: Final = 1024 * 1024
# A payload up to this is read together with what surrounds it, and copied out.
IN_PLACE_BYTES_MAX: Final = 16 * 1024
# Rest of a payload from which on it is read straight to its place, without a copy.
DIRECT_BYTES_MIN: Final = 16 * 1024
# Bytes to read for the header after a large payload: the payload after it is to be read directly.
BETWEEN_BYTES: Final = 4 * 1024


class FrameKind(IntEnum):
    """Kind of a frame. The numbers are part of the protocol."""

    PING = 1  # payload: 8 bytes that the answer repeats
    PONG = 2
    CLOSE = 3  # code: CloseReason; payload: text
    REQUEST = 4  # code: kind of request
    ANSWER = 5
    REFUSED = 6  # code: RefusalCode or a handler's; payload: text; ends a request or a stream
    CANCEL = 7  # the answer is not wanted any more; there is one all the same
    ONE_WAY = 8  # code: kind of message
    OPEN = 9  # code: kind of stream
    MESSAGE = 10  # of a stream
    CREDIT = 11  # size: bytes of the stream that may come in addition
    END = 12  # of a stream's messages in this direction
    MORE = 13  # of the message that was begun with this id


KINDS: Final = {int(kind): kind for kind in FrameKind}


class LinkFrame(NamedTuple):
    """Header of a frame."""

    length: int
    kind: FrameKind
    code: int
    stream: int
    size: int


class FrameSink(Protocol):
    """Consumer of the frames that a `LinkFrameReader` reads."""

    def place(self, frame: LinkFrame) -> memoryview | None:
        """Return where the payload is to be put, `frame.length` bytes; None if it need not be kept.

        Without a place it is passed to `take_frame` in the reader's buffer, which has room for
        IN_PLACE_BYTES_MAX. Raises LinkProtocolError for a frame that must not come now.
        """
        ...

    def take_frame(self, frame: LinkFrame, payload: memoryview) -> None:
        """Process a frame whose checksum is right. `payload` is valid during the call."""
        ...


def encode(frame: LinkFrame, payload: Sequence[bytes | memoryview], *, checked: bool) -> bytes:
    """Return the header of a frame with this payload."""
    length, kind, code, stream, size = frame
    head = LAYOUT.pack(length, kind, 0 if checked else UNCHECKED, code, stream, size)
    checksum = crc32c(head)
    if checked:
        for piece in payload:
            checksum = crc32c(piece, checksum)
    return head + CHECKSUM.pack(checksum)


class LinkFrameReader:
    """Machine that turns the bytes of a link into frames.

    `buffer` says where the next bytes belong, `received` that so many of them are there. Large
    payloads are received where they stay, others share one buffer.
    """

    __slots__ = (
        "_begin",
        "_checksum",
        "_end",
        "_expected",
        "_filled",
        "_frame",
        "_input",
        "_is_direct",
        "_is_unchecked",
        "_sink",
        "_target",
    )

    def __init__(self, sink: FrameSink, input_bytes: int) -> None:
        assert input_bytes >= HEADER_BYTES + IN_PLACE_BYTES_MAX, "a small frame fits"
        self._sink = sink
        self._input = memoryview(bytearray(input_bytes))
        self._begin = self._end = 0  # what is in it and not read
        self._frame: LinkFrame | None = None  # whose payload is not complete
        self._is_unchecked = False
        self._checksum = 0  # of its header
        self._expected = 0
        self._target: memoryview | None = None  # place of its payload
        self._filled = 0
        self._is_direct = False

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be put; never empty."""
        target = self._target
        if target is not None and len(target) - self._filled >= DIRECT_BYTES_MIN:
            self._is_direct = True
            return target[self._filled :]
        after_large = self._is_direct and target is None
        self._is_direct = False
        self._make_room()
        stop = self._end + BETWEEN_BYTES if after_large else len(self._input)
        return self._input[self._end : stop]

    def received(self, count: int) -> None:
        """Process `count` bytes that were put into `buffer()`. Raises LinkProtocolError."""
        if self._is_direct:
            self._filled += count
            frame = self._frame
            assert frame is not None, "a target is that of a frame"
            if self._filled == frame.length:
                self._finish(frame, self._target)
            return
        self._end += count
        while self._read_frame():
            pass

    def _make_room(self) -> None:
        if self._begin:
            rest = self._end - self._begin
            self._input[:rest] = self._input[self._begin : self._end]
            self._begin, self._end = 0, rest

    def _read_frame(self) -> bool:
        """Read what is there of a frame. Returns whether it was complete."""
        frame = self._frame
        if frame is None:
            if self._end - self._begin < HEADER_BYTES:
                return False
            frame = self._read_header()
        target = self._target
        available = self._end - self._begin
        if target is None:
            if available < frame.length:
                return False
            stop = self._begin + frame.length
            payload = self._input[self._begin : stop]
            self._begin = stop
            self._finish(frame, payload)
            return True
        taken = min(frame.length - self._filled, available)
        target[self._filled : self._filled + taken] = self._input[self._begin : self._begin + taken]
        self._begin += taken
        self._filled += taken
        if self._filled < frame.length:
            return False
        self._finish(frame, target)
        return True

    def _read_header(self) -> LinkFrame:
        at = self._begin
        length, number, flags, code, stream, size = LAYOUT.unpack_from(self._input, at)
        kind = KINDS.get(number)
        if kind is None:
            raise LinkProtocolError(CloseReason.UNKNOWN_KIND, f"unknown kind of frame {number}")
        if flags & ~UNCHECKED:
            raise LinkProtocolError(CloseReason.MALFORMED, f"unknown flags {flags:#x} of a frame")
        if length > FRAME_BYTES_MAX:
            raise LinkProtocolError(CloseReason.TOO_LARGE, f"a frame of {length} bytes")
        frame = LinkFrame(length, kind, code, stream, size)
        self._is_unchecked = bool(flags)
        (self._expected,) = CHECKSUM.unpack_from(self._input, at + LAYOUT.size)
        self._checksum = crc32c(self._input[at : at + LAYOUT.size])
        if self._is_unchecked and self._checksum != self._expected:
            raise _damaged(frame)
        target = self._sink.place(frame)
        assert (target is None and length <= IN_PLACE_BYTES_MAX) or (
            target is not None and len(target) == length
        ), "the sink gives room for what is too large for the buffer"
        self._begin = at + HEADER_BYTES
        self._frame, self._target, self._filled = frame, target, 0
        return frame

    def _finish(self, frame: LinkFrame, payload: memoryview | None) -> None:
        assert payload is not None, "the frame is complete"
        if not self._is_unchecked and crc32c(payload, self._checksum) != self._expected:
            raise _damaged(frame)
        self._frame = self._target = None
        self._sink.take_frame(frame, payload)


def _damaged(frame: LinkFrame) -> LinkProtocolError:
    return LinkProtocolError(
        CloseReason.CHECKSUM, f"the checksum of a frame {frame.kind.name} is wrong"
    )
