"""Transactions of a node of a cluster: what decides about them, and what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.cluster.transactions.numbers import is_of_cluster
from leveret.clustering.transactions.decider import ClusterDecider
from leveret.clustering.transactions.inquiring import NodeLog, PartInquirer
from leveret.clustering.transactions.partitions import DecisionPartitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.clustering.transactions.inquiring import PartsToAsk
    from leveret.clustering.transactions.participants import Participant
    from leveret.clustering.transactions.partitions import TransactionServices
    from leveret.clustering.transactions.placing import DecisionPlacing
    from leveret.storage.log import PartitionLog

__all__ = ["ClusterTransactions", "LogsOfPartitions"]


class LogsOfPartitions(Protocol):
    """Logs of the partitions that a node serves."""

    def log_of(self, key: str) -> PartitionLog | None:
        """Return this node's log of a partition, None if it has none."""
        ...


class ClusterTransactions:
    """Decisions and questions of one node; `decider` is for its atomic writes."""

    def __init__(
        self, services: TransactionServices, logs: LogsOfPartitions, watched: PartsToAsk
    ) -> None:
        self._services = services
        self._logs = logs
        self._watched = watched
        services.topics.leave_to_others(is_of_cluster)
        self.partitions = DecisionPartitions(services, self._parts_of)
        self.partitions.open()  # as queues are opened, before somebody asks which logs are not
        self.decider = ClusterDecider(services, self.partitions)
        self._inquirer = PartInquirer(watched, self.partitions)
        self.serve = self.partitions.serve
        self.led_changed = self.partitions.led_changed

    def start(self, placing: DecisionPlacing) -> None:
        """Take part, once this node's logs are open; with the controller's duty, if it is it."""
        services = self._services
        self.partitions.start()
        for log in list(services.topics.logs()):
            if not log.is_replicated and log.undecided:
                self._watched.add(NodeLog(log, services.node))
        services.spawn(placing.run())
        services.spawn(self._inquirer.run())

    def _parts_of(self, participant: Participant, transactions: Sequence[int]) -> list[int] | None:
        """Return those of which a participant of this node has a part; None: it cannot say."""
        if not self._may_say(participant):
            return None
        if participant.node is not None and not participant.log and not participant.key:
            return [each for each in transactions if each in self.decider.driving]
        log = self._log_of(participant)
        if log is None:
            return [] if participant.key and participant.node is not None else None
        return [each for each in transactions if log.has_part(each)]

    def _may_say(self, participant: Participant) -> bool:
        services = self._services
        if participant.node is None:
            role = services.replicator.led(participant.key)
            epoch = 0 if role is None or not role.is_ready else role.machine.epoch
            return epoch >= participant.epoch > 0
        is_here = participant.node == services.node
        is_ours = bool(participant.log) or participant.session == services.coordinator.session
        return is_here and is_ours

    def _log_of(self, participant: Participant) -> PartitionLog | None:
        if participant.log:
            key = participant.log.encode()
            return next((log for log in self._services.topics.logs() if log.key == key), None)
        return self._logs.log_of(participant.key)
