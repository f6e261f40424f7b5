"""In-process client of the HTTP API: it publishes and gets as any AMQP client does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.errors import ChannelError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leveret.ports.authentication import Rights

__all__ = ["Got", "OverRateError", "RejectedError", "Session", "Sessions"]


class RejectedError(ChannelError):
    """Raised when a queue has refused the message."""


class OverRateError(TimeoutError):
    """Raised when a rate limit blocks the publish; the message was not accepted."""


class Got(NamedTuple):
    """A message returned by basic.get."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int  # messages ready behind it
    header: bytes  # content header payload
    body: bytes


class Session(Protocol):
    """One connection with one channel; runs one request after the other.

    Every method raises ChannelError or ConnectionClosingError with the broker's reply text, and
    TimeoutError if the broker does not answer in time (OverRateError if a rate limit is the cause).
    """

    async def publish(self, exchange: str, routing_key: str, header: bytes, body: bytes) -> bool:
        """Publish one message and wait for its confirm. Returns whether a queue has taken it.

        `header` is the payload of its content header. Also raises RejectedError.
        """
        ...

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        """Get one message; None if none is ready."""
        ...

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Reject a message: requeue it, or discard it."""
        ...


class Sessions(Protocol):
    """Factory of sessions."""

    def open(
        self, rights: Rights, vhost: str, peer: tuple[str, int]
    ) -> AbstractAsyncContextManager[Session]:
        """Open a session of a user; its connection is listed with `peer`, host and port.

        Unsettled messages are requeued when the session ends.
        """
        ...
