"""One node's part in a shard: it leads, follows, or waits for somebody who leads.

    waiting    nobody leads whom it may follow
    following  attaches to the leader, and appends what it sends
    elected    leads, and lets nobody see anything before all have its logs
    leading    has its logs open; serves while its lease runs
    leaving    has stopped serving, and writes itself out of the in-sync set
    over       does no more: a leader's process is replaced, and a follower whose logs are damaged
               becomes another incarnation

An entry of the coordinator decides. Which are older than one in which the replica has acted is kept
on its disk, since a node that has forgotten it could be cut by an older leader.
"""

from __future__ import annotations

from enum import Enum
from itertools import count
from typing import TYPE_CHECKING

from leveret.ports.coordinator import WriteOutcome
from leveret.replication.effects import (
    Connect,
    DescribeLogs,
    Disconnect,
    Effect,
    EndReign,
    KeepEpoch,
    ReadEntry,
    Send,
)
from leveret.replication.follower import Follower
from leveret.replication.leader import Leader
from leveret.replication.limits import ReplicationLimits
from leveret.replication.messages import (
    Acknowledge,
    Attach,
    Attached,
    Detached,
    Message,
    Operations,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.replication import LogEnd, LogFiles, LogPlace, RawBatches
    from leveret.replication.attaching import Comparison
    from leveret.replication.shard import ShardEntry

__all__ = ["Replica", "Role"]


class Role(Enum):
    """Part that a replica has (see above)."""

    WAITING = "waiting"
    FOLLOWING = "following"
    ELECTED = "elected"
    LEADING = "leading"
    LEAVING = "leaving"
    OVER = "over"


class Replica:
    """A replica of a shard at a `node`, in one incarnation of it.

    `epoch` is the highest that is kept on its disk.
    """

    def __init__(
        self,
        node: int,
        incarnation: int,
        epoch: int,
        limits: ReplicationLimits | None = None,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.role = Role.WAITING
        self.entry: ShardEntry | None = None  # the newest that it knows
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self._epoch = epoch  # the highest that it has acted in, or knows
        self._limits = limits or ReplicationLimits()
        self._numbers = count(1)  # of what is asked of the disk
        self._describing = 0  # the number of that, for a reign
        self._elected_ms = 0
        self._awaited = {"epoch", "files"}  # before an elected node answers anybody
        self._has_attached = False  # in this incarnation, to anybody
        self._live: Mapping[int, int] = {}  # incarnations of the nodes that were live last
        self._is_damaged = False
        self._reason = ""

    # -- what the coordinator holds

    def learned(self, entry: ShardEntry, now_ms: int) -> list[Effect]:
        """Act on an entry that was read, unless it is older than what is known."""
        is_older = self.entry is not None and entry.change < self.entry.change
        if self.role is Role.OVER or is_older or entry.epoch < self._epoch:
            return []
        self.entry, self._epoch = entry, entry.epoch
        if self.leader is not None:
            return self._learned_reigning(self.leader, entry)
        if self.follower is not None:
            self._has_attached |= self.follower.has_attached
        if entry.is_led_by(self.node, self.incarnation):
            return self._begin_reign(entry, now_ms)
        if entry.leader in (None, self.node) or self.node not in entry.replicas:
            return self._follow(None)
        is_member = self.node in entry.isr
        if self.follower is not None and self.follower.follows(entry):
            self.follower.is_member = is_member
            return []
        return self._follow(
            Follower(
                *(entry, self.incarnation, self._numbers),
                is_member=is_member,
                has_attached=self._has_attached,
            )
        )

    def _learned_reigning(self, leader: Leader, entry: ShardEntry) -> list[Effect]:
        if not entry.is_led_by(self.node, self.incarnation) or entry.epoch != leader.epoch:
            return self._end(f"node {entry.leader} leads in epoch {entry.epoch}")
        effects = leader.learned(entry)
        return effects + (self._leave(leader) if self.role is Role.LEAVING else [])

    def _follow(self, follower: Follower | None) -> list[Effect]:
        """Follow somebody else than before, or nobody."""
        effects: list[Effect] = []
        if self.follower is not None:
            effects.append(Disconnect(self.follower.leader))
        self.follower = follower
        self.role = Role.WAITING if follower is None else Role.FOLLOWING
        return effects + ([Connect(None)] if follower is None else follower.begin())

    # -- a reign

    def _begin_reign(self, entry: ShardEntry, now_ms: int) -> list[Effect]:
        effects = self._follow(None)
        self.role, self._elected_ms = Role.ELECTED, now_ms
        self.leader = Leader(self.node, entry, self._limits, now_ms)
        effects.append(KeepEpoch(entry.epoch))
        if entry.isr == {self.node}:
            # It alone has what is committed, so that what is damaged of it is opened as it is.
            self._awaited.remove("files")
            return effects
        self._describing = next(self._numbers)
        return [*effects, DescribeLogs(self._describing, keeps=True)]

    def _is_now(self, what: str) -> list[Effect]:
        """Note what an elected node needs before it answers anybody."""
        assert self.leader is not None
        if what not in self._awaited:
            return []
        self._awaited.remove(what)
        return [] if self._awaited else self.leader.ready()

    def opened(self) -> list[Effect]:
        """Note that the logs are open, as `effects.OpenLogs` asked for."""
        if self.role is not Role.ELECTED or self.leader is None:
            return []
        self.role = Role.LEADING
        return self.leader.opened()

    def resign(self, reason: str) -> list[Effect]:
        """Stop serving, then leave the in-sync set and the lead.

        Where no other member is live it ends as if its process had died: it may be the only one
        left that can lead. One whose files are damaged leaves all the same.
        """
        if self.leader is None or self.role is Role.LEAVING:
            return []
        self._reason = reason
        self.role = Role.LEAVING
        self.leader.end()
        return [EndReign(reason), *self._leave(self.leader)]

    def _leave(self, leader: Leader) -> list[Effect]:
        """Write the entry in which this node neither leads nor is in sync, when it can be."""
        if leader.set.written is not None:
            return []
        recorded = leader.set.recorded
        if recorded.isr == {self.node}:
            return self._end(self._reason)
        if not self._is_damaged:
            if self._live.get(self.node) != self.incarnation:
                return []  # the list of live nodes is none yet, or an older one: a tick brings it
            if not self._has_successor(leader):
                return self._end(self._reason)
        return [leader.set.write(recorded.resigned())]

    def _has_successor(self, leader: Leader) -> bool:
        """Whether another member of the in-sync set is live, by what was read last."""
        return any(node in self._live for node in leader.set.certain - {self.node})

    def _end(self, reason: str) -> list[Effect]:
        stopped = self.role is Role.LEAVING
        self.role, self.leader, self.follower = Role.OVER, None, None
        return [] if stopped else [EndReign(reason)]

    def written(self, outcome: WriteOutcome) -> list[Effect]:
        """Note the answer to the last `effects.WriteEntry`."""
        if self.leader is None:
            return []
        effects = self.leader.answered(outcome)
        recorded = self.leader.set.recorded
        if not recorded.is_led_by(self.node, self.incarnation):
            return effects + self._end(self._reason)
        if self.role is Role.LEAVING:
            effects += self._leave(self.leader)
        return effects

    def tick(self, live: Mapping[int, int], now_ms: int, flush_ms: int = 0) -> list[Effect]:
        """Do what is due: the incarnations of nodes that are live are `live`.

        The oldest flush that this node's disk is at takes `flush_ms` already.
        """
        self._live = live
        if self.leader is None:
            return []
        if self.role is Role.LEAVING:
            return self._leave(self.leader)
        if self.role is Role.ELECTED:
            # Its epoch shows whether the disk hangs: all files of many logs take longer on any.
            flush_ms = now_ms - self._elected_ms if "epoch" in self._awaited else 0
        if flush_ms > self._limits.flush_ms_max and self._has_successor(self.leader):
            return self.resign(f"its disk hangs: a flush takes {flush_ms} ms already")
        return self.leader.tick(live, now_ms)

    # -- its disk

    def failed(self, reason: str) -> list[Effect]:
        """Note that this node's disk has refused an effect.

        Who leads does so no more, and leaves the in-sync set; who follows attaches anew.
        """
        if self.leader is not None:
            return self.resign(reason)
        return [] if self.follower is None else self.follower.failed()

    def damaged(self, reason: str) -> list[Effect]:
        """Note that logs have less than they are to keep (see effects.DescribeLogs).

        Who follows tries again until it is out of the in-sync set. If the leader may still be
        writing it into the set, only another incarnation is safe from that.
        """
        follower = self.follower
        if follower is not None and follower.has_attached and not follower.is_member:
            return self._end(reason)
        self._is_damaged = True
        return self.failed(reason)

    def kept_epoch(self, epoch: int) -> list[Effect]:
        """Note that an epoch is on the disk."""
        if self.leader is not None and epoch == self.leader.epoch:
            return self._is_now("epoch")
        if self.follower is not None and epoch == self.follower.epoch:
            return self.follower.kept_epoch()
        return []

    def described(self, number: int, logs: tuple[LogFiles, ...]) -> list[Effect]:
        """Note what the files hold, all of it flushed."""
        if self.leader is not None:
            return self._is_now("files") if number == self._describing else []
        return [] if self.follower is None else self.follower.described(number, logs)

    def cut(self, number: int) -> list[Effect]:
        """Note that logs were cut, durably."""
        return [] if self.follower is None else self.follower.cut(number)

    def flushed(self, number: int) -> list[Effect]:
        """Note that all that was carried out before a flush began is on the disk."""
        return [] if self.follower is None else self.follower.flushed(number)

    # -- links

    def connected(self, node: int) -> list[Effect]:
        """Note a new link to the leader."""
        if self.follower is None or node != self.follower.leader:
            return []
        return self.follower.connected()

    def disconnected(self, node: int, now_ms: int) -> list[Effect]:
        """Note that a link has ended, by whomever it was opened."""
        if self.leader is not None:
            self.leader.lost(node, now_ms)
        if self.follower is not None and node == self.follower.leader:
            return self.follower.disconnected()
        return []

    def received(self, node: int, message: Message) -> list[Effect]:
        """Handle a message that came over the present link with a node."""
        if isinstance(message, Attach | Acknowledge | Detached):
            return self._received_leading(node, message)
        follower = self.follower
        if follower is None or node != follower.leader:
            return self._received_other(node, message)
        if message.epoch == follower.epoch or isinstance(message, Refused):
            return follower.received(message)  # a leader that refuses may not know its epoch yet
        return self._received_other(node, message)

    def _received_leading(
        self, node: int, message: Attach | Acknowledge | Detached
    ) -> list[Effect]:
        leader = self.leader
        if leader is None or message.epoch != leader.epoch or self.role is Role.LEAVING:
            effects: list[Effect] = [ReadEntry()] if message.epoch > self._epoch else []
            if isinstance(message, Attach):
                effects.append(Send(node, Refused(self._epoch)))
            return effects
        if isinstance(message, Attach):
            return leader.attach(node, message)
        if isinstance(message, Acknowledge):
            return leader.acknowledged(node, message.frame)
        return []

    def _received_other(self, node: int, message: Attached | Operations | Refused) -> list[Effect]:
        """Answer one that this replica does not follow, or learn of a newer epoch."""
        if message.epoch > self._epoch:
            return [ReadEntry()]
        if isinstance(message, Operations):
            return [Send(node, Detached(self._epoch))]
        return []

    # -- the logs of the leader

    def compared(
        self, follower: int, number: int, comparison: Comparison, now_ms: int
    ) -> list[Effect]:
        """Note what a follower's logs lack."""
        if self.leader is None or self.role is Role.LEAVING:
            return []
        return self.leader.compared(follower, number, comparison, now_ms)

    def read(self, follower: int, number: int, raw: RawBatches | None) -> list[Effect]:
        """Note what was read for a follower; None if it is not there any more."""
        if self.leader is None:
            return []
        return self.leader.read(follower, number, raw)

    def read_waits(self, follower: int, number: int) -> list[Effect]:
        """Send a follower what was read so far, while more of it takes a while."""
        return [] if self.leader is None else self.leader.read_waits(follower, number)

    def wrote(self, log: str, before: LogEnd, end: LogEnd, now_ms: int) -> list[Effect]:
        """Note what was written to a log (see Leader.wrote)."""
        if self.leader is None:
            return []
        return self.leader.wrote(log, before, end, now_ms)

    def removed(self, log: str, base: int, revision: int, now_ms: int) -> list[Effect]:
        """Note that a file of a log was removed."""
        if self.leader is None:
            return []
        return self.leader.removed(log, base, revision, now_ms)

    def replaced(
        self, log: str, file: tuple[int, int], by: int, following: LogPlace, now_ms: int
    ) -> list[Effect]:
        """Note that a file of a log was compacted (see Leader.replaced)."""
        if self.leader is None:
            return []
        return self.leader.replaced(log, file, by, following, now_ms)

    def dropped(self, log: str, now_ms: int) -> list[Effect]:
        """Note that a log was deleted."""
        if self.leader is None:
            return []
        return self.leader.dropped(log, now_ms)
