"""Usage accounting: messages and bytes by virtual host, user and queue, and their store."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = [
    "HOUR_SECONDS",
    "NOTHING_COUNTED",
    "Account",
    "CountedLog",
    "CountedLogs",
    "Subject",
    "Usage",
    "UsageStore",
]

HOUR_SECONDS = 3600


class Subject(StrEnum):
    """Kind of entity whose usage is counted."""

    VHOST = "vhost"  # all that the connections of a virtual host sent and received
    USER = "user"  # per virtual host
    QUEUE = "queue"


class Account(NamedTuple):
    """Entity whose usage is counted; for a virtual host, `name` is its own name."""

    subject: Subject
    vhost: str
    name: str


class Usage(NamedTuple):
    """Counts of messages and of their bytes as stored: content header, body and address.

    In: published by clients, or written to a queue. Out: delivered to clients, redeliveries
    included.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def since(self, earlier: Usage) -> Usage:
        """Return the increase since `earlier`, each field at least 0."""
        return Usage(*(max(now - then, 0) for now, then in zip(self, earlier, strict=True)))


class CountedLog(NamedTuple):
    """Log of a queue whose records are counted. Another queue of the name has another incarnation.

    `queue` is the name with which the queue was declared.
    """

    vhost: str
    queue: str
    incarnation: str
    partition: int


class CountedLogs(NamedTuple):
    """How far logs were counted: the end of each, as of `at_ms`, milliseconds since 1970.

    Messages below these offsets are in the usage that is stored, others are not.
    """

    ends: Mapping[CountedLog, int]
    at_ms: int | None = None  # None: nothing was ever counted


NOTHING_COUNTED: Final = CountedLogs(MappingProxyType({}))


class UsageStore(Protocol):
    """Usage per hour. An hour is identified by its beginning, in seconds since 1970."""

    async def add(
        self, hour: int, used: Mapping[Account, Usage], counted: CountedLogs = NOTHING_COUNTED
    ) -> None:
        """Add to the usage of an hour, and note how far logs were counted by that: both or none.

        Durable on return. Raises StorageError.
        """
        ...

    async def counted(self) -> CountedLogs:
        """Return how far logs were counted."""
        ...

    async def forget_logs(self, logs: Collection[CountedLog]) -> None:
        """Delete what was noted of logs that exist no more."""
        ...

    async def forget_counted(self) -> None:
        """Delete what was noted of all logs, as if nothing was ever counted. Usage remains.

        Durable on return. Raises StorageError.
        """
        ...

    async def read(self, since: int, until: int) -> Sequence[tuple[int, Account, Usage]]:
        """Return (hour, account, usage) of the hours that begin in [since, until), ascending."""
        ...

    async def unpublished(self, before: int) -> Sequence[int]:
        """Return the hours that began before `before` and are not marked as published."""
        ...

    async def mark_published(self, hour: int) -> None:
        """Mark an hour's usage as published in an event."""
        ...

    async def forget(self, before: int) -> None:
        """Delete the hours that began before `before`."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...
