"""Where the partitions of a cluster's queues are served: here, if this node leads them, or there.

Each partition has a `PartitionPlace`. It opens the log if this node has a replica of it, and puts a
queue on that log where this node leads and is ready, else a `RemotePartition`, which forwards. The
coordinator's state says who leads; the place follows it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.cluster.partition_state import PartitionState
from leveret.cluster.replication.leader import ReplicationLimits
from leveret.clustering.forwarding.channel import MALFORMED, NOT_LEADING, ForwardingChannel
from leveret.clustering.forwarding.remote_partition import RemotePartition
from leveret.clustering.forwarding.session import PartitionSession, figures_of
from leveret.clustering.forwarding.transaction_parts import TransactionParts
from leveret.clustering.forwarding.wire import ForwardingMessageError, QueueFigures, StreamOpening
from leveret.clustering.side_logs import PartitionSideLogs, side_log_names
from leveret.clustering.transactions.inquiring import PartsToAsk
from leveret.clustering.transactions.participants import Participant
from leveret.core.logs.log_writer import HandedOver, tell_each
from leveret.core.queues.open_queue import OpenQueue
from leveret.errors import LeveretError, StorageError
from leveret.ports import Durability
from leveret.ports.records import BatchBuilder
from leveret.replication.replica import PartitionReplica, partition_key, side_log_key
from leveret.replication.replicator import PARTITIONS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from leveret.core.blocked_publishers import BlockedPublishers
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.opener import QueueOpener
    from leveret.core.queues.partitioned_queue import PartitionedQueue
    from leveret.links.links import Links
    from leveret.links.streams import LinkStream
    from leveret.ports.coordination import Coordinator, KeyChange
    from leveret.replication.replicator import Replicator
    from leveret.storage.log import PartitionLog
    from leveret.storage.store import FileTopicStore

__all__ = ["PartitionPlacement", "PausedPartition"]

logger = logging.getLogger(__name__)

LAG_MS_MAX = 10_000  # after which a follower leaves the in-sync set
POLL_SECONDS = 0.005  # until an atomic write has ended


def ignore_queue(_queue: DeclaredQueue) -> None:
    """Do nothing with a queue."""


@dataclass(frozen=True, slots=True)
class PlacementServices:
    """Services that all places of a node share. `spawn` starts a task in the node's group."""

    node: int
    coordinator: Coordinator
    links: Links
    replicator: Replicator
    topics: FileTopicStore
    durability: Durability
    publishers: BlockedPublishers
    spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
    parts_to_ask: PartsToAsk = field(default_factory=PartsToAsk)


