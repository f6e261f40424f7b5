"""Leading: what each follower has, what is committed by that, and who belongs to the in-sync set.

A reign begins elected: the logs are still files, of which every member of the in-sync set must have
the end before they are opened. So what a new leader shows is committed, and nothing of it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from leveret.replication.copying import FollowerCopy
from leveret.replication.effects import (
    CompareLogs,
    Disconnect,
    Effect,
    OpenLogs,
    Replicated,
    Send,
    SetInSyncCounts,
)
from leveret.replication.in_sync_set import InSyncSet
from leveret.replication.messages import Attach, Attached, Drop, Refused, Remove

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.coordinator import WriteOutcome
    from leveret.ports.replication import LogEnd, LogFiles, LogPlace, RawBatches
    from leveret.replication.attaching import Comparison
    from leveret.replication.limits import ReplicationLimits
    from leveret.replication.shard import ShardEntry

__all__ = ["FollowerLag", "Leader"]


@dataclass(slots=True)
class UncommittedLog:
    """Log that has more than what is replicated."""

    replicated: LogEnd
    end: LogEnd


class FollowerLag(NamedTuple):
    """Messages that a follower has not on its disk, and for how many milliseconds already."""

    messages: int
    ms: int


class Leader:
    """A reign of `node` over a shard, which it begins to answer for when it is `ready`."""

    def __init__(
        self, node: int, entry: ShardEntry, limits: ReplicationLimits, now_ms: int
    ) -> None:
        self.node = node
        self.epoch = entry.epoch
        self.set = InSyncSet(entry)
        self.has_begun_opening = False
        self.is_open = False
        self._limits = limits
        self._is_ready = False
        self._waiting_attaches: dict[int, Attach] = {}  # until it can compare
        self._copies: dict[int, FollowerCopy] = {}
        self._began_ms = now_ms
        # Of those whose link has ended: since when they have not had all, and have had no link.
        self._absent_since: dict[int, int] = {}
        self._unlinked_since: dict[int, int] = {}
        self._unfit: set[int] = set()  # members that lack what is committed
        self._uncommitted: dict[str, UncommittedLog] = {}
        self._comparisons = 0
        self._has_ended = False

    def end(self) -> None:
        """Open and commit nothing from now on; the set can still be written."""
        self._has_ended = True

    # -- attaching

    @property
    def _may_compare(self) -> bool:
        return self._is_ready and (self.is_open or not self.has_begun_opening)

    def ready(self) -> list[Effect]:
        """Answer followers from now on: the epoch and this node's own files are on its disk.

        Alone in the set, it has not described its files: it opens them before it compares any.
        """
        self._is_ready = True
        return self._open_if_safe() + self._compare_waiting()

    def _compare_waiting(self) -> list[Effect]:
        waiting, self._waiting_attaches = self._waiting_attaches, {}
        return [each for node, message in waiting.items() for each in self.attach(node, message)]

    def attach(self, follower: int, message: Attach) -> list[Effect]:
        """Begin anew with a follower, over its present link."""
        self._copies.pop(follower, None)
        self._unlinked_since.pop(follower, None)
        if not self._may_compare:
            self._waiting_attaches[follower] = message
            return []
        self._comparisons += 1
        self._copies[follower] = FollowerCopy(
            follower, message.incarnation, self._comparisons, self._limits
        )
        keeps = follower in self.set.counted
        return [CompareLogs(follower, self._comparisons, message.logs, keeps)]

    def compared(
        self, follower: int, number: int, comparison: Comparison, now_ms: int
    ) -> list[Effect]:
        """Tell a follower what its logs lack."""
        copy = self._copies.get(follower)
        if copy is None or copy.is_attached or copy.number != number:
            return []
        cuts = tuple((log.log, log.cut) for log in comparison.differences if log.cut is not None)
        if cuts:
            del self._copies[follower]
            if not self.has_begun_opening:
                self._absent_since[follower] = now_ms  # until then it was this node that compared
            ours = comparison.ours
            if follower in self.set.counted and any(
                self._is_committed_behind(place, ours.get(log)) for log, place in cuts
            ):
                self._unfit.add(follower)  # out of the set before anything is undone
                return [Send(follower, Refused(self.epoch)), Disconnect(follower)]
            return [Send(follower, Attached(self.epoch, cuts))]
        since_ms = now_ms  # before the logs are opened, the time until now went into comparing them
        if self.has_begun_opening:
            since_ms = self._absent_since.get(follower, self._began_ms)
        copy.begin(comparison, now_ms, since_ms)
        return [Send(follower, Attached(self.epoch)), *self._moved(copy), *self._commit_all()]

    def _is_committed_behind(self, place: LogPlace, ours: LogFiles | None) -> bool:
        """Whether a cut goes below what is known to be committed of one of this node's logs."""
        if not self.is_open or ours is None:
            return False
        uncommitted = self._uncommitted.get(ours.log)
        return place < (ours.place if uncommitted is None else uncommitted.replicated[0])

    def lost(self, follower: int, now_ms: int) -> None:
        """Forget a follower, whose link has ended."""
        self._waiting_attaches.pop(follower, None)
        self._unlinked_since[follower] = now_ms
        copy = self._copies.pop(follower, None)
        if copy is not None and copy.is_attached:
            since_ms = copy.unsafe_since()
            self._absent_since[follower] = now_ms if since_ms is None else since_ms

    # -- opening

    def _open_if_safe(self) -> list[Effect]:
        """Open the logs once every member that counts has all of them."""
        if self.has_begun_opening or not self._is_ready or self._has_ended:
            return []
        if not self._is_tail_safe():
            return []
        self.has_begun_opening = True
        return [OpenLogs(self.epoch)]

    def _is_tail_safe(self) -> bool:
        for member in self.set.counted - {self.node}:
            copy = self._copies.get(member)
            if copy is None or not copy.is_attached or copy.unsafe:
                return False
        return True

    def opened(self) -> list[Effect]:
        """Note that the logs are open: they are committed as far as they are written."""
        self.is_open = True
        return [self._set_in_sync_counts, *self._compare_waiting()]

    @property
    def _set_in_sync_counts(self) -> Effect:
        return SetInSyncCounts(len(self.set.certain), len(self.set.recorded.joined))

    # -- what happens to the logs

    def wrote(self, log: str, before: LogEnd, end: LogEnd, now_ms: int) -> list[Effect]:
        """Copy what was written to a log, which had ended `before`."""
        self._uncommitted.setdefault(log, UncommittedLog(before, end)).end = end
        effects: list[Effect] = []
        for copy in self._copies.values():
            copy.wrote(log, before, end, now_ms)
            effects += copy.send(self.epoch)
        return effects + self._commit(log)

    def removed(self, log: str, base: int, revision: int, now_ms: int) -> list[Effect]:
        """Have a file removed at the followers."""
        return self._remove(Remove(log, base, revision), now_ms)

    def dropped(self, log: str, now_ms: int) -> list[Effect]:
        """Have a log deleted at the followers."""
        self._uncommitted.pop(log, None)
        return self._remove(Drop(log), now_ms)

    def _remove(self, operation: Remove | Drop, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for copy in self._copies.values():
            copy.removed(operation, now_ms)
            effects += self._send(copy)
        return effects

    def _send(self, copy: FollowerCopy) -> list[Effect]:
        """Send a follower more of its files; one for which too many wait is to attach anew."""
        return [Disconnect(copy.node)] if copy.is_crowded else copy.send(self.epoch)

    def replaced(
        self, log: str, file: tuple[int, int], by: int, following: LogPlace, now_ms: int
    ) -> list[Effect]:
        """Have a file replaced by a compacted one, of the revision `by`.

        All of it is committed; behind it begins the file `following`.
        """
        uncommitted = self._uncommitted.get(log)
        if uncommitted is not None and uncommitted.replicated[0] < following:
            # That is the end of the file. Places in it mean nothing any more.
            uncommitted.replicated = following, following.base
        effects: list[Effect] = []
        for copy in self._copies.values():
            copy.replaced(log, file, by, now_ms)
            effects += self._send(copy)
        return effects

    # -- copying

    def read(self, follower: int, number: int, raw: RawBatches | None) -> list[Effect]:
        """Send what was read for a follower.

        It attaches anew if that was None, since what it lacks was removed or compacted meanwhile,
        unless all of the log was deleted.
        """
        copy = self._copies.get(follower)
        if copy is None or copy.number != number or not copy.is_reading:
            return []
        if raw is None and not copy.reads_deleted:
            return [Disconnect(follower)]
        copy.read(raw)
        return self._moved(copy)

    def read_waits(self, follower: int, number: int) -> list[Effect]:
        """Send a follower what was read so far."""
        copy = self._copies.get(follower)
        return [] if copy is None or copy.number != number else copy.finish(self.epoch)

    def acknowledged(self, follower: int, frame: int) -> list[Effect]:
        """Note what a follower has on its disk."""
        copy = self._copies.get(follower)
        if copy is None or not copy.is_attached or frame > copy.sent:
            return [Disconnect(follower)]  # it is to attach anew
        copy.acknowledged(frame)
        return self._moved(copy)

    def _moved(self, copy: FollowerCopy) -> list[Effect]:
        """Send more to a follower, and commit what it has."""
        effects = copy.send(self.epoch)
        for log in copy.take_moved():
            effects += self._commit(log)
        return effects + self._open_if_safe()

    def _commit(self, log: str) -> list[Effect]:
        """Tell a log up to where all members that count have it."""
        uncommitted = self._uncommitted.get(log)
        if uncommitted is None or self._has_ended:
            return []
        place = uncommitted.end
        for member in self.set.counted - {self.node}:
            copy = self._copies.get(member)
            if copy is None or not copy.is_attached:
                return []
            unsafe = copy.unsafe.get(log)
            if unsafe is not None:
                place = min(place, unsafe.safe)
        if place <= uncommitted.replicated:
            return []
        uncommitted.replicated = place
        if place == uncommitted.end:
            del self._uncommitted[log]
        return [Replicated(log, *place)]

    def _commit_all(self) -> list[Effect]:
        return [effect for log in list(self._uncommitted) for effect in self._commit(log)]

    # -- the in-sync set

    def tick(self, live: Mapping[int, int], now_ms: int) -> list[Effect]:
        """Make the set smaller or larger, if somebody is to leave or to enter it.

        `live` are the incarnations of the nodes that are live, as they were read last; nobody is
        dead by a list in which this one is not. A node that is not ready leaves the set as it is:
        its own files may be damaged, and those of the others are needed then.
        """
        if not self._is_ready:
            self._began_ms = now_ms  # nobody can attach before
            return []
        if self.set.written is not None:
            return []
        entry = self.set.recorded
        is_read = live.get(self.node) == entry.incarnation
        leaving = {
            member
            for member in entry.isr - {self.node}
            if (is_read and member not in live)
            or member in self._unfit
            or self._lags(member, now_ms)
        }
        entering = {
            copy.node: copy.incarnation
            for copy in self._copies.values()
            if copy.node in entry.replicas
            and copy.node not in entry.isr
            and live.get(copy.node) == copy.incarnation
            and self._may_enter(copy, now_ms)
        }
        if not leaving and not entering:
            return []
        changed = entry.changed(isr=frozenset(entry.isr - leaving | entering.keys()))
        write = self.set.write(changed, tuple(entering.items()))
        return [self._set_in_sync_counts, write]

    def lag(self, follower: int, now_ms: int) -> FollowerLag | None:
        """Return how far a follower is behind; None as long as it is not attached."""
        copy = self._copies.get(follower)
        if copy is None or not copy.is_attached:
            return None
        since = copy.unsafe_since()
        messages = sum(unsafe.end[1] - unsafe.safe[1] for unsafe in copy.unsafe.values())
        return FollowerLag(max(messages, 0), 0 if since is None else max(now_ms - since, 0))

    def _lags(self, member: int, now_ms: int) -> bool:
        unlinked_since = self._unlinked_since.get(member, now_ms)
        if now_ms - unlinked_since > self._limits.absent_ms_max:
            return True
        copy = self._copies.get(member)
        since: int | None = self._absent_since.get(member, self._began_ms)
        if copy is not None and copy.is_attached:
            since = copy.unsafe_since()
        if since is None:
            return False
        if copy is not None and not self.has_begun_opening:
            if now_ms - self._began_ms > self._limits.comparison_ms_max:
                return True
            if not copy.is_attached:
                return False  # its logs are being compared
        return now_ms - since > self._limits.lag_ms_max

    def _may_enter(self, copy: FollowerCopy, now_ms: int) -> bool:
        """Whether a follower has all that is committed, and keeps up.

        An open log is committed from the beginning of the epoch on.
        """
        if not self.is_open or not copy.is_attached:
            return False
        for log, unsafe in copy.unsafe.items():
            uncommitted = self._uncommitted.get(log)
            if uncommitted is None or unsafe.safe < uncommitted.replicated:
                return False
        since = copy.unsafe_since()
        return since is None or now_ms - since <= self._limits.lag_ms_max // 2

    def answered(self, outcome: WriteOutcome) -> list[Effect]:
        """Note the answer to the write of the set."""
        kept = self.set.certain
        return self.set.answered(outcome) + self._after_change(kept)

    def learned(self, entry: ShardEntry) -> list[Effect]:
        """Note an entry of this reign that somebody else has written."""
        kept = self.set.certain
        self.set.learned(entry)
        return self._after_change(kept)

    def _after_change(self, kept: frozenset[int]) -> list[Effect]:
        """Begin anew with members that somebody else took out, and count those that are left."""
        self._unfit &= self.set.counted
        gone = (kept - self.set.counted) & self._copies.keys()
        disconnects: list[Effect] = [Disconnect(member) for member in sorted(gone)]
        commits = [self._set_in_sync_counts, *self._commit_all()]
        return disconnects + commits + self._open_if_safe()
