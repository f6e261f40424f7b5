"""Roles of this node in the partitions that it has a replica of.

The coordinator's state says who leads; the replicator lets each log lead or follow accordingly,
and asks the coordinator for changes of in-sync sets.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.cluster.controller import resign
from leveret.cluster.partition_state import Member, PartitionState, Registration
from leveret.cluster.replication.leader import propose_together
from leveret.errors import LeveretError
from leveret.ports.coordination import ConflictError, CoordinatorError, KeyChange
from leveret.ports.epochs import EpochEnd
from leveret.replication.channels import FollowerChannel, LeaderChannel
from leveret.replication.followed import FollowedPartition
from leveret.replication.led import LedPartition
from leveret.replication.link_reports import LinkReports
from leveret.replication.wire import ChannelMessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leveret.cluster.replication.leader import ReplicationLimits
    from leveret.links.links import Links
    from leveret.links.streams import LinkStream
    from leveret.ports import Clock
    from leveret.ports.coordination import Coordinator, NodeRegistration
    from leveret.ports.replication import ReplicatedLog
    from leveret.replication.replica import PartitionReplica

__all__ = ["PARTITIONS_PREFIX", "Replicator", "members_of", "registrations"]

logger = logging.getLogger(__name__)

PARTITIONS_PREFIX: Final = "partitions/"  # and the key of the partition
TICK_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 60.0  # a disk that has failed is tried so often


@dataclass(slots=True)
class PlacedReplica:
    """A replica and its role; `leader` is the node that it follows.

    In an epoch up to `failed_epoch` it does not lead any more. While it `is_shut`, because its log
    has failed and is to be opened again, or while an earlier role is `truncating` the log, it has
    no role; `attempts` to open it have failed.
    """

    replica: PartitionReplica
    role: LedPartition | FollowedPartition | None = None
    leader: int | None = None
    failed_epoch: int = 0
    is_shut: bool = False
    attempts: int = 0
    truncating: FollowedPartition | None = None

    @property
    def may_have_role(self) -> bool:
        """Whether nothing is being done to its log that must end first."""
        return not self.is_shut and (self.truncating is None or not self.truncating.is_truncating)


def members_of(nodes: Sequence[NodeRegistration]) -> frozenset[Member]:
    """Return the members that are registered."""
    return frozenset(Member(each.node, each.incarnation) for each in nodes)


def registrations(coordinator: Coordinator) -> dict[int, Registration]:
    """Return the nodes that are there."""
    return {
        node: Registration(each.incarnation, each.session)
        for node, each in coordinator.nodes.items()
    }


class Replicator:
    """Replicas of one node: the logs of partitions, and their side logs.

    `changed(key)` is called with a partition's key when this node begins to lead one of its logs,
    when that becomes ready (see `LedPartition.is_ready`), and when it ceases to lead it;
    `led(key)` says which. It must not raise.

    `spawn` starts a task in the group that owns the node's tasks.
    """

    def __init__(
        self,
        member: Member,
        coordinator: Coordinator,
        links: Links,
        clock: Clock,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        *,
        changed: Callable[[str], None],
    ) -> None:
        self._member = member
        self._coordinator = coordinator
        self._links = links
        self._clock = clock
        self._spawn = spawn
        self._changed = changed
        self._replicas: dict[str, PlacedReplica] = {}  # by the keys of the logs
        self._partitions: dict[str, list[PlacedReplica]] = {}  # a partition's own log comes first
        self._channels: dict[int, LeaderChannel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._proposing: set[str] = set()
        self._reports = LinkReports(member.node, coordinator, links, self._start)
        self._is_closed = False

    def start(self) -> None:
        """Follow the coordinator. What has changed for replicas that are there already counts."""
        self._coordinator.follow(self._entries_changed)
        for placed in list(self._replicas.values()):
            self._take_known_role(placed)
        self._start(self._tick())

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = self._spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all roles, and take no more."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self._replicas.values():
            self._end_role(replica)

    # -- partitions

    def add(self, replica: PartitionReplica) -> None:
        """Take care of a log that was opened; `changed` may be called before this returns.

        The log gets its role as soon as the coordinator has a state of the partition.
        """
        assert replica.key not in self._replicas, "it is added once, until it is removed"
        placed = self._replicas[replica.key] = PlacedReplica(replica)
        logs = self._partitions.setdefault(replica.partition, [])
        logs.insert(0 if replica.side_log is None else len(logs), placed)
        self._use_log(placed)

    def _use_log(self, placed: PlacedReplica) -> None:
        """Give the log of a replica its role, and hear of what becomes of it."""
        log = placed.replica.log
        log.on_progress(lambda: self._progressed(placed))
        log.on_failure(lambda _: self._write_failed(placed))
        log.on_append_failure(lambda: self._append_failed(placed))
        if log.failure is not None:
            self._shut(placed)
        else:
            self._take_known_role(placed)

    def _take_known_role(self, placed: PlacedReplica) -> None:
        """Take the role that the coordinator's state gives to this node, if there is one."""
        entry = self._coordinator.entries.get(PARTITIONS_PREFIX + placed.replica.partition)
        if entry is not None and self._replicas.get(placed.replica.key) is placed:
            self._take_role(placed, entry.value)

    def remove(self, key: str) -> None:
        """Care no more for a log, which was deleted or moved away; `changed` is not called.

        It follows from now on, and is otherwise left to the caller; one that `reopen` is just
        opening is closed when it comes. Does nothing if there is no such log.
        """
        placed = self._replicas.pop(key, None)
        if placed is not None:
            partition = placed.replica.partition
            logs = self._partitions[partition]
            logs.remove(placed)
            if not logs:
                del self._partitions[partition]
            self._end_role(placed)

    def limit(self, partition: str, limits: ReplicationLimits) -> None:
        """Keep to other limits of a partition from now on, as its queue's settings have changed."""
        for placed in self._partitions.get(partition, ()):
            placed.replica = placed.replica._replace(limits=limits)
            if isinstance(placed.role, LedPartition):
                placed.role.limit(limits)

    def led(self, key: str) -> LedPartition | None:
        """Return a log if this node leads it."""
        role = self._role(key)
        return role if isinstance(role, LedPartition) else None

    def end_of(self, key: str) -> EpochEnd | None:
        """Return the last epoch and the end of this node's log; None if it has none."""
        placed = self._replicas.get(key)
        if placed is None or placed.is_shut:
            return None
        log = placed.replica.log
        return EpochEnd(log.epochs.last, log.end)

    def led_keys(self) -> list[str]:
        """Return the partitions that this node leads."""
        return [
            partition
            for partition, logs in self._partitions.items()
            if isinstance(logs[0].role, LedPartition)
        ]

    def followed(self, key: str) -> FollowedPartition | None:
        """Return a log if this node follows it."""
        role = self._role(key)
        return role if isinstance(role, FollowedPartition) else None

    def followed_from(self, node: int) -> list[FollowedPartition]:
        """Return the logs that this node follows of a leader."""
        return [
            each.role
            for each in self._replicas.values()
            if isinstance(each.role, FollowedPartition) and each.leader == node
        ]

    def _role(self, key: str) -> LedPartition | FollowedPartition | None:
        replica = self._replicas.get(key)
        return None if replica is None else replica.role

    def _progressed(self, replica: PlacedReplica) -> None:
        if isinstance(replica.role, LedPartition):
            replica.role.advance()
        elif replica.role is not None:
            replica.role.progressed()

    # -- logs that fail

    def _write_failed(self, replica: PlacedReplica) -> None:
        """Lead no more in this epoch, since records of it are gone that followers may have."""
        role = replica.role
        if isinstance(role, LedPartition):
            self._end_role(replica)
            self._give_up(replica, role.machine.epoch)
        if replica.replica.log.failure is not None:
            self._shut(replica)
        if isinstance(role, LedPartition):
            self._changed(replica.replica.partition)

    def _append_failed(self, replica: PlacedReplica) -> None:
        """Let others lead whose disks are not full, once the queue is done with the error."""
        role = replica.role
        if isinstance(role, LedPartition):
            asyncio.get_running_loop().call_soon(self._let_others_append, replica, role)

    def _let_others_append(self, replica: PlacedReplica, role: LedPartition) -> None:
        is_last = len(role.machine.state.in_sync) == 1
        if replica.role is role and not is_last and self._coordinator.is_connected:
            logger.warning("%s is left to others: it cannot be written here", role.key)
            self._step_aside(replica, role)

    def _step_aside(self, replica: PlacedReplica, role: LedPartition) -> None:
        """Lead no more in this epoch: others can, and this node cannot."""
        self._end_role(replica)
        self._give_up(replica, role.machine.epoch)
        self._changed(replica.replica.partition)

    def _truncated(self, replica: PlacedReplica) -> None:
        """Go on after a truncation, with the role that there is by now."""
        if replica.replica.log.failure is not None:
            self._shut(replica)
        elif replica.role is None:
            self._take_known_role(replica)

    def _shut(self, replica: PlacedReplica) -> None:
        """End the role, and open the log again."""
        if not replica.is_shut and self._replicas.get(replica.replica.key) is replica:
            replica.is_shut, replica.attempts = True, 0
            self._end_role(replica)
            self._start(self._open_again(replica))

    async def _open_again(self, replica: PlacedReplica) -> None:
        key = replica.replica.key
        while self._replicas.get(key) is replica:
            try:
                log = await replica.replica.reopen()
            except LeveretError as error:
                replica.attempts += 1
                delay = min(RETRY_SECONDS * 2 ** min(replica.attempts, 16), RETRY_SECONDS_MAX)
                logger.warning("%s stays shut for %.0f s: %s", key, delay, error)
                self._take_known_role(replica)
                await asyncio.sleep(delay)
                continue
            if self._replicas.get(key) is not replica:
                await self._close(key, log)
                return
            logger.info("%s is open again", key)
            replica.is_shut = False
            replica.replica = replica.replica._replace(log=log)
            self._use_log(replica)
            return

    @staticmethod
    async def _close(key: str, log: ReplicatedLog) -> None:
        try:
            await log.close()
        except LeveretError as error:
            logger.warning("%s is closed: %s", key, error)

    def _let_others_lead(self, replica: PlacedReplica, state: PartitionState) -> None:
        """Resign from what this node is to lead, and cannot, if others can."""
        if (
            (state.leader, state.leader_session) == (self._member.node, self._coordinator.session)
            and replica.attempts
            and len(state.in_sync) > 1
            and state.epoch > replica.failed_epoch
        ):
            self._give_up(replica, state.epoch)

    async def serve(self, stream: LinkStream) -> None:
        """Serve a follower: the handler of replication's streams."""
        try:
            channel = FollowerChannel(stream, self)
            await channel.serve()
        except* ChannelMessageError as errors:
            logger.warning("node %d: %s", stream.peer.node, errors.exceptions[0])
        except* LeveretError as errors:
            logger.debug("a follower has gone: %s", errors.exceptions[0])

    # -- roles

    def _entries_changed(self, _sequence: int, changes: Sequence[KeyChange]) -> None:
        for change in changes:
            partition = change.key.removeprefix(PARTITIONS_PREFIX)
            if partition == change.key:
                continue
            for replica in list(self._partitions.get(partition, ())):
                if change.value is None:
                    self._lose_role(replica)
                else:
                    self._take_role(replica, change.value)

    def _take_role(self, replica: PlacedReplica, value: bytes) -> None:
        """Take the role that a partition's state gives to this node in one of its logs."""
        if self._is_closed:
            return
        try:
            state = PartitionState.from_bytes(value)
        except ValueError as error:
            logger.error("%s stays as it is: %s", replica.replica.key, error)  # noqa: TRY400
            return
        role, node = replica.role, self._member.node
        if role is not None and self._epoch(role) == state.epoch and node in state.replicas:
            if isinstance(role, LedPartition):
                role.decided(state)
            return
        self._end_role(replica)
        replica.leader = state.leader
        if not replica.may_have_role:
            self._let_others_lead(replica, state)
        elif node in state.replicas and state.leader is not None:
            self._begin_role(replica, state)
        if isinstance(role, LedPartition) or isinstance(replica.role, LedPartition):
            self._changed(replica.replica.partition)

    def _begin_role(self, replica: PlacedReplica, state: PartitionState) -> None:
        if state.leader != self._member.node:
            self._follow(replica, state)
        elif state.leader_session != self._coordinator.session:
            pass  # that was an earlier process of this node: the controller elects
        elif state.epoch > replica.failed_epoch:
            self._lead(replica, state)

    def _lose_role(self, replica: PlacedReplica) -> None:
        """End the role in a log of a partition that is none any more."""
        has_led = isinstance(replica.role, LedPartition)
        self._end_role(replica)
        replica.leader, replica.failed_epoch = None, 0
        if has_led:
            self._changed(replica.replica.partition)

    @staticmethod
    def _epoch(role: LedPartition | FollowedPartition) -> int:
        return role.machine.epoch if isinstance(role, LedPartition) else role.epoch

    def _end_role(self, replica: PlacedReplica) -> None:
        role, replica.role = replica.role, None
        if role is not None:
            role.end()
        if isinstance(role, FollowedPartition) and role.is_truncating:
            replica.truncating = role

    def _lead(self, replica: PlacedReplica, state: PartitionState) -> None:
        try:
            replica.role = LedPartition(
                replica.replica,
                self._member,
                state,
                self._clock.monotonic_ms,
                ready=partial(self._changed, replica.replica.partition),
            )
        except LeveretError as error:
            logger.warning("%s cannot be led: %s", replica.replica.key, error)
            self._give_up(replica, state.epoch)

    def _give_up(self, replica: PlacedReplica, epoch: int) -> None:
        """Lead no more in an epoch, and have another node elected, or this one for the next."""
        replica.failed_epoch = epoch
        self._start(self._resign(replica.replica.partition, epoch))

    async def _resign(self, partition: str, epoch: int) -> None:
        name = PARTITIONS_PREFIX + partition
        while (entry := self._coordinator.entries.get(name)) is not None:
            state = PartitionState.from_bytes(entry.value)
            wanted = resign(state, self._member.node)
            if state.epoch != epoch or wanted is None:
                return
            try:
                await self._coordinator.write([KeyChange(name, wanted.to_bytes(), entry.version)])
            except CoordinatorError as error:
                logger.warning("%s has no leader, which cannot be told yet: %s", partition, error)
                await asyncio.sleep(RETRY_SECONDS)

    def _follow(self, replica: PlacedReplica, state: PartitionState) -> None:
        assert state.leader is not None
        channel = self._channel(state.leader)
        later = asyncio.get_running_loop().call_later
        replica.role = FollowedPartition(
            replica.replica,
            self._member,
            state.epoch,
            channel.send,
            later,
            truncated=partial(self._truncated, replica),
            outvoted=partial(self._shut, replica),
        )
        if channel.is_open:
            replica.role.begin()

    def _channel(self, node: int) -> LeaderChannel:
        channel = self._channels.get(node)
        if channel is None:
            channel = LeaderChannel(self._links.peer(node), self._member, self)
            self._channels[node] = channel
            self._start(channel.run())
        return channel

    # -- in-sync sets

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._reports.look()
            present = members_of(list(self._coordinator.nodes.values()))
            for partition, logs in list(self._partitions.items()):
                role = logs[0].role
                if isinstance(role, LedPartition) and partition not in self._proposing:
                    self._look_after(logs, role, present)

    def _look_after(
        self, logs: Sequence[PlacedReplica], role: LedPartition, present: frozenset[Member]
    ) -> None:
        """Ask for another in-sync set if that is due, or let others lead.

        `role` is that in the partition's own log, the first of its `logs`.
        """
        replica, wanted = logs[0], self._proposed(logs, role, present)
        is_cut_off = role.is_to_yield(self._reports) or (
            wanted is not None and role.is_cut_off(wanted, present)
        )
        if is_cut_off and self._coordinator.is_connected:
            logger.warning("%s is left to others: no link to any of them", role.key)
            self._step_aside(replica, role)
        elif wanted is not None:
            self._proposing.add(role.partition)
            self._start(self._ask(role.partition, wanted))

    def _proposed(
        self, logs: Sequence[PlacedReplica], role: LedPartition, present: frozenset[Member]
    ) -> PartitionState | None:
        """Return the state that the coordinator is to be asked for; None if it may stay."""
        state, now_ms = role.machine.state, self._clock.monotonic_ms()
        led = [each.role for each in logs if isinstance(each.role, LedPartition)]
        for each in led:
            each.look(present, now_ms)
        machines = [each.machine for each in led]
        side_logs = frozenset(each.side_log for each in machines if each.side_log is not None)
        if not state.side_logs <= side_logs:
            return None  # of the one that is missing nobody knows who has all of it
        return propose_together(machines, side_logs, now_ms) or role.machine.proposal

    async def _ask(self, partition: str, wanted: PartitionState) -> None:
        """Ask the coordinator for a state; the state that it has then comes by `follow`."""
        name = PARTITIONS_PREFIX + partition
        try:
            entry = self._coordinator.entries.get(name)
            if entry is None:
                return
            held = PartitionState.from_bytes(entry.value)
            if held.version + 1 == wanted.version:
                change = KeyChange(name, wanted.to_bytes(), entry.version)
                await self._coordinator.write([change])
        except ConflictError:
            pass  # somebody was faster: the new state is on its way, and ends the proposal
        except CoordinatorError as error:
            logger.warning("the in-sync set of %s stays for now: %s", partition, error)
        finally:
            self._proposing.discard(partition)
