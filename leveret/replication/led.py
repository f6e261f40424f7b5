"""A partition that this node leads: its log, the leader's machine, and who waits for records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.replication.leader import LeaderReplica
from leveret.cluster.replication.messages import Records, Refused
from leveret.errors import LeveretError
from leveret.ports.callbacks import do_nothing
from leveret.replication.link_reports import PATIENT_LOOKS
from leveret.replication.wire import LeaderMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from leveret.cluster.partition_state import Member, PartitionState
    from leveret.cluster.replication.leader import ReplicationLimits
    from leveret.replication.channels import FollowerChannel
    from leveret.replication.link_reports import LinkReports
    from leveret.replication.replica import PartitionReplica
    from leveret.replication.wire import FollowerMessage

__all__ = ["LedPartition"]

logger = logging.getLogger(__name__)

RUN_BYTES_MAX = 1 << 20  # of one answer: so much of a partition before another has its turn


class WaitingFollower(NamedTuple):
    """A follower that has asked for more, and has not been answered."""

    channel: FollowerChannel
    message: FollowerMessage


class LedPartition:
    """The leader's side of one partition, in one epoch."""

    def __init__(
        self,
        replica: PartitionReplica,
        member: Member,
        state: PartitionState,
        monotonic_ms: Callable[[], int],
        *,
        ready: Callable[[], None],
    ) -> None:
        """Let the log lead. Raises its failure.

        `ready` is called once if `is_ready` turns true later, not if it is from the beginning.
        """
        self.key = replica.key
        self.partition = replica.partition
        log = self.log = replica.log
        log.lead(state.epoch)
        self.machine = LeaderReplica(
            member,
            state,
            log.epochs,
            end=log.end,
            durable=log.durable,
            committed=log.committed,
            limits=replica.limits,
            now_ms=monotonic_ms(),
            side_log=replica.side_log,
        )
        self._monotonic_ms = monotonic_ms
        self._waiting: dict[int, WaitingFollower] = {}
        self._channels: dict[int, FollowerChannel] = {}  # by which followers have asked
        self._ready: Callable[[], None] = do_nothing
        self._missing = 0
        self._waits_until_ms: int | None = None  # for replicas that are there, at its beginning
        self._looks_apart = 0  # in a row, with links to too few replicas
        self._require_replicas()
        if self._missing:
            self._waits_until_ms = monotonic_ms() + replica.limits.silent_ms_max
        self.advance()
        if not self.is_ready:
            self._ready = ready

    @property
    def is_ready(self) -> bool:
        """Whether all that the leader began with is committed, and publishes would be taken.

        Where replicas are missing that are there, it is not ready for a moment: they come in sync,
        and who publishes waits for that as for an election instead of being refused.
        """
        return self.machine.is_ready and not (self._missing and self._waits_until_ms is not None)

    def advance(self) -> None:
        """Commit what all in sync have, and have those answered who wait for it."""
        log, machine = self.log, self.machine
        log.limit_commit(machine.written(log.end, log.durable, log.stream_durable))
        if machine.limits.acks is not None:
            log.confirm(machine.confirmed)
        log.replicated_to(machine.replicated)
        for waiting in self._waiting.values():
            waiting.channel.answer_soon(self)
        self._tell_if_ready()

    def _tell_if_ready(self) -> None:
        if self.is_ready:
            self._waits_until_ms = None
            ready, self._ready = self._ready, do_nothing
            ready()

    def end(self) -> None:
        """Lead no more: the log follows, and nobody is answered."""
        self._ready = do_nothing
        self._waiting.clear()
        self.log.follow()

    def asked(self, message: FollowerMessage, channel: FollowerChannel) -> None:
        """Note how far a follower has come, and let it wait for more if it does."""
        answer = self.machine.fetch(message.request, self._monotonic_ms())
        node = message.request.follower.node
        self._channels[node] = channel
        if not isinstance(answer, Records):
            self._waiting.pop(node, None)
            channel.send(LeaderMessage(self.key, answer, None))
            return
        if message.wants_answer:
            self._waiting[node] = WaitingFollower(channel, message)
        self.advance()

    async def answer(self, channel: FollowerChannel) -> None:
        """Send what there is to the follower behind a channel, if it waits for that."""
        node = channel.follower.node
        waiting = self._waiting.get(node)
        if waiting is None or waiting.channel is not channel:
            return
        request, position = waiting.message.request, waiting.message.position
        try:
            run = await self.log.read_stream(request.end, position, RUN_BYTES_MAX)
        except LeveretError as error:
            logger.warning("%s cannot be read for node %d: %s", self.key, node, error)
            if self._waiting.get(node) is waiting:
                del self._waiting[node]
                channel.send(LeaderMessage(self.key, Refused(self.machine.epoch), None))
            return
        committed = self.machine.committed
        is_new = run.data or min(committed, request.end) > waiting.message.committed
        if is_new and self._waiting.get(node) is waiting:
            del self._waiting[node]
            answer = Records(request.epoch, request.end, committed)
            channel.send(LeaderMessage(self.key, answer, run))

    def left(self, channel: FollowerChannel) -> None:
        """Forget that a follower waits, whose channel is gone."""
        node = channel.follower.node
        if self._channels.get(node) is channel:
            del self._channels[node]
        waiting = self._waiting.get(node)
        if waiting is not None and waiting.channel is channel:
            del self._waiting[node]

    def has_all(self, node: int) -> bool:
        """Whether a follower has copied all that is written, durably or not, and waits for more."""
        waiting = self._waiting.get(node)
        position = None if waiting is None else waiting.message.position
        return position is not None and position >= self.log.stream_end

    # -- the in-sync set

    def look(self, present: Collection[Member], now_ms: int) -> None:
        """Note which nodes are there, and which followers wait."""
        self.machine.see(present)
        if self._waits_until_ms is not None:
            self._wait_for_replicas({each.node for each in present}, now_ms)
        for waiting in self._waiting.values():
            self.machine.waits(waiting.message.request.follower, now_ms)

    def _wait_for_replicas(self, there: set[int], now_ms: int) -> None:
        """Wait for missing replicas no longer if they are not there, or have had their time."""
        assert self._waits_until_ms is not None
        state = self.machine.state
        may_come = there.intersection(state.replicas) - state.in_sync_nodes
        if now_ms >= self._waits_until_ms or len(may_come) < self._missing:
            self._waits_until_ms = None
            self._tell_if_ready()

    def is_cut_off(self, wanted: PartitionState, present: Collection[Member]) -> bool:
        """Whether a proposal would leave too few in sync, because this node has no link to others.

        They are there for the coordinator, so one of them can lead.
        """
        if len(wanted.in_sync) >= self.machine.in_sync_needed:
            return False
        removed = self.machine.state.in_sync - wanted.in_sync
        is_linked = any(each.node in self._channels for each in removed)
        return not is_linked and any(each in present for each in removed)

    def is_to_yield(self, reports: LinkReports) -> bool:
        """Whether another one in sync tells that it could commit, and this node has no links to.

        It is asked at each look of the reports.
        """
        state, needed = self.machine.state, self.machine.in_sync_needed
        leader, replicas = self.machine.member.node, set(state.replicas)
        reached = {leader, *self._channels, *reports.linked}
        is_apart = len(replicas & reached) < needed
        self._looks_apart = self._looks_apart + 1 if is_apart else 0
        if self._looks_apart < PATIENT_LOOKS:
            return False
        told = {node: reports.told_by(node) for node in state.in_sync_nodes - reached}
        return any(
            linked is not None
            and leader not in linked
            and len(replicas & {node, *linked}) >= needed
            for node, linked in told.items()
        )

    def decided(self, state: PartitionState) -> None:
        """Note a state of the same epoch."""
        self.machine.decided(state)
        self._require_replicas()
        self.advance()

    def limit(self, limits: ReplicationLimits) -> None:
        """Keep to other limits from now on."""
        self.machine.limits = limits
        self._require_replicas()
        self.advance()

    def _require_replicas(self) -> None:
        """Have the log take nothing while replicas are missing."""
        before, self._missing = self._missing, self.machine.missing
        self.log.require_replicas(self._missing)
        if self._missing and not before:
            logger.warning(
                "%s takes no publishes until %d more of its replicas are in sync",
                self.key,
                self._missing,
            )
        elif before and not self._missing:
            logger.info("%s takes publishes again", self.key)
