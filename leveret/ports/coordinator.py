"""Coordinator: the small, consistent store in which nodes agree who leads what.

A tree of entries, each with a value and a version that counts its writes. A node has a *session*
with it for as long as it is heard of often enough; an ephemeral entry is gone with the session that
made it, which is how others learn that a node is dead. A node is to know that before the others do:
its *lease* is over before its session can be.

Paths begin with a slash and have names of ASCII between slashes, none of which is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from leveret.errors import LeveretError

__all__ = [
    "CheckEntry",
    "Coordinator",
    "CoordinatorEntry",
    "CoordinatorError",
    "CoordinatorRefusedError",
    "CoordinatorUnavailableError",
    "CreateEntry",
    "DeleteEntry",
    "EntryOperation",
    "SetEntry",
    "WriteOutcome",
]


class CoordinatorError(LeveretError):
    """The coordinator did not do what was asked; the text says what an operator can do."""


class CoordinatorUnavailableError(CoordinatorError):
    """The coordinator cannot be reached, or did not answer in time. Later it may."""


class CoordinatorRefusedError(CoordinatorError):
    """The coordinator will not: wrong credentials, or a request that makes no sense to it."""


class WriteOutcome(Enum):
    """Answer to a write. One that is UNKNOWN may still be done at any later time."""

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class CoordinatorEntry(NamedTuple):
    """An entry as it was read. Its value may be anything: whoever reads it must check it.

    The version is 0 when the entry is made, also when it is made anew. `owner` is the session that
    an ephemeral entry goes with.
    """

    value: bytes
    version: int
    owner: int | None = None


class CreateEntry(NamedTuple):
    """Make an entry, whose parent exists: a conflict if there is one already."""

    path: str
    value: bytes = b""
    is_ephemeral: bool = False


class SetEntry(NamedTuple):
    """Replace the value of an entry that has a version, which grows by one."""

    path: str
    value: bytes
    version: int


class DeleteEntry(NamedTuple):
    """Remove an entry that has a version, and no children."""

    path: str
    version: int


class CheckEntry(NamedTuple):
    """Have all the others done only if an entry has a version."""

    path: str
    version: int


EntryOperation = CreateEntry | SetEntry | DeleteEntry | CheckEntry


class Coordinator(Protocol):
    """A node's access to the coordinator. Used on the event loop.

    A session that has ended is followed by a new one, by itself. Nothing that was asked for in one
    session is begun in another.
    """

    on_lost: Callable[[], None]
    """Called on the loop when a session has ended: its lease is over.

    Its ephemeral entries are gone, or will be soon. The new session has neither; it may take a
    while until it can be used.
    """

    @property
    def session(self) -> int | None:
        """The session, as `CoordinatorEntry.owner` has it; None while there is none."""
        ...

    @property
    def lease_until_ms(self) -> int:
        """Time until which this session surely lives; 0 without a lease.

        Counted as CLOCK_BOOTTIME, which goes on while a machine is suspended. It grows at any time,
        and falls to 0 when the session has ended, or is ended here.
        """
        ...

    async def read(self, path: str) -> CoordinatorEntry | None:
        """Return an entry, behind all writes that were answered before, to anybody.

        One exception: servers that were just cut off from the others may answer with an older state
        for seconds. Whoever acts on what he read therefore names its version when he writes. Raises
        CoordinatorUnavailableError, CoordinatorRefusedError.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names of the entries below another, sorted; none if there is no such entry.

        As current as `read`, with the same errors.
        """
        ...

    async def commit(self, *operations: EntryOperation) -> WriteOutcome:
        """Carry out all operations or none; CONFLICT if one of them does not fit what is there.

        UNKNOWN whenever there was no answer, whatever the reason. Raises CoordinatorRefusedError if
        nothing of it can ever be done.
        """
        ...

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called on the loop when something may have changed; return what ends that.

        A hint only, which may come for nothing, and once for many changes. It comes when the entry
        has changed since this node `read` it, or its children since it read the `children`; and
        whenever something may have been missed.
        """
        ...

    def hold_lease(self, path: str) -> None:
        """Hold a lease from now on, as long as an ephemeral entry of this session is there.

        Without the entry the session is given up.
        """
        ...

    async def close(self) -> None:
        """End the lease and then the session. Nothing else can be called afterwards."""
        ...
