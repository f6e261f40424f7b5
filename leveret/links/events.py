"""Events of a link: what its machine tells of what has come from the other side."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "Answered",
    "HeartbeatAnswered",
    "LinkClosed",
    "LinkEvent",
    "MessageCame",
    "RequestCame",
    "RequestCancelled",
    "RequestRefused",
    "StreamEnded",
    "StreamFailed",
    "StreamMessage",
    "StreamOpened",
]


class RequestCame(NamedTuple):
    """A request to be answered by `answer` or `refuse`."""

    id: int
    kind: int
    payload: memoryview


class RequestCancelled(NamedTuple):
    """A request whose answer is not wanted any more; it is answered already."""

    id: int


class Answered(NamedTuple):
    """Answer to a request."""

    id: int
    payload: memoryview


class RequestRefused(NamedTuple):
    """Refusal of a request."""

    id: int
    code: int
    text: str


class MessageCame(NamedTuple):
    """A one-way message."""

    kind: int
    payload: memoryview


class StreamOpened(NamedTuple):
    """A stream that the other side has opened."""

    id: int
    kind: int
    payload: memoryview


class StreamMessage(NamedTuple):
    """A message of a stream; its bytes are to be granted again by `consumed`."""

    id: int
    payload: memoryview


class StreamEnded(NamedTuple):
    """The end of what the other side sends on a stream."""

    id: int


class StreamFailed(NamedTuple):
    """A stream that the other side has ended before its time, in both directions."""

    id: int
    code: int
    text: str


class HeartbeatAnswered(NamedTuple):
    """Answer to the heartbeat that was sent at `sent_ns`."""

    sent_ns: int


class LinkClosed(NamedTuple):
    """The other side closes the link."""

    reason: int
    text: str


LinkEvent = (
    RequestCame
    | RequestCancelled
    | Answered
    | RequestRefused
    | MessageCame
    | StreamOpened
    | StreamMessage
    | StreamEnded
    | StreamFailed
    | HeartbeatAnswered
    | LinkClosed
)
