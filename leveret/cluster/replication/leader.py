"""Machine of a leader: how far each follower has come, what is committed, who is in sync."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leveret.cluster.replication.messages import Diverged, Records, Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leveret.cluster.partition_state import Member, PartitionState
    from leveret.cluster.replication.messages import Answer, Fetch
    from leveret.ports.epochs import EpochIndex

__all__ = ["LeaderReplica", "ReplicationLimits", "propose_together"]


@dataclass(frozen=True, slots=True)
class ReplicationLimits:
    """When a follower leaves the in-sync set, and how many must be in it for a commit.

    `acks` replicas in sync, the leader among them, must have a record before it is confirmed; 0: it
    need not be durable anywhere; None: all, so that what is confirmed is committed. More than there
    are replicas counts as all of them.

    A follower lags if it has not had everything for `lag_ms_max`: its disk may be slow. One that
    has not even taken more for `silent_ms_max` is cut off, or its disk is full. It leaves the set
    so soon only if enough others are in it, as publishers would be refused otherwise.
    """

    lag_ms_max: int = 10_000
    in_sync_min: int = 1
    acks: int | None = None
    silent_ms_max: int = 2_000


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower has come since it has lost data, if ever it has.

    `was_at_end_ms` is the last time at which it had everything that the leader had, `heard_ms` the
    last one at which it had more than before, or waits for more.
    """

    member: Member
    durable: int = 0
    stream_durable: int = 0
    asked_ms: int = 0
    end_then: int = 0  # the leader's end when the follower asked last
    was_at_end_ms: int | None = None
    end: int | None = None  # of its log when it asked last
    heard_ms: int = 0


