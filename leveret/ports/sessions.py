"""A client within the node, as the HTTP API sees it: it publishes and gets as any client does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.errors import ChannelError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leveret.ports.authentication import Rights

__all__ = ["Got", "OverRateError", "RejectedError", "Session", "Sessions"]


class RejectedError(ChannelError):
    """A queue has refused the message."""


class OverRateError(TimeoutError):
    """A rate holds the publish back; the message was not taken."""


class Got(NamedTuple):
    """A message that basic.get has brought."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int  # that are ready behind it
    header: bytes  # content header payload
    body: bytes


class Session(Protocol):
    """One connection with one channel; asks one thing after the other.

    Everything raises ChannelError or ConnectionClosingError with the reply text as it came, and
    TimeoutError where the node lets it wait, a part of which is OverRateError.
    """

    async def publish(self, exchange: str, routing_key: str, header: bytes, body: bytes) -> bool:
        """Publish one message, confirmed. Returns whether a queue has taken it.

        `header` is its content header's payload. Raises RejectedError, too.
        """
        ...

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        """Take one message; None where none is ready."""
        ...

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Give a message back, or up."""
        ...


class Sessions(Protocol):
    """Opens them."""

    def open(
        self, rights: Rights, vhost: str, peer: tuple[str, int]
    ) -> AbstractAsyncContextManager[Session]:
        """A session of a user's; his connection is shown as one from `peer`, host and port.

        What was got and not settled goes back to its queue at the end.
        """
        ...
