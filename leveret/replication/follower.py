"""Following: attach to the leader, cut what it does not have, append what it sends, acknowledge."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from leveret.replication.effects import (
    CarryOut,
    Connect,
    CutLogs,
    DescribeLogs,
    Disconnect,
    Effect,
    FlushLogs,
    KeepEpoch,
    ReadEntry,
    Send,
)
from leveret.replication.messages import (
    Acknowledge,
    Attach,
    Attached,
    Message,
    Operations,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.ports.replication import LogFiles
    from leveret.replication.shard import ShardEntry

__all__ = ["Follower"]


class FollowerStep(Enum):
    """How far a follower has come with its leader."""

    UNLINKED = "unlinked"
    DESCRIBING = "describing"
    ATTACHING = "attaching"
    CUTTING = "cutting"
    FOLLOWING = "following"


class Follower:
    """Follows the leader that an entry names, in that epoch alone. `incarnation` is its own.

    `numbers` are those of what it asks of its disk, which no other follower of the node has had:
    an answer to an earlier request says nothing. While it `is_member` of the in-sync set, and once
    the node `has_attached` in this incarnation, so that a leader may be making it a member, it
    keeps all that it has ever flushed.
    """

    def __init__(
        self,
        entry: ShardEntry,
        incarnation: int,
        numbers: Iterator[int],
        *,
        is_member: bool,
        has_attached: bool,
    ) -> None:
        assert entry.leader is not None
        self.is_member = is_member
        self.has_attached = has_attached
        self.leader = entry.leader
        self.epoch = entry.epoch
        self._leaders_incarnation = entry.incarnation
        self._incarnation = incarnation
        self._step = FollowerStep.UNLINKED
        self._is_epoch_kept = False
        self._logs: tuple[LogFiles, ...] | None = None
        self._frame = 0  # the last that was carried out
        self._numbers = numbers
        self._asked = 0  # number of the last request to describe or to cut
        self._flushing: tuple[int, int] | None = None  # number of the flush, and frame it covers

    def follows(self, entry: ShardEntry) -> bool:
        """Whether an entry names the same leader."""
        same = self.leader, self._leaders_incarnation, self.epoch
        return same == (entry.leader, entry.incarnation, entry.epoch)

    def begin(self) -> list[Effect]:
        """Connect to the leader; nothing is said to it before the epoch is kept."""
        return [Connect(self.leader)]

    def kept_epoch(self) -> list[Effect]:
        """Note that the epoch is on the disk."""
        self._is_epoch_kept = True
        return self._attach()

    def connected(self) -> list[Effect]:
        """Attach over a new link."""
        self._frame, self._flushing, self._logs = 0, None, None
        kept: list[Effect] = [] if self._is_epoch_kept else [KeepEpoch(self.epoch)]
        return kept + self._describe()

    def _describe(self) -> list[Effect]:
        self._step = FollowerStep.DESCRIBING
        self._asked = next(self._numbers)
        return [DescribeLogs(self._asked, keeps=self.is_member or self.has_attached)]

    def disconnected(self) -> list[Effect]:
        """Stop: nothing of an ended link counts."""
        self._step, self._flushing = FollowerStep.UNLINKED, None
        return []

    def failed(self) -> list[Effect]:
        """Begin anew over another link, and describe the logs, since the disk refuses.

        Nothing that still comes over this one is carried out or acknowledged.
        """
        self._step, self._flushing = FollowerStep.UNLINKED, None
        return [Disconnect(self.leader)]

    def described(self, number: int, logs: tuple[LogFiles, ...]) -> list[Effect]:
        """Note what this node's files hold, all of it flushed."""
        if self._step is not FollowerStep.DESCRIBING or number != self._asked:
            return []
        self._logs = logs
        return self._attach()

    def _attach(self) -> list[Effect]:
        if (
            self._step is not FollowerStep.DESCRIBING
            or self._logs is None
            or not self._is_epoch_kept
        ):
            return []
        self._step, logs, self._logs = FollowerStep.ATTACHING, self._logs, None
        self.has_attached = True
        return [Send(self.leader, Attach(self.epoch, self._incarnation, logs))]

    def received(self, message: Message) -> list[Effect]:
        """Handle a message of the leader."""
        if isinstance(message, Refused):
            return [ReadEntry(), Disconnect(self.leader)]
        if isinstance(message, Attached) and self._step is FollowerStep.ATTACHING:
            return self._attached(message)
        if isinstance(message, Operations) and self._step is FollowerStep.FOLLOWING:
            return self._carry_out(message)
        return []

    def _attached(self, message: Attached) -> list[Effect]:
        if message.cuts:
            self._step = FollowerStep.CUTTING
            self._asked = next(self._numbers)
            return [CutLogs(self._asked, message.cuts)]
        self._step = FollowerStep.FOLLOWING
        return []

    def cut(self, number: int) -> list[Effect]:
        """Attach again, now that what the leader does not have is gone from the disk."""
        if self._step is not FollowerStep.CUTTING or number != self._asked:
            return []
        return self._describe()

    def _carry_out(self, message: Operations) -> list[Effect]:
        if message.frame != self._frame + 1:
            return [Disconnect(self.leader)]
        self._frame = message.frame
        return [CarryOut(message.operations), *self._flush()]

    def _flush(self) -> list[Effect]:
        """Flush if something is not flushed; one flush runs at a time, and covers all before."""
        if self._flushing is not None:
            return []
        number = next(self._numbers)
        self._flushing = number, self._frame
        return [FlushLogs(number)]

    def flushed(self, number: int) -> list[Effect]:
        """Acknowledge what a flush has covered."""
        if self._flushing is None or self._flushing[0] != number:
            return []
        _, frame = self._flushing
        self._flushing = None
        effects: list[Effect] = [Send(self.leader, Acknowledge(self.epoch, frame))]
        return effects + (self._flush() if self._frame > frame else [])
