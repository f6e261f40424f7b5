"""Audit records of administrators' requests, and the interface of their store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Actor", "AuditQuery", "AuditRecord", "AuditStore", "Way"]


class Way(StrEnum):
    """Interface by which an administrator reached the node."""

    COMMAND_LINE = "cli"
    HTTP = "http"
    PAGES = "ui"


@dataclass(frozen=True, slots=True)
class Actor:
    """User who makes a request, peer address (empty on this machine), and interface used."""

    user: str
    peer: str
    way: Way


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Record of a request that changed something or was refused. `parameters` hold no secrets."""

    at_ms: int  # since 1970
    actor: Actor
    operation: str
    parameters: Mapping[str, Any]
    error: str = ""  # the error code if the request was refused
    explanation: str = ""
    number: int = 0  # ascending in time; assigned by the store


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Filter for audit records; a None field matches everything."""

    since_ms: int | None = None
    until_ms: int | None = None
    user: str | None = None
    operation: str | None = None  # the name, or a prefix of it: "queue."
    before: int | None = None  # only records with a smaller number: the next page


class AuditStore(Protocol):
    """Store of audit records."""

    async def add(self, record: AuditRecord) -> None:
        """Store a record; durable on return. Raises StorageError."""
        ...

    async def read(self, query: AuditQuery, count_max: int) -> Sequence[AuditRecord]:
        """Return at most `count_max` matching records, latest first. Raises StorageError."""
        ...

    async def forget(self, before_ms: int) -> None:
        """Delete records older than `before_ms`. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...
