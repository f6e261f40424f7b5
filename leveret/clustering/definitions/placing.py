"""States of the partitions of new queues: on which nodes their replicas are, and who leads first.

They are written together with the queue's definition, and removed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.cluster.assignment import NodeLoad, assign
from leveret.cluster.controller import elect
from leveret.cluster.partition_state import Member, PartitionState
from leveret.clustering.operating.states import racks_for_new
from leveret.core.settings.partitioning import layout_of
from leveret.replication.replicator import PARTITIONS_PREFIX, registrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.ports.coordination import Coordinator
    from leveret.ports.definitions import QueueDefinition

__all__ = ["PartitionPlacing", "partition_prefix"]


def partition_prefix(queue: QueueDefinition) -> str:
    """Return what the coordinator's keys of a queue's partitions begin with."""
    return f"{PARTITIONS_PREFIX}{queue.incarnation}/"


def no_side_logs(_queue: QueueDefinition, _number: int) -> frozenset[str]:
    """Return no side logs: a new queue has none."""
    return frozenset()


class PartitionPlacing:
    """`CompanionKeys` of queues: the states of their partitions.

    `replicas_of(definition)` says how many replicas a queue's partitions have;
    `side_logs_of(definition, number)` what is there already beside a partition.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        replicas_of: Callable[[QueueDefinition], int],
        side_logs_of: Callable[[QueueDefinition, int], frozenset[str]] = no_side_logs,
    ) -> None:
        self._coordinator = coordinator
        self._replicas_of = replicas_of
        self._side_logs_of = side_logs_of
        self._load: NodeLoad | None = None  # read from the coordinator when it is asked for
        coordinator.follow_nodes(self.forget)
        coordinator.follow_controller(self.forget)

    def forget(self) -> None:
        """Count the replicas of each node anew: it may have changed without us."""
        self._load = None

    def prefix_of(self, queue: QueueDefinition) -> str:
        """Return what the keys of a queue begin with (see CompanionKeys)."""
        return partition_prefix(queue)

    def of_queue(self, queue: QueueDefinition, known: Iterable[str]) -> Mapping[str, bytes | None]:
        """Return what is to be changed of the partitions of a queue (see CompanionKeys).

        While no node is registered, none are made; the next change of the queue, or the next
        controller, makes them then.
        """
        if queue.home is not None:
            return {}
        prefix, there = partition_prefix(queue), set(known)
        wanted = [f"{prefix}{number}" for number in layout_of(queue).present]
        missing = [key for key in wanted if key not in there]
        changes: dict[str, bytes | None] = dict.fromkeys(there.difference(wanted))
        if changes:
            self.forget()
        racks = racks_for_new(self._coordinator)
        if missing and racks:
            placed = assign(len(missing), self._replicas_of(queue), racks, self._known_load())
            for key, replicas in zip(missing, placed, strict=True):
                side_logs = self._side_logs_of(queue, int(key.removeprefix(prefix)))
                changes[key] = self._first_state(replicas, side_logs).to_bytes()
        return changes

    def _known_load(self) -> NodeLoad:
        if self._load is None:
            entries = self._coordinator.entries
            self._load = NodeLoad.of(
                PartitionState.from_bytes(entries[key].value)
                for key in entries.keys(PARTITIONS_PREFIX)
            )
        return self._load

    def _first_state(self, replicas: tuple[int, ...], side_logs: frozenset[str]) -> PartitionState:
        """Return the first state of a partition, of which all replicas are in sync."""
        nodes = registrations(self._coordinator)
        members = frozenset(Member(node, nodes[node].incarnation) for node in replicas)
        state = PartitionState(replicas, members, side_logs=side_logs)
        return elect(state, nodes, survives_power_loss=True) or state
