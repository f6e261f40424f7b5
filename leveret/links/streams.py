"""A stream between two nodes: ordered messages in both directions, each with its own credit."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from leveret.links.errors import (
    MessageTooLargeError,
    PeerUnavailableError,
    RefusalCode,
    StreamFailedError,
    Unavailable,
)
from leveret.links.events import StreamEnded, StreamFailed, StreamMessage
from leveret.ports.callbacks import call_each, do_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.links.errors import LinkError
    from leveret.links.events import StreamOpened
    from leveret.links.identity import NodeIdentity
    from leveret.links.outgoing import Payload
    from leveret.links.sockets import LinkSocket

__all__ = ["LinkStream", "check_size"]

logger = logging.getLogger(__name__)


class LinkStream:
    """One side of a stream. It ends when both sides have ended, or one has failed it.

    A side that does not receive keeps the other one from sending on this stream, and on no other.
    """

    def __init__(self, link: LinkSocket, peer: NodeIdentity, opened: StreamOpened) -> None:
        self.peer = peer
        self.kind = opened.kind
        self.opening = opened.payload  # what it was opened with
        self._id = opened.id
        self._link = link
        self._machine = link.machine
        self._received: deque[memoryview] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._is_over = False  # whether the other side sends no more
        self._error: LinkError | None = None
        self._on_writable: Callable[[], object] = do_nothing

    # -- sending

    @property
    def writable(self) -> bool:
        """Whether it takes another message. If not, the callback is called once it does."""
        return self._error is None and self._machine.is_writable(self._id)

    def on_writable(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever messages are taken again after `writable` was false."""
        self._on_writable = callback

    def send(self, payload: Payload) -> None:
        """Send a message. Its buffers must not be changed afterwards.

        Raises StreamFailedError if the other side has failed the stream, MessageTooLargeError, and
        PeerUnavailableError if the link is lost or too much waits to be sent.
        """
        if self._error is not None:
            raise self._error
        check_size(self._link, payload)
        if not self._machine.is_writable(self._id):
            raise PeerUnavailableError(self.peer.node, Unavailable.QUEUE_FULL)
        self._machine.send_message(self._id, payload)
        self._link.touch()

    def end(self) -> None:
        """Send no more. What the other side sends is received further on."""
        self._machine.end(self._id)
        self._link.touch()

    def fail(self, code: int, text: str) -> None:
        """End both directions at once, and tell the other side why."""
        if self._error is None:
            self._lose(StreamFailedError(code, text))
            self._machine.fail(self._id, code, text)
            self._link.touch()

    # -- receiving

    async def receive(self) -> memoryview | None:
        """Wait for the next message; None after the last one.

        Raises StreamFailedError if a side has failed the stream, PeerUnavailableError if the link
        is lost. One caller at a time.
        """
        while not self._received:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return None
            assert self._waiting is None, "one caller at a time"
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._next()

    def receive_ready(self) -> list[memoryview]:
        """Return the messages that have come, without waiting."""
        return [self._next() for _ in range(len(self._received))]

    def _next(self) -> memoryview:
        payload = self._received.popleft()
        self._machine.consumed(self._id, len(payload))
        self._link.touch()
        return payload

    # -- what happens to it

    def happened(self, event: StreamMessage | StreamEnded | StreamFailed) -> None:
        """Note what the other side has done."""
        if isinstance(event, StreamMessage):
            self._received.append(event.payload)
            self._wake()
        elif isinstance(event, StreamEnded):
            self._is_over = True
            self._wake()
        else:
            self._lose(StreamFailedError(event.code, event.text))

    def lost(self) -> None:
        """Note that the link is gone."""
        self._lose(PeerUnavailableError(self.peer.node, Unavailable.LOST))

    def became_writable(self) -> None:
        """Call back (see `on_writable`)."""
        call_each([self._on_writable], _report)

    def cancel(self) -> None:
        """Fail the stream, as nobody here needs it any more."""
        self.fail(RefusalCode.CANCELLED, "cancelled")

    def _lose(self, error: LinkError) -> None:
        if self._error is None:
            self._error = error
            call_each([self._on_writable], _report)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def check_size(link: LinkSocket, payload: Payload) -> None:
    """Check that the other node accepts a payload. Raises MessageTooLargeError."""
    size = sum(map(len, payload)) if isinstance(payload, list) else len(payload)
    if not link.machine.fits(size):
        raise MessageTooLargeError(f"{size} bytes are more than {link.address} accepts")


def _report(callback: object, error: Exception) -> None:
    logger.error("a callback %r of a stream failed", callback, exc_info=error)
