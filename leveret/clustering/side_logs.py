"""Side logs of one partition on this node: they have its replicas, and its leader.

What a queue keeps beside a partition, its retry topic for example, is in logs of their own. The
partition's state names them, so that every replica has them; a leader creates one on demand.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.errors import LeveretError, StorageError
from leveret.features.celery.eta_hold import eta_topic
from leveret.features.delay.delayed_queue import waiting_topic
from leveret.features.retry.retrying import retry_topic
from leveret.replication.replica import PartitionReplica, side_log_key

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator

    from leveret.cluster.partition_state import PartitionState
    from leveret.cluster.replication.leader import ReplicationLimits
    from leveret.replication.led import LedPartition
    from leveret.replication.replicator import Replicator
    from leveret.storage.log import PartitionLog

    Spawn = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]

__all__ = ["PartitionSideLogs", "SideLogOwner", "side_log_names"]

logger = logging.getLogger(__name__)


def side_log_names(topic: str, number: int) -> tuple[str, ...]:
    """Return the names of all side logs that a partition of a queue's topic may have."""
    return retry_topic(topic, number), eta_topic(topic, number), waiting_topic(topic, number)


class SideLogOwner(Protocol):
    """The partition that side logs belong to."""

    key: str

    @property
    def limits(self) -> ReplicationLimits:
        """Limits of the partition's replicas."""
        ...

    def open_side_log(self, name: str) -> PartitionLog:
        """Open a log. Raises StorageError."""
        ...

    def has_side_log(self, name: str) -> bool:
        """Whether there is such a log on the disk."""
        ...

    def side_log_deleted(self) -> None:
        """Note that a log is deleted, so that one of the same name can be opened."""
        ...


class PartitionSideLogs:
    """Side logs of a partition on one node."""

    def __init__(self, owner: SideLogOwner, replicator: Replicator, spawn: Spawn) -> None:
        self._owner = owner
        self._replicator = replicator
        self._spawn = spawn
        self._logs: dict[str, PartitionLog] = {}
        self._used: set[str] = set()  # by the queue, which this node leads
        self._going: set[str] = set()  # being deleted

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __contains__(self, name: str) -> bool:
        return name in self._logs

    # -- replicas

    def delete_left(self, state: PartitionState, names: tuple[str, ...]) -> None:
        """Delete those of these that an earlier run has left, and the state does not name.

        Nothing in them was committed: their leader ended before the coordinator knew of them.
        """
        for name in names:
            if name not in state.side_logs and self._owner.has_side_log(name):
                try:
                    self._delete(name, self._owner.open_side_log(name))
                except StorageError as error:
                    logger.warning("%s is not deleted: %s", self._key(name), error)

    def follow(self, state: PartitionState) -> None:
        """Have a replica of all that the state names."""
        for name in sorted(state.side_logs.difference(self._logs)):
            try:
                self._have(name)
            except StorageError as error:
                logger.warning("no replica of %s: %s", self._key(name), error)

    def tidy(self, state: PartitionState) -> None:
        """Delete those that the state does not name: nothing in them was committed."""
        for name in set(self._logs) - state.side_logs:
            self._drop(name)

    def drop(self) -> None:
        """Delete all: the partition is deleted, or its replica has moved to another node."""
        for name in list(self._logs):
            self._drop(name)

    def _key(self, name: str) -> str:
        return side_log_key(self._owner.key, name)

    def _have(self, name: str) -> PartitionLog:
        """Open a replica. Raises StorageError."""
        if name in self._going:
            raise StorageError(f"the last {self._key(name)} is being deleted")
        log = self._logs[name] = self._owner.open_side_log(name)
        owner, reopen = self._owner, partial(self._reopen, name)
        self._replicator.add(
            PartitionReplica(self._key(name), owner.key, log, owner.limits, reopen, name)
        )
        return log

    async def _reopen(self, name: str) -> PartitionLog:
        """Close a log, which has failed, and open it again (see PartitionReplica)."""
        await self._logs[name].close()
        log = self._logs[name] = self._owner.open_side_log(name)
        return log

    def _drop(self, name: str) -> None:
        self._replicator.remove(self._key(name))
        log = self._logs.pop(name)
        if name not in self._used:
            self._delete(name, log)

    def _delete(self, name: str, log: PartitionLog) -> None:
        self._going.add(name)
        self._spawn(self._deleted(name, log))

    async def _deleted(self, name: str, log: PartitionLog) -> None:
        try:
            await log.delete()
        except LeveretError as error:
            logger.warning("%s is not deleted: %s", self._key(name), error)
        self._going.discard(name)
        self._owner.side_log_deleted()

    # -- on the node that leads

    def led(self, state: PartitionState | None) -> list[LedPartition] | None:
        """Return what this node leads of all that the state names; None if one is missing."""
        named = () if state is None else state.side_logs
        led = [self._replicator.led(self._key(each)) for each in named]
        found = [each for each in led if each is not None]
        return found if len(found) == len(led) else None

    def use(self, name: str) -> PartitionLog:
        """Return a log, which is created on demand, to the queue. Raises StorageError.

        Whoever uses it deletes it with the queue.
        """
        log = self._logs.get(name)
        if log is None:
            log = self._have(name)
        if self._replicator.led(self._key(name)) is None:
            raise StorageError(f"this node does not lead {self._key(name)}")
        self._used.add(name)
        return log

    def end_use(self) -> None:
        """Note that the queue has left its logs to another leader."""
        self._used.clear()
