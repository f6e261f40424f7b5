"""Frames as clients of a broker get them: methods, and messages put together from their frames.

Nothing that comes is trusted: whatever the bytes are, only ConnectionClosingError is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pamqp import commands

from leveret.amqp.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    body_size,
    decode_method,
)
from leveret.errors import ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pamqp import base

__all__ = ["ClientFrames", "Content", "Received"]

FRAME_HEAD_BYTES: Final = 7
CONTENT_HEADER_BYTES_MIN: Final = 14
MESSAGE_BYTES_MAX: Final = 512 * 1024 * 1024  # RabbitMQ's greatest limit
CARRIERS: Final = (commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return)


class Content(NamedTuple):
    """Method with the content that follows it."""

    method: Any
    header: bytes
    body: bytes


Received: TypeAlias = "base.Frame | Content"


class _Unfinished:
    """A message whose frames have not all come."""

    def __init__(self, method: base.Frame) -> None:
        self.method = method
        self.header = b""
        self.body = bytearray()

    @property
    def missing_bytes(self) -> int:
        return body_size(self.header) - len(self.body)


class ClientFrames:
    """Reads what a broker sends. Frames may have `frame_max` bytes, 0: any number."""

    def __init__(self, frame_max: int = 0) -> None:
        self.frame_max = frame_max
        self._data = bytearray()
        self._unfinished: dict[int, _Unfinished] = {}  # by channel

    def received(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[int, Received]]:
        """Yield all that is complete, with its channel; keep the rest.

        Raises ConnectionClosingError.
        """
        self._data += data
        while len(self._data) >= FRAME_HEAD_BYTES:
            size = int.from_bytes(self._data[3:7], "big") + FRAME_OVERHEAD_BYTES
            if 0 < self.frame_max < size:
                raise ConnectionClosingError(501, f"a frame of {size} bytes is too large")
            if len(self._data) < size:
                return
            kind, channel = self._data[0], int.from_bytes(self._data[1:3], "big")
            payload = bytes(self._data[FRAME_HEAD_BYTES : size - 1])
            ends_well = self._data[size - 1 : size] == FRAME_END
            del self._data[:size]
            if not ends_well:
                raise ConnectionClosingError(501, "a frame has no end")
            whole = self._take(kind, channel, payload)
            if whole is not None:
                yield channel, whole

    def _take(self, kind: int, channel: int, payload: bytes) -> Received | None:
        """Return a method without content, or a message once it is complete."""
        if kind == FRAME_HEARTBEAT:
            return None
        unfinished = self._unfinished.get(channel)
        if kind == FRAME_METHOD:
            method = decode_method(payload)
            if not isinstance(method, CARRIERS):
                return method
            if unfinished is not None:
                raise ConnectionClosingError(505, "a message before the last one was complete")
            self._unfinished[channel] = _Unfinished(method)
            return None
        if unfinished is None or kind not in {FRAME_HEADER, FRAME_BODY}:
            raise ConnectionClosingError(505, f"a frame of type {kind} that nothing announced")
        self._add(unfinished, kind, payload)
        if unfinished.missing_bytes:
            return None
        del self._unfinished[channel]
        return Content(unfinished.method, unfinished.header, bytes(unfinished.body))

    @staticmethod
    def _add(unfinished: _Unfinished, kind: int, payload: bytes) -> None:
        is_header = kind == FRAME_HEADER
        if is_header == bool(unfinished.header):
            raise ConnectionClosingError(505, f"a frame of type {kind} out of its turn")
        if not is_header:
            if len(payload) > unfinished.missing_bytes:
                raise ConnectionClosingError(501, "a body is longer than announced")
            unfinished.body += payload
            return
        if len(payload) < CONTENT_HEADER_BYTES_MIN:
            raise ConnectionClosingError(501, "a content header is too short")
        if body_size(payload) > MESSAGE_BYTES_MAX:
            raise ConnectionClosingError(501, f"a message of {body_size(payload)} bytes")
        unfinished.header = payload
