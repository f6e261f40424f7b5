"""Effects: values that a shell performs for a replica, in the order in which they are returned.

Each names the method of `Replica` that answers it, if it is answered. What a node's disk refuses is
answered by `failed`, but what cannot be compared or read for a follower by the end of its link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.ports.replication import LogFiles, LogPlace
    from leveret.replication.messages import Message, Operation
    from leveret.replication.shard import ShardEntry

__all__ = [
    "CarryOut",
    "CompareLogs",
    "Connect",
    "CutLogs",
    "DescribeLogs",
    "Disconnect",
    "Effect",
    "EndReign",
    "FlushLogs",
    "KeepEpoch",
    "OpenLogs",
    "ReadEntry",
    "ReadLog",
    "Replicated",
    "Send",
    "SetInSyncCounts",
    "WriteEntry",
]


class Send(NamedTuple):
    """Send a message over the link to a node; if there is none any more, forget it."""

    node: int
    message: Message


class Connect(NamedTuple):
    """Keep a link open to a node, and to no other: `connected`, `disconnected`.

    The end of a link is told before anything of one that takes its place, at both ends.
    """

    node: int | None


class Disconnect(NamedTuple):
    """Close the present link to or from a node: `disconnected`."""

    node: int


class KeepEpoch(NamedTuple):
    """Make durable that this replica has acted in an epoch: `kept_epoch`."""

    epoch: int


class DescribeLogs(NamedTuple):
    """Flush all files of the shard, then tell what they hold: `described`, with the same number.

    What is carried out only in part (see CarryOut) is forgotten first. Files whose flush has failed
    are written anew: the page cache says of them what the disk may not have. Logs that have less
    than was flushed once are damaged: if the node `keeps` what it has, that is told (`damaged`),
    and nothing is done about it. Otherwise they are cut, and copied anew.
    """

    number: int
    keeps: bool


class CutLogs(NamedTuple):
    """Cut off what stands behind places of logs, durably: `cut`, with the same number.

    This, and DescribeLogs, begin when those before are done.
    """

    number: int
    cuts: tuple[tuple[str, LogPlace], ...]


class CarryOut(NamedTuple):
    """Write what a frame says.

    A file or log is removed, and a file that is copied takes its name, at the end of the flush that
    covers all before.
    """

    operations: tuple[Operation, ...]


class FlushLogs(NamedTuple):
    """Make durable what was carried out so far, of all logs: `flushed`, with the same number."""

    number: int


class CompareLogs(NamedTuple):
    """Compare a follower's logs with this node's: `compared`, with the same number.

    Before they are open, those are as they were described last.
    """

    follower: int
    number: int
    logs: Iterable[LogFiles]
    keeps: bool  # whether the follower is in sync (attaching.compare)


class ReadLog(NamedTuple):
    """Read raw batches of a log: `read`, with the same number.

    If a device must be waited for, `read_waits` comes first.
    """

    follower: int
    number: int
    log: str
    place: LogPlace
    offset: int
    bytes_max: int


class OpenLogs(NamedTuple):
    """Open the logs for an epoch in which this node leads: `opened`."""

    epoch: int


class Replicated(NamedTuple):
    """Tell a log up to where all copies that count have it (ports.ReplicatedLog.replicated)."""

    log: str
    place: LogPlace
    offset: int


class SetInSyncCounts(NamedTuple):
    """Commit nothing from now on of open logs that need more nodes in sync than there are.

    While the in-sync set is written, `in_sync` is the size of the smaller one. No log needs more
    nodes than were `ever_in_sync`.
    """

    in_sync: int
    ever_in_sync: int


class ReadEntry(NamedTuple):
    """Read the shard's entry, behind all writes that are done: `learned`. Repeat until it works."""


class WriteEntry(NamedTuple):
    """Replace the entry that has the change before: `written`.

    Each of the `members` must still have its incarnation in the coordinator.
    """

    entry: ShardEntry
    members: tuple[tuple[int, int], ...] = ()


class EndReign(NamedTuple):
    """Serve nobody any more, and commit nothing, at once: another may lead.

    A replica whose role is OVER afterwards does no more: its shell begins anew, as a process if it
    has led.
    """

    reason: str


Effect = (
    Send
    | Connect
    | Disconnect
    | KeepEpoch
    | DescribeLogs
    | CutLogs
    | CarryOut
    | FlushLogs
    | CompareLogs
    | ReadLog
    | OpenLogs
    | Replicated
    | SetInSyncCounts
    | ReadEntry
    | WriteEntry
    | EndReign
)