@dataclass(eq=False)
class PartitionPlace:
    """Place of one partition on this node, with the log of its replica if it has one."""

    services: PlacementServices
    opener: QueueOpener
    whole: PartitionedQueue
    number: int
    builder: BatchBuilder = field(default_factory=BatchBuilder)
    log: PartitionLog | None = None
    part: Any = None  # an OpenQueue, or a RemotePartition
    sessions: set[PartitionSession] = field(default_factory=set)
    received: dict[tuple[int, int], int] = field(default_factory=dict)  # see PartitionSession
    consumer_left: Callable[[DeclaredQueue], None] = ignore_queue  # see PartitionPlacement
    paused: PausedPartition | None = None  # while its leadership is being handed over
    transactions: TransactionParts | None = None  # while it is served here

    def __post_init__(self) -> None:
        """Stand for the partition, until it is known who leads it."""
        services = self.services
        self.key = partition_key(self.whole.definition.incarnation, self.number)
        self.channel = ForwardingChannel(self.key, services.links, services.spawn)
        self.side_logs = PartitionSideLogs(self, services.replicator, services.spawn)
        self.part = self._stand_in()

    def _stand_in(self) -> RemotePartition:
        part = RemotePartition(
            self.whole, self.number, self.builder, self.services.publishers, self.channel.send
        )
        self.channel.attach(part)
        return part

    # -- who leads

    def follow(self, state: PartitionState) -> None:
        """Follow the partition's state: have a replica, or none, and know the leader."""
        services = self.services
        if services.node in state.replicas:
            self._have_replica(state)
        elif self.log is not None:
            self._drop_replica()
        if state.leader is None or state.leader == services.node:
            self.channel.follow(None)
        elif not isinstance(self.part, OpenQueue):
            self.channel.follow((state.leader, state.epoch))
        self.review()

    def live_at_home(self, node: int, session: int) -> None:
        """Be served on the one node, and in the one session of it, where the queue lives."""
        services = self.services
        if (node, session) == (services.node, services.coordinator.session):
            self.log = self._open_log(Durability.NONE, has_replicas=False)
            self._serve_here(self.log)
        elif node != services.node:
            self.channel.follow((node, session))

    def review(self) -> None:
        """Serve the partition here if this node leads it and is ready, else forward."""
        state = state_of(self.services.coordinator, self.key)
        led, side_logs = self.services.replicator.led(self.key), self.side_logs.led(state)
        if side_logs is None:
            led = None
        is_here = isinstance(self.part, OpenQueue)
        if self.paused is not None:
            if led is not None:
                return
            self.paused.over()
        if led is not None and not is_here:
            assert self.log is not None, "it is led"
            if self.log.undecided:  # else what transactions have settled would be delivered
                self.services.parts_to_ask.add(self)
            elif led.is_ready and all(each.is_ready for each in side_logs or ()):
                self._serve_here(self.log)
        elif led is None and is_here:
            self._forward()
        if led is None and state is not None:
            self.side_logs.tidy(state)

    @property
    def limits(self) -> ReplicationLimits:
        """Limits that the queue's settings say."""
        replication = self.whole.settings.replication
        return ReplicationLimits(LAG_MS_MAX, replication.in_sync_min, replication.acks_min)

    def reconfigured(self) -> None:
        """Keep to the limits that the queue's settings say now."""
        if self.log is not None and self.whole.definition.home is None:
            self.services.replicator.limit(self.key, self.limits)

    # -- parts of transactions

    @property
    def participant(self) -> str | None:
        """Name of the partition as this node leads it (see PlaceOfParts)."""
        services, led = self.services, self.services.replicator.led(self.key)
        if led is not None:
            return str(Participant(self.key, led.machine.epoch))
        if self.transactions is None:
            return None
        session = services.coordinator.session
        return str(Participant(self.key, node=services.node, session=session))

    @property
    def has_parts(self) -> bool:
        """Whether there are parts whose outcome others may have to be asked for."""
        if self.transactions is not None:
            return bool(self.transactions)
        return self.log is not None and not self.log.follows and bool(self.log.undecided)

    def to_ask(self, patience: float) -> list[int]:
        """Return transactions to ask for (see PlaceOfParts)."""
        if self.transactions is not None:
            return self.transactions.to_ask(patience)
        return [] if self.log is None else self.log.undecided

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply or undo a part; after the last one of an earlier leader the queue is served."""
        if self.transactions is not None:
            self.transactions.resolve(transaction, committed=committed)
        elif self.log is not None:
            self.log.resolve(transaction, committed=committed)
            self.review()

    # -- the replica

    def _have_replica(self, state: PartitionState) -> None:
        if self.log is None:
            try:
                self.log = self._open_replica()
            except StorageError as error:
                logger.warning("no replica of %s: %s", self.whole, error)
                return
            replica = PartitionReplica(self.key, self.key, self.log, self.limits, self._reopen_log)
            self.services.replicator.add(replica)
            names = side_log_names(self.whole.definition.topic, self.number)
            self.side_logs.delete_left(state, names)
        self.side_logs.follow(state)

    async def _reopen_log(self) -> PartitionLog:
        """Close the log, which has failed, and open it again (see PartitionReplica)."""
        assert self.log is not None, "it was opened"
        await self.log.close()
        self.log = self._open_replica()
        return self.log

    def _open_replica(self) -> PartitionLog:
        log = self._open_log(self._durability, has_replicas=True)
        log.partition = self.key
        return log

    @property
    def _durability(self) -> Durability:
        return self.services.durability if self.whole.definition.durable else Durability.NONE

    def _open_log(self, durability: Durability, *, has_replicas: bool) -> PartitionLog:
        definition = self.whole.definition
        return self.services.topics.open(
            definition.vhost,
            definition.topic,
            definition.incarnation,
            self.number,
            durability,
            retention=self.whole.settings.retention,
            has_replicas=has_replicas,
        )

    def _drop_replica(self) -> None:
        """Delete the log: its replica has moved to another node."""
        assert self.log is not None
        self.services.replicator.remove(self.key)
        self.review()
        self.side_logs.drop()
        log, self.log = self.log, None
        self.services.spawn(log.delete())

    def _serve_here(self, log: PartitionLog) -> None:
        """Put a queue on the log, which takes over what waits here."""
        self.received.clear()
        self._open_part(log, ())

    def _open_part(self, log: PartitionLog, waiters: Sequence[Waiter]) -> None:
        """Put a queue on the log; `waiters` wait for what is in there already."""
        stand_in = self.part
        stand_in.flush()
        self.channel.follow(None)
        log.builder = self.builder
        self.part = self.opener.open_led(self.whole, self.number, log)
        for waiter in waiters:
            self.part.await_commit(waiter)
        if self.whole.has_place(self.number):
            self.whole.replace(self.part, stand_in.resume_points())
        seconds = asyncio.get_running_loop().time
        watch = partial(self.services.parts_to_ask.add, self)
        self.transactions = TransactionParts(self.part, seconds, watch)
        stand_in.hand_over(self.part)

    # -- side logs (see SideLogOwner)

    def open_side_log(self, name: str) -> PartitionLog:
        """Open a log beside the partition's. Raises StorageError."""
        definition = self.whole.definition
        log = self.services.topics.open(
            *(definition.vhost, name, definition.incarnation, 0),  # its name has our number
            self._durability,
            has_replicas=True,
        )
        log.partition = side_log_key(self.key, name)
        return log

    def has_side_log(self, name: str) -> bool:
        """Whether there is such a log on the disk."""
        definition = self.whole.definition
        return self.services.topics.exists(definition.vhost, name, definition.incarnation, 0)

    def side_log_deleted(self) -> None:
        """Open one of the same name, if there is another already."""
        state = state_of(self.services.coordinator, self.key)
        if state is not None and self.log is not None:
            self.side_logs.follow(state)

    # -- handing leadership over

    def pause(self) -> PausedPartition | None:
        """Take and deliver nothing from now on; None if that would fail what is under way."""
        part = self.part
        if self.paused is not None or not isinstance(part, OpenQueue) or part.deleted:
            return None
        part.flush()
        if not part.is_calm:
            part.quiesce()
            return None
        for session in self.sessions:
            session.pause()
        self.part, self.transactions = self._stand_in(), None
        resume_points = part.resume_points()
        handed_over = part.step_down(self.part)
        self.side_logs.end_use()
        self.paused = PausedPartition(self, handed_over.uncommitted)
        self.whole.replace(self.part, resume_points)
        return self.paused

    def _forward(self) -> None:
        """Leave the log to another leader, and forward to it."""
        part, log = self.part, self.log
        assert log is not None, "it was led"
        self.close_sessions("another node leads")
        self.transactions = None
        self.part = self._stand_in()
        resume_points = part.resume_points()
        # What only sessions wait for, their nodes send again.
        handed_over = part.step_down(self.part)
        self.side_logs.end_use()
        self.part.take_over(handed_over, log.uncommitted() if handed_over.uncommitted else [])
        self.whole.replace(self.part, resume_points)
        state = state_of(self.services.coordinator, self.key)
        if state is not None and state.leader not in (None, self.services.node):
            self.channel.follow((state.leader, state.epoch))

    # -- other nodes

    async def serve(self, stream: LinkStream, opening: StreamOpening) -> None:
        """Serve another node's clients, if the partition is led here."""
        part = self.part
        if not isinstance(part, OpenQueue) or part.deleted or self.transactions is None:
            stream.fail(NOT_LEADING, "this node does not lead the partition")
            return
        session = PartitionSession(
            stream, part, self.received, self.transactions, left=self.consumer_left
        )
        self.sessions.add(session)
        try:
            await session.serve(opening.sequence)
        except* ForwardingMessageError as errors:
            logger.warning("node %d: %s", stream.peer.node, errors.exceptions[0])
            stream.fail(MALFORMED, str(errors.exceptions[0]))
        except* LeveretError as errors:
            logger.debug("%s: a stream has ended: %s", self.key, errors.exceptions[0])
        finally:
            self.sessions.discard(session)

    def close_sessions(self, reason: str) -> None:
        """End all streams of other nodes."""
        for session in list(self.sessions):
            session.close(NOT_LEADING, reason)

    def resume(self, waiters: Sequence[Waiter]) -> None:
        """Lead on, as the partition could not be handed over."""
        self.paused = None
        self.close_sessions("the partition was not handed over")
        led = self.services.replicator.led(self.key)
        if led is not None and self.log is not None and not self.part.deleted:
            self._open_part(self.log, waiters)
        else:
            self.left(waiters)

    def left(self, waiters: Sequence[Waiter]) -> None:
        """Leave the partition to another leader; `waiters` do not know whether it has theirs."""
        self.paused = None
        self.close_sessions("another node leads")
        if waiters:
            batches = None if self.log is None else self.log.uncommitted()
            self.part.take_over(HandedOver([], list(waiters)), batches)

    def delete(self) -> None:
        """Delete the log: the queue is deleted, or this partition of it."""
        self.close_sessions("the queue is deleted")
        self.channel.close()
        self.side_logs.drop()
        if self.log is not None:
            self.services.replicator.remove(self.key)
            self.services.spawn(self.log.delete())