class LeaderReplica:
    """The replica that leads a partition in `state.epoch`.

    The in-sync set is changed by proposals to the coordinator. Until one is decided, everybody
    counts who is in the old set or in the new one: whichever holds, its members have what was
    committed. Nothing is committed while the set has fewer members than `in_sync_min`, if there are
    so many replicas.

    Each log of a partition has a machine; that of a side log has its name. Nothing of a
    side_log is committed before the state names it, so that the next leader knows that it exists.
    """

    def __init__(
        self,
        member: Member,
        state: PartitionState,
        epochs: EpochIndex,
        *,
        end: int,
        durable: int,
        committed: int,
        limits: ReplicationLimits,
        now_ms: int,
        side_log: str | None = None,
    ) -> None:
        assert state.leader == member.node, "only who was elected leads"
        self.state = state
        self.side_log = side_log
        self.proposal: PartitionState | None = None
        self.committed = self.confirmed = committed  # the latter: with `acks`, or committed
        self.replicated = 0  # position below which all in sync have the stream of this reign
        self._stream_durable = 0
        self.member = member
        self._epochs = epochs
        self.limits = limits
        self._begins_at = self._end = end
        self._durable = durable
        self._began_ms = now_ms
        self._followers: dict[int, FollowerProgress] = {}
        self._present: Collection[Member] | None = None
        self._advance()

    # -- what holds

    @property
    def epoch(self) -> int:
        """Epoch in which it leads."""
        return self.state.epoch

    @property
    def is_ready(self) -> bool:
        """Whether all records that it began with are committed: it may deliver from then on."""
        return self.committed >= self._begins_at

    @property
    def in_sync_needed(self) -> int:
        """Number of members of the set without which nothing is committed."""
        return min(self.limits.in_sync_min, len(self.state.replicas))

    @property
    def missing(self) -> int:
        """Number of replicas that must come in sync before publishes are accepted."""
        needed = max(self.limits.in_sync_min, self.limits.acks or 0)
        return max(min(needed, len(self.state.replicas)) - len(self.state.in_sync), 0)

    # -- what happens

    def written(self, end: int, durable: int, stream_durable: int = 0) -> int:
        """Note where its own log ends. Returns the committed offset."""
        self._end, self._durable, self._stream_durable = end, durable, stream_durable
        self._advance()
        return self.committed

    def fetch(self, request: Fetch, now_ms: int) -> Answer:
        """Answer a follower, and note how far it has come."""
        if request.epoch != self.epoch or request.follower.node not in self.state.replicas:
            return Refused(self.epoch)
        agrees_until = self._epochs.end_of(request.last_epoch, self._end)
        if request.last_epoch != agrees_until.epoch or request.end > agrees_until.end:
            return Diverged(self.epoch, request.end, request.last_epoch, agrees_until)
        self._note(request, now_ms)
        self._advance()
        return Records(self.epoch, request.end, self.committed)

    def _note(self, request: Fetch, now_ms: int) -> None:
        known = self._followers.get(request.follower.node)
        if known is None or known.member.incarnation < request.follower.incarnation:
            known = FollowerProgress(request.follower)
            self._followers[request.follower.node] = known
        elif known.member != request.follower:
            return  # sent before it lost data
        known.durable = max(known.durable, request.durable)
        known.stream_durable = max(known.stream_durable, request.stream_durable)
        if known.durable >= self._end:
            known.was_at_end_ms = now_ms
        elif known.durable >= known.end_then:
            # It had everything of the time when it asked before, however much came since.
            known.was_at_end_ms = max(known.was_at_end_ms or 0, known.asked_ms)
        known.asked_ms, known.end_then = now_ms, self._end
        if request.end != known.end or request.end >= self._end:
            known.heard_ms = now_ms  # else it asks once more for what it could not write
        known.end = request.end

    def waits(self, follower: Member, now_ms: int) -> None:
        """Note that a follower still waits for the answer to its request, as its link says."""
        known = self._followers.get(follower.node)
        if known is not None and known.member == follower:
            if known.end is not None and known.end >= self._end:
                known.heard_ms = now_ms
            if known.durable >= self._end:
                known.was_at_end_ms = now_ms

    # -- the in-sync set

    @property
    def is_named(self) -> bool:
        """Whether the state names this log: others do not know a side log before."""
        return self.side_log is None or self.side_log in self.state.side_logs

    def propose(self, now_ms: int) -> PartitionState | None:
        """Return the state that the coordinator is asked for; None if nothing is to be changed.

        One proposal at a time: `decided` must be called with the outcome of each. It is for a
        partition without side_logs.
        """
        return propose_together([self], self.state.side_logs, now_ms)

    def wait_for_name(self, now_ms: int) -> None:
        """Note that the state does not name this side log yet: nobody can have copied it."""
        self._began_ms = now_ms

    def in_step(self, now_ms: int) -> tuple[frozenset[Member], frozenset[Member]]:
        """Return who may be in sync as far as this log goes, and who of them is not silent."""
        wanted = frozenset(
            {self.member}
            | {each for each in self.state.in_sync if not self._lags(each, now_ms)}
            | {each.member for each in self._followers.values() if self._may_join(each, now_ms)}
        )
        return wanted, frozenset(each for each in wanted if not self._is_silent(each, now_ms))

    def decided(self, state: PartitionState) -> None:
        """Note a state that the coordinator had, after a proposal or by itself.

        Only of the same epoch: with another one this leader is none any more. A state that is known
        decides nothing: the proposal may be on its way.
        """
        assert state.epoch == self.epoch, "another epoch has another leader"
        if state.version <= self.state.version:
            return
        self.state, self.proposal = state, None
        for node in [node for node in self._followers if node not in state.replicas]:
            del self._followers[node]
        self._advance()

    def see(self, present: Collection[Member]) -> None:
        """Note which nodes are there: those that are not leave the set without further delay."""
        self._present = present

    def _lags(self, member: Member, now_ms: int) -> bool:
        if member == self.member:
            return False
        if self._present is not None and member not in self._present:
            return True
        known = self._followers.get(member.node)
        if known is None or known.member.incarnation < member.incarnation:
            since = self._began_ms
        elif known.member != member:
            return True  # it has lost data, and must catch up
        else:
            since = max(known.was_at_end_ms or 0, self._began_ms)
        return now_ms - since > self.limits.lag_ms_max

    def _is_silent(self, member: Member, now_ms: int) -> bool:
        if member == self.member:
            return False
        known = self._followers.get(member.node)
        heard_ms = known.heard_ms if known is not None and known.member == member else 0
        return now_ms - max(heard_ms, self._began_ms) > self.limits.silent_ms_max

    def _may_join(self, follower: FollowerProgress, now_ms: int) -> bool:
        """Whether a follower has everything that is committed or may be, and keeps up."""
        return (
            follower.member.node in self.state.replicas
            and (self._present is None or follower.member in self._present)
            and follower.durable >= max(self.committed, self._begins_at)
            and follower.stream_durable >= self.replicated
            and follower.was_at_end_ms is not None
            and now_ms - follower.was_at_end_ms <= self.limits.lag_ms_max
            and not self._is_silent(follower.member, now_ms)
        )

    # -- what is committed

    def _durable_of(self, member: Member) -> tuple[int, int]:
        """Return below which offset, and which position of the stream, a member has everything."""
        if member == self.member:
            return self._durable, self._stream_durable
        known = self._followers.get(member.node)
        if known is None or known.member != member:
            return 0, 0
        return known.durable, known.stream_durable

    def _advance(self) -> None:
        if not self.is_named:
            return
        members = self.state.in_sync
        if len(members) >= self.in_sync_needed:
            counted = members if self.proposal is None else members | self.proposal.in_sync
            durable, positions = zip(*map(self._durable_of, counted), strict=True)
            self.committed = max(self.committed, min(durable))
            self.replicated = max(self.replicated, min(positions))
        self.confirmed = max(self.confirmed, self.committed, self._acknowledged(members))

    def _acknowledged(self, members: Collection[Member]) -> int:
        """Return the offset below which `acks` members have everything."""
        acks = self.limits.acks
        if acks is None:
            return self.committed
        if acks == 0:
            return self._end
        others = [self._durable_of(each)[0] for each in members if each != self.member]
        needed = min(acks, len(self.state.replicas)) - 1
        if needed > len(others):
            return self.committed
        return min([self._durable, *sorted(others, reverse=True)[:needed]])


def propose_together(
    logs: Sequence[LeaderReplica], side_logs: frozenset[str], now_ms: int
) -> PartitionState | None:
    """Return the state that the coordinator is asked for, None if nothing is to be changed.

    `logs` are the machines of a partition's logs, its own first. Who is in sync has all logs that
    the state names; `side_logs` are those that it is to name. One proposal at a time, for all logs
    together: `decided` must be called with the outcome of each, for each log.
    """
    first = logs[0]
    for log in logs:
        if not log.is_named:
            log.wait_for_name(now_ms)
    if first.proposal is not None:
        return None
    state = first.state
    told = [log.in_step(now_ms) for log in logs if log.is_named]
    wanted = frozenset.intersection(*(each for each, _ in told))
    heard = frozenset.intersection(*(each for _, each in told))
    if len(heard) >= first.in_sync_needed:
        wanted = heard
    if (wanted, side_logs) == (state.in_sync, state.side_logs):
        return None
    proposal = replace(state, in_sync=wanted, side_logs=side_logs, version=state.version + 1)
    for log in logs:
        log.proposal = proposal
    return proposal
