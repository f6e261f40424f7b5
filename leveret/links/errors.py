"""Errors of links: whose fault they are, and how much they close."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from leveret.errors import LeveretError

__all__ = [
    "CloseReason",
    "HandshakeError",
    "LinkError",
    "LinkProtocolError",
    "MessageTooLargeError",
    "PeerRefusedError",
    "PeerUnavailableError",
    "RefusalCode",
    "RequestTimeoutError",
    "StreamFailedError",
    "Unavailable",
]

CODE_MAX: Final = 0xFFFF


class CloseReason(IntEnum):
    """Reason that a frame CLOSE gives. The numbers are part of the protocol."""

    GOING_AWAY = 1  # the node stops, or needs the link no more
    MALFORMED = 2  # a frame cannot be what was sent
    UNKNOWN_KIND = 3
    TOO_LARGE = 4
    CHECKSUM = 5
    OUT_OF_ORDER = 6  # a frame that cannot come at this point
    TOO_MANY = 7
    REPLACED = 8  # the same node has connected once more
    UNRESPONSIVE = 9
    WRONG_NODE = 10


class RefusalCode(IntEnum):
    """Why a request or a stream was not served. Handlers add codes of their own from 100 on."""

    INTERNAL = 1  # the handler failed; the other node's log says how
    UNKNOWN_KIND = 2  # nobody there handles such requests: an older release, perhaps
    BUSY = 3  # too much is being worked on
    CANCELLED = 4


class Unavailable(Enum):
    """Why a peer could not be asked."""

    NO_ADDRESS = "has no address"
    DOWN = "is not connected"
    BREAKER_OPEN = "did not answer lately, its circuit breaker is open"
    QUEUE_FULL = "is too slow, too much is queued to it"
    LOST = "was lost before it answered"  # and may have done what it was asked for
    CLOSED = "is not wanted any more"


class LinkError(LeveretError):
    """Root of the errors of links."""


class HandshakeError(LinkError):
    """A handshake that failed; the text says what is to be done about it."""


class LinkProtocolError(LinkError):
    """A peer's mistake, which closes the link: only this comes from bytes of a peer."""

    def __init__(self, reason: CloseReason, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


class PeerUnavailableError(LinkError):
    """A peer that cannot be reached now: `why` says whether it may have seen the request."""

    def __init__(self, node: int, why: Unavailable) -> None:
        super().__init__(f"node {node} {why.value}")
        self.node = node
        self.why = why


class MessageTooLargeError(LinkError):
    """A message larger than the other node accepts."""


class RequestTimeoutError(LinkError):
    """A request that was not answered in time, and was cancelled."""


class PeerRefusedError(LinkError):
    """The other side's refusal of a request; handlers raise it, too, to refuse one."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        assert 0 <= code <= CODE_MAX, "a code has two bytes"
        self.code = code
        self.text = text


class StreamFailedError(LinkError):
    """A stream that one side has ended before its time."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        assert 0 <= code <= CODE_MAX, "a code has two bytes"
        self.code = code
        self.text = text
