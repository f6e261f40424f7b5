"""Who has changed what on a node: what is written down, and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Actor", "AuditQuery", "AuditRecord", "AuditStore", "Way"]


class Way(StrEnum):
    """How an administrator reached the node."""

    COMMAND_LINE = "cli"
    HTTP = "http"
    PAGES = "ui"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks: a user's name, the address he comes from (empty on this machine), and by what."""

    user: str
    peer: str
    way: Way


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One request that changed something, or was refused. `parameters` hold no secrets."""

    at_ms: int  # since 1970
    actor: Actor
    operation: str
    parameters: Mapping[str, Any]
    error: str = ""  # the code of a refusal
    explanation: str = ""
    number: int = 0  # ascending in time; given by the store


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which records are wanted; what is None does not matter."""

    since_ms: int | None = None
    until_ms: int | None = None
    user: str | None = None
    operation: str | None = None  # its name, or its beginning: "queue."
    before: int | None = None  # only records with a smaller number: the next page


class AuditStore(Protocol):
    """Records of what was done, the latest first."""

    async def add(self, record: AuditRecord) -> None:
        """Write one down; durable on return. Raises StorageError."""
        ...

    async def read(self, query: AuditQuery, count_max: int) -> Sequence[AuditRecord]:
        """At most so many records, the latest first. Raises StorageError."""
        ...

    async def forget(self, before_ms: int) -> None:
        """Drop what is older. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...
