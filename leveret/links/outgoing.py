"""Queue of what is to be sent on a link: small frames first, large messages in turns of fragments.

    control ── heartbeats, credit ────────────────────────────────► first
    small ──── messages of one frame, ends, errors, in order ─────► next, SMALL_RUN_BYTES at a time
    begun ──── up to `interleaved_max` large ones, a fragment each ► then one, and again
    large ──── wait to be begun

Messages of one stream keep their order: each stream has a `SendQueue`, which lets a message into
one of these only when none before it could be overtaken, and when there is credit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.links.errors import CODE_MAX
from leveret.links.frames import HEADER_BYTES, IN_PLACE_BYTES_MAX, FrameKind, LinkFrame, encode

if TYPE_CHECKING:
    from leveret.links.settings import LinkSettings

__all__ = [
    "MESSAGE_COST_BYTES",
    "Outgoing",
    "OutgoingMessage",
    "Payload",
    "SelfChecked",
    "SendQueue",
]

Payload = bytes | bytearray | memoryview | list[bytes | memoryview]


class SelfChecked(NamedTuple):
    """An answer whose receiver verifies it by checksums within it, such as those of batches.

    The link then checks its frames' headers only, which saves a pass over the bytes on both sides.
    """

    payload: Payload


# Credit that a message takes beside its payload's bytes: empty ones are not free.
MESSAGE_COST_BYTES: Final = 64
# Bytes of small frames after which a large message has a turn: it must get on as well.
SMALL_RUN_BYTES: Final = 256 * 1024
# Longer payloads are handed to the socket as they are; copying shorter ones costs less than a
# buffer of their own.
JOINED_BYTES_MAX: Final = 4 * 1024


class OutgoingMessage:
    """A message on its way: the header of its first frame, and its payload, cut as it is sent."""

    __slots__ = (
        "at",
        "begun",
        "frame",
        "is_checked",
        "owner",
        "piece_at",
        "pieces",
        "sent",
        "size",
    )

    def __init__(
        self,
        frame: LinkFrame,
        payload: Payload = b"",
        *,
        is_checked: bool = True,
        owner: SendQueue | None = None,
    ) -> None:
        """`frame` needs kind, code and id; length and size are those of the payload."""
        assert 0 <= frame.code <= CODE_MAX, "a kind or code has two bytes"
        self.pieces = _pieces(payload)
        self.size = size = sum(map(len, self.pieces))
        self.frame = LinkFrame(size, frame.kind, frame.code, frame.stream, size)
        self.is_checked = is_checked
        self.owner = owner
        self.begun = False
        self.piece_at = 0  # the piece that is sent next
        self.at = 0  # how much of it is sent
        self.sent = 0

    def whole(self) -> list[bytes | memoryview]:
        """Return the buffers of the message as one frame."""
        head = encode(self.frame, self.pieces, checked=self.is_checked)
        if self.size <= JOINED_BYTES_MAX:
            return [b"".join((head, *self.pieces))]
        return [head, *self.pieces]

    def fragment(self, bytes_max: int) -> list[bytes | memoryview]:
        """Return the buffers of the next frame, with `bytes_max` of the payload or the rest."""
        length = min(bytes_max, self.size - self.sent)
        payload = self._cut(length)
        frame = self.frame._replace(length=length)
        if self.begun:
            frame = LinkFrame(length, FrameKind.MORE, 0, frame.stream, 0)
        self.begun = True
        self.sent += length
        return [encode(frame, payload, checked=self.is_checked), *payload]

    def _cut(self, wanted: int) -> list[bytes | memoryview]:
        taken: list[bytes | memoryview] = []
        while wanted:
            piece = self.pieces[self.piece_at]
            part = memoryview(piece)[self.at : self.at + wanted]
            wanted -= len(part)
            self.at += len(part)
            if self.at == len(piece):
                self.piece_at, self.at = self.piece_at + 1, 0
            if part:
                taken.append(part)
        return taken


def _pieces(payload: Payload) -> list[bytes | memoryview]:
    if isinstance(payload, list):
        return payload
    return [memoryview(payload) if isinstance(payload, bytearray) else payload]


class SendQueue:
    """Messages of one stream, or one-way messages, in their order.

    `credit` are bytes that the other side has room for, None where it need not say. A message may
    overdraw it once: one that is larger than all credit must get through.
    """

    __slots__ = ("bytes_waiting", "credit", "large_begun", "small_queued", "waiting")

    def __init__(self, credit: int | None) -> None:
        self.credit = credit
        self.waiting: deque[OutgoingMessage] = deque()
        self.bytes_waiting = 0
        self.small_queued = 0  # messages among the small ones
        self.large_begun = False  # whether one is among the large ones

    @property
    def is_idle(self) -> bool:
        """Whether the next message may take the short way, past `waiting`."""
        return not (self.waiting or self.large_begun)

    @property
    def is_empty(self) -> bool:
        """Whether everything was sent."""
        return not (self.waiting or self.large_begun or self.small_queued)

    def ends_with(self, kind: FrameKind) -> bool:
        """Return whether the last of the waiting messages is of this kind."""
        return bool(self.waiting) and self.waiting[-1].frame.kind is kind

    def may_send(self, message: OutgoingMessage) -> bool:
        """Return whether there is credit for a message; only payloads of streams need any."""
        return self.credit is None or message.frame.kind is not FrameKind.MESSAGE or self.credit > 0

    def spend(self, message: OutgoingMessage) -> None:
        """Take the credit of a message that is about to be sent."""
        if self.credit is not None and message.frame.kind is FrameKind.MESSAGE:
            self.credit -= message.size + MESSAGE_COST_BYTES


class Outgoing:
    """Machine of one link's output. `queued_bytes` is what waits in it, credit or not aside."""

    __slots__ = ("_begun", "_control", "_fragment_bytes", "_interleaved_max", "_large", "_small",
                 "queued_bytes")  # fmt: skip

    def __init__(self, settings: LinkSettings, interleaved_max: int) -> None:
        self._fragment_bytes = settings.fragment_bytes
        self._interleaved_max = interleaved_max
        self._control: deque[bytes] = deque()
        self._small: deque[OutgoingMessage] = deque()
        self._large: deque[OutgoingMessage] = deque()
        self._begun: deque[OutgoingMessage] = deque()
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        """Return whether there is something to be sent."""
        return bool(self._small or self._control or self._begun or self._large)

    # -- what is added

    def add_control(self, frame: LinkFrame, payload: bytes = b"") -> None:
        """Add a frame that goes before all others."""
        frame = frame._replace(length=len(payload))
        self._control.append(encode(frame, [payload], checked=True) + payload)

    def add(self, message: OutgoingMessage) -> None:
        """Add a message; after those of its owner, if it has one."""
        owner = message.owner
        if owner is None:
            self._queue(message)
        elif owner.is_idle and owner.may_send(message) and message.size <= IN_PLACE_BYTES_MAX:
            self._queue_small_of(owner, message)
        else:
            owner.waiting.append(message)
            owner.bytes_waiting += message.size
            self.advance(owner)

    def advance(self, owner: SendQueue) -> None:
        """Queue what may be sent of an owner's messages now."""
        while owner.waiting and not owner.large_begun and owner.may_send(owner.waiting[0]):
            message = owner.waiting[0]
            is_small = message.size <= IN_PLACE_BYTES_MAX
            if not is_small and owner.small_queued:
                return  # a large one may be sent before small ones
            owner.waiting.popleft()
            owner.bytes_waiting -= message.size
            if is_small:
                self._queue_small_of(owner, message)
            else:
                owner.large_begun = True
                owner.spend(message)
                self._queue(message)

    def _queue_small_of(self, owner: SendQueue, message: OutgoingMessage) -> None:
        owner.small_queued += 1
        owner.spend(message)
        self._queue(message)

    def _queue(self, message: OutgoingMessage) -> None:
        self.queued_bytes += message.size + HEADER_BYTES
        (self._small if message.size <= IN_PLACE_BYTES_MAX else self._large).append(message)

    # -- what is dropped

    def drop_waiting(self, owner: SendQueue) -> OutgoingMessage | None:
        """Drop an owner's messages but those that are small and queued. Returns its large one."""
        owner.waiting.clear()
        owner.bytes_waiting = 0
        if owner.large_begun:
            for message in (*self._begun, *self._large):
                if message.owner is owner:
                    self._remove(message)
                    return message
        return None

    def drop_large(self, stream: int) -> OutgoingMessage | None:
        """Drop the large message of this id. Returns it; None if there is none."""
        for message in (*self._begun, *self._large):
            if message.frame.stream == stream:
                self._remove(message)
                return message
        return None

    def _remove(self, message: OutgoingMessage) -> None:
        (self._begun if message in self._begun else self._large).remove(message)
        self.queued_bytes -= message.size - message.sent + HEADER_BYTES
        if message.owner is not None:
            message.owner.large_begun = False

    # -- what is sent

    def take(self, bytes_max: int) -> list[bytes | memoryview]:
        """Return buffers to be sent, of `bytes_max` bytes or a little more."""
        buffers: list[bytes | memoryview] = list(self._control)
        self._control.clear()
        left = bytes_max
        while left > 0:
            taken = self._take_small(min(left, SMALL_RUN_BYTES), buffers)
            taken += self._take_fragment(buffers)
            if not taken:
                break
            left -= taken
        return buffers

    def _take_small(self, bytes_max: int, buffers: list[bytes | memoryview]) -> int:
        taken = 0
        small = self._small
        while small and taken < bytes_max:
            message = small.popleft()
            buffers += message.whole()
            taken += message.size + HEADER_BYTES
            owner = message.owner
            if owner is not None:
                owner.small_queued -= 1
                if owner.waiting:
                    self.advance(owner)
        self.queued_bytes -= taken
        return taken

    def _take_fragment(self, buffers: list[bytes | memoryview]) -> int:
        """Take a fragment of the large message whose turn it is."""
        while self._large and len(self._begun) < self._interleaved_max:
            self._begun.append(self._large.popleft())
        if not self._begun:
            return 0
        message = self._begun.popleft()
        before = message.sent
        buffers += message.fragment(self._fragment_bytes)
        taken = message.sent - before
        self.queued_bytes -= taken
        if message.sent < message.size:
            self._begun.append(message)
            return taken + HEADER_BYTES
        self.queued_bytes -= HEADER_BYTES
        if message.owner is not None:
            message.owner.large_begun = False
            self.advance(message.owner)
        return taken + HEADER_BYTES
