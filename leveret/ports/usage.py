"""Who has used how much: what the broker counts, and where the counts are kept."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["HOUR_SECONDS", "Account", "Subject", "Usage", "UsageStore"]

HOUR_SECONDS = 3600


class Subject(StrEnum):
    """Whose usage is counted."""

    VHOST = "vhost"  # all that its connections have sent and received
    USER = "user"  # in one virtual host
    QUEUE = "queue"


class Account(NamedTuple):
    """One of those whose usage is counted; a virtual host's name is its own."""

    subject: Subject
    vhost: str
    name: str


class Usage(NamedTuple):
    """Messages, and their bytes as they are stored: content header, body and address.

    In: published by clients, or written to a queue. Out: delivered to clients, each time.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def since(self, earlier: Usage) -> Usage:
        """What has come on top; never less than nothing."""
        return Usage(*(max(now - then, 0) for now, then in zip(self, earlier, strict=True)))


class UsageStore(Protocol):
    """Usage by the hour. Hours are told by the second of their beginning, since 1970."""

    async def add(self, hour: int, used: Mapping[Account, Usage]) -> None:
        """Add to what is known of an hour; durable on return. Raises StorageError."""
        ...

    async def read(self, since: int, until: int) -> Sequence[tuple[int, Account, Usage]]:
        """What is known of the hours that begin in [since, until), in the order of the hours."""
        ...

    async def unpublished(self, before: int) -> Sequence[int]:
        """The hours that began before this and were not marked as published."""
        ...

    async def mark_published(self, hour: int) -> None:
        """An hour was told to whoever listens."""
        ...

    async def forget(self, before: int) -> None:
        """Drop the hours that began before this."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...