class PausedPartition:
    """A partition that this node leads and is about to hand over: nobody is served meanwhile.

    What clients do waits for the next leader, or for this one if the attempt fails.
    """

    def __init__(self, place: PartitionPlace, waiters: Sequence[Waiter]) -> None:
        """`waiters` wait for records that are in the log."""
        assert place.log is not None, "it is led"
        self._place = place
        self._logs = [place.log, *place.side_logs]
        self._waiters = list(waiters)

    @property
    def is_over(self) -> bool:
        """Whether this node has ceased to lead, or leads on."""
        return self._place.paused is not self

    @property
    def is_committed(self) -> bool:
        """Whether all that was published is committed."""
        return all(log.committed >= log.end for log in self._logs)

    def is_ready_for(self, node: int) -> bool:
        """Whether all nodes know what is committed, since `confirm`, and `node` has all of it.

        It has settlements, too, though perhaps not on its disk yet: those would be lost with it.
        """
        place = self._place
        led = place.services.replicator.led(place.key)
        side_logs = place.side_logs.led(state_of(place.services.coordinator, place.key))
        if place.sessions or led is None or side_logs is None:
            return False
        return all(each.has_all(node) for each in (led, *side_logs))

    def confirm(self) -> None:
        """Confirm what is committed, and let the other nodes end their streams."""
        waiters, self._waiters = self._waiters, []
        tell_each(waiters, self._place.part.services.report, failed=False)
        for log in self._logs:
            log.write_settlements()
        for session in list(self._place.sessions):
            session.finish()

    def resume(self) -> None:
        """Lead on, if this node still leads."""
        if not self.is_over:
            waiters, self._waiters = self._waiters, []
            self._place.resume(waiters)

    def over(self) -> None:
        """Note that another node leads."""
        waiters, self._waiters = self._waiters, []
        self._place.left(waiters)


