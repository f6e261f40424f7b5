"""Messages between the leader of a shard and a follower.

A follower opens the link. Messages of one link arrive in their order or not at all.

A message of another epoch is not carried out. `Attach` is answered with `Refused`, `Operations` of
an older epoch with `Detached`; a newer epoch has the entry read. `Refused` counts whatever its
epoch, if it comes from the leader that is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.ports.replication import LogFiles, LogPlace

__all__ = [
    "Acknowledge",
    "Append",
    "Attach",
    "Attached",
    "Copy",
    "Detached",
    "Drop",
    "Message",
    "Operation",
    "Operations",
    "Refused",
    "Remove",
]


class Attach(NamedTuple):
    """A follower's logs, all of which are flushed as they are named here.

    As the leader gets them, they are decoded when they are compared (see codec.EncodedLogs).
    """

    epoch: int
    incarnation: int
    logs: Iterable[LogFiles]


class Attached(NamedTuple):
    """Places in logs behind which the follower cuts, to attach again; without any it follows."""

    epoch: int
    cuts: tuple[tuple[str, LogPlace], ...] = ()


class Refused(NamedTuple):
    """The leader's answer to whom it does not lead: the epoch it knows."""

    epoch: int


class Detached(NamedTuple):
    """The follower's answer to a leader that it does not follow: the epoch it knows."""

    epoch: int


class Append(NamedTuple):
    """Batches that follow at the end of a log, from a place on."""

    log: str
    place: LogPlace
    data: bytes | bytearray | memoryview


class Copy(NamedTuple):
    """Bytes of a compacted file, which takes the place of an older one when it is whole."""

    log: str
    place: LogPlace
    data: bytes | bytearray | memoryview
    is_last: bool


class Remove(NamedTuple):
    """A file that is no part of a log any more."""

    log: str
    base: int
    revision: int


class Drop(NamedTuple):
    """A log that was deleted."""

    log: str


Operation = Append | Copy | Remove | Drop


class Operations(NamedTuple):
    """A frame of operations; frames are numbered from 1 on after each `Attached`."""

    epoch: int
    frame: int
    operations: tuple[Operation, ...]


class Acknowledge(NamedTuple):
    """All up to a frame was carried out, and is on the follower's disk."""

    epoch: int
    frame: int


Message = Attach | Attached | Refused | Detached | Operations | Acknowledge