def state_of(coordinator: Coordinator, key: str) -> PartitionState | None:
    """Return the state of a partition, None if it has none that makes sense."""
    entry = coordinator.entries.get(PARTITIONS_PREFIX + key)
    if entry is None:
        return None
    try:
        return PartitionState.from_bytes(entry.value)
    except ValueError as error:
        logger.warning("%s is not followed: %s", key, error)
        return None


class PartitionPlacement:
    """Places of all partitions of a node's queues (see core.queues.opener.Placement).

    `consumer_left(queue)` is called when a consumer of another node has left one that is led here.
    """

    def __init__(self, services: PlacementServices) -> None:
        self.consumer_left: Callable[[DeclaredQueue], None] = ignore_queue
        self._services = services
        self._places: dict[str, PartitionPlace] = {}
        services.coordinator.follow(self._changed)

    def open(self, whole: PartitionedQueue, number: int, opener: QueueOpener) -> Any:
        """Return a partition, or what stands for it (see Placement)."""
        place = PartitionPlace(
            self._services, opener, whole, number, consumer_left=self._consumer_left
        )
        self._places[place.key] = place
        home = whole.definition.home
        if home is not None:
            place.live_at_home(home.node, home.session)
        else:
            state = state_of(self._services.coordinator, place.key)
            if state is not None:
                place.follow(state)
        return place.part

    def _consumer_left(self, queue: DeclaredQueue) -> None:
        self.consumer_left(queue)

    def reconfigured(self, whole: PartitionedQueue) -> None:
        """Have a queue's partitions keep to its present limits (see Placement)."""
        for part in whole.places:
            place = self._places.get(partition_key(whole.definition.incarnation, part.number))
            if place is not None:
                place.reconfigured()

    def delete(self, part: Any) -> None:
        """Delete this node's log of a partition (see Placement)."""
        place = self._places.pop(partition_key(part.definition.incarnation, part.number), None)
        if place is not None:
            place.delete()

    # -- what queues keep beside a partition (see core.logs.internal_topics.PlacedLogs)

    def has_replicas(self, incarnation: str, number: int) -> bool:
        """Whether a partition is placed on nodes of the cluster, and so what is kept beside it."""
        place = self._places.get(partition_key(incarnation, number))
        return place is not None and place.whole.definition.home is None

    def has_side_log(self, incarnation: str, number: int, topic: str) -> bool:
        """Whether a partition with replicas has a side log of this name."""
        return topic in self._places[partition_key(incarnation, number)].side_logs

    def open_side_log(self, incarnation: str, number: int, topic: str) -> PartitionLog:
        """Return a side log of a partition that this node leads. Raises StorageError."""
        return self._places[partition_key(incarnation, number)].side_logs.use(topic)

    def led_changed(self, key: str) -> None:
        """Note that this node leads a partition, is ready to, or leads it no more."""
        place = self._places.get(key)
        if place is not None:
            place.review()

    def led_figures(self) -> Iterator[tuple[str, QueueFigures]]:
        """Yield the figures of the partitions that this node leads, by key."""
        for key, place in self._places.items():
            part = place.part
            if isinstance(part, OpenQueue):
                yield key, figures_of(part)

    def note_figures(self, key: str, figures: QueueFigures) -> None:
        """Note figures of a partition that another node leads."""
        place = self._places.get(key)
        if place is not None and isinstance(place.part, RemotePartition):
            place.part.note_figures(figures)

    def log_of(self, key: str) -> PartitionLog | None:
        """Return this node's log of a partition (see LogsOfPartitions)."""
        place = self._places.get(key)
        return None if place is None else place.log

    def _changed(self, _sequence: int, changes: Sequence[KeyChange]) -> None:
        for change in changes:
            key = change.key.removeprefix(PARTITIONS_PREFIX)
            place = None if key == change.key else self._places.get(key)
            state = None if place is None else state_of(self._services.coordinator, key)
            if place is not None and state is not None:
                try:
                    place.follow(state)
                except Exception:  # one partition's fault is not another's
                    logger.exception("%s is not followed, which is a fault of Leveret", key)

    async def pause(self, key: str) -> PausedPartition | None:
        """Serve nobody in a partition that is led here (see operating.hand_overs.LedPartitions)."""
        replicator = self._services.replicator
        while (place := self._places.get(key)) is not None and (led := replicator.led(key)):
            paused = place.pause() if led.is_ready else None
            if paused is not None:
                return paused
            await asyncio.sleep(POLL_SECONDS)
        return None

    async def serve(self, stream: LinkStream) -> None:
        """Serve another node's clients: the handler of forwarding streams."""
        try:
            opening = StreamOpening.parse(stream.opening)
        except ForwardingMessageError as error:
            logger.warning("node %d: %s", stream.peer.node, error)
            stream.fail(MALFORMED, str(error))
            return
        place = self._places.get(opening.key)
        if place is None:
            stream.fail(NOT_LEADING, "this node does not know the partition")
        else:
            await place.serve(stream, opening)
