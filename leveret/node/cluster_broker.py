"""A broker as one of a cluster: its queues are placed, its definitions are shared with others.

It is imported only where the setting `cluster` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.clustering.definitions.sharing import SharedDefinitions
from leveret.clustering.figures import ClusterQueues
from leveret.clustering.http_forwarding import HttpForwarding
from leveret.clustering.node_alarms import ClusterAlarms
from leveret.clustering.node_clocks import ClusterClocks
from leveret.clustering.operating.administration import OperatedCluster
from leveret.clustering.operating.hand_overs import HandOvers
from leveret.clustering.operating.mover import MoverSettings, PartitionMover
from leveret.clustering.placement import PartitionPlacement, PlacementServices
from leveret.clustering.schedules import LedSchedules
from leveret.clustering.transactions.cluster_transactions import ClusterTransactions
from leveret.clustering.transactions.inquiring import PartsToAsk
from leveret.clustering.transactions.partitions import TransactionServices
from leveret.clustering.transactions.placing import (
    DECISIONS_KEY,
    DECISIONS_REPLICATION,
    DecisionPlacing,
)
from leveret.core.blocked_publishers import BlockedPublishers
from leveret.core.settings.replication import replication_of
from leveret.mgmt_ui.operations.access import create_defaults
from leveret.mgmt_ui.operations.dispatcher import perform_for_another
from leveret.ports.cluster_figures import NodeCondition
from leveret.ports.link_kinds import ASK_OUTCOME, FORWARD
from leveret.replication.cluster_definitions import ClusterDefinitions
from leveret.storage.definitions_copy import copy_definitions, durable_only

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.broker.broker import Broker
    from leveret.core.definitions.administration import Administration
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.settings.policies import Policies
    from leveret.core.settings.replication import Replication
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.mgmt_ui.operations.places import CommandForwarding
    from leveret.node.cluster import ClusterMembership
    from leveret.node.process import Process
    from leveret.node.stores import Stores
    from leveret.ports.definitions import QueueDefinition

__all__ = ["ClusterParts"]


logger = logging.getLogger(__package__)

LEAVE_SECONDS_MAX: Final = 8.0  # less than until preferred leaders lead again
FIRST_USER_SECONDS_MAX: Final = 10.0
FIRST_USER_POLL_SECONDS: Final = 0.02


@dataclass(slots=True)
class ClusterParts:
    """Parts of a broker that only one of a cluster has, made before it: see `begin`."""

    membership: ClusterMembership
    definitions: ClusterDefinitions
    placement: PartitionPlacement
    transactions: ClusterTransactions
    blocked_publishers: BlockedPublishers
    figures: ClusterQueues
    hand_overs: HandOvers
    mover: PartitionMover
    http: HttpForwarding
    shared: SharedDefinitions | None = None
    operated: OperatedCluster | None = None
    alarms: ClusterAlarms | None = None
    clocks: ClusterClocks | None = None

    @classmethod
    def make(cls, process: Process, stores: Stores, membership: ClusterMembership) -> ClusterParts:
        """Make what the broker needs; other nodes may be led to its partitions from now on."""
        publishers, parts_to_ask = BlockedPublishers(), PartsToAsk()
        placement = PartitionPlacement(
            PlacementServices(
                membership.node,
                membership.coordinator,
                membership.links,
                membership.replicator,
                stores.topics,
                process.configuration.durability,
                publishers,
                process.spawn,
                parts_to_ask,
            )
        )
        services = TransactionServices(
            membership.node,
            membership.coordinator,
            membership.links,
            membership.replicator,
            stores.topics,
            process.configuration.durability,
            process.clock,
            process.spawn,
            process.report,
        )
        transactions = ClusterTransactions(services, placement, parts_to_ask)
        membership.streams[FORWARD] = placement.serve
        membership.requests[ASK_OUTCOME] = transactions.serve

        def leadership_changed(key: str) -> None:
            placement.led_changed(key)
            transactions.led_changed(key)

        membership.leadership_changed = leadership_changed
        definitions = ClusterDefinitions(membership.coordinator, process.spawn)
        original = process.configuration.database_path

        async def write_definitions(made: Path) -> None:
            durable = durable_only(await definitions.known())
            await copy_definitions(durable, original, made, process.spawn)

        stores.snapshots.write_definitions = write_definitions
        figures = ClusterQueues(
            membership.node,
            membership.coordinator,
            membership.links,
            placement=placement,
            table=membership.table,
        )
        membership.requests.update(figures.requests)
        hand_overs = HandOvers(
            membership.node,
            membership.coordinator,
            membership.links,
            membership.replicator,
            (placement, transactions.partitions),
        )
        membership.requests.update(hand_overs.requests)
        mover = PartitionMover(
            membership.coordinator,
            membership.table,
            hand_overs,
            MoverSettings(
                moves_at_once=process.configuration.cluster_moves_max,
                replace_seconds=process.configuration.cluster_replace_after_ms / 1000,
            ),
            process.spawn,
        )
        http = HttpForwarding(membership.node, membership.links, process.spawn)
        membership.streams.update(http.streams)
        return cls(
            membership,
            definitions,
            placement,
            transactions,
            publishers,
            figures,
            hand_overs,
            mover,
            http,
        )

    def share(
        self,
        process: Process,
        broker: Broker,
        administration: Administration,
        policies: Policies,
    ) -> None:
        """Share the definitions of a broker that has not restored them yet."""
        membership = self.membership
        self.shared = SharedDefinitions(
            membership.coordinator,
            membership.node,
            self.definitions,
            broker,
            administration=administration,
            spawn=process.spawn,
            replicas_of=partial(_replicas_of, policies),
            create_defaults=partial(_create_defaults, administration),
        )
        self.placement.consumer_left = partial(_left_by_consumer, broker)
        membership.requests.update(self.shared.requests)
        membership.messages.update(self.shared.messages)
        self.alarms = ClusterAlarms(
            membership.node,
            membership.coordinator,
            membership.links,
            broker.alarms,
            process.clock.monotonic_ms,
        )
        membership.messages.update(self.alarms.messages)
        self.clocks = ClusterClocks(
            membership.node, membership.coordinator, membership.links, process.clock
        )
        membership.requests.update(self.clocks.requests)
        delayed = broker.delayed
        assert delayed.queues is not None, "the node is one of a cluster"
        schedules = LedSchedules(membership.links, delayed.queues, delayed.schedules)
        delayed.commands.elsewhere = schedules
        membership.requests.update(schedules.requests)
        self.operated = OperatedCluster(
            membership.node,
            membership.coordinator,
            membership.links,
            table=membership.table,
            hand_overs=self.hand_overs,
            mover=self.mover,
            queues=broker.all_queues,
            replication=partial(_replication_of, policies),
            others={DECISIONS_KEY.rstrip("/"): DECISIONS_REPLICATION},
            condition_of=self._condition_of,
        )

    def _condition_of(self, node: int) -> NodeCondition:
        """Return what a node has told of itself."""
        assert self.alarms is not None, "the definitions are shared"
        assert self.clocks is not None, "likewise"
        offset = 0.0 if node == self.membership.node else self.clocks.offsets.get(node)
        return NodeCondition(self.alarms.low_of(node), offset)

    @property
    def forwarding(self) -> CommandForwarding:
        """Forwarding of commands that another node must perform."""
        assert self.shared is not None, "the definitions are shared"
        return self.shared.commands

    async def begin(self, process: Process, context: AdminContext) -> None:
        """Take part: follow others, lead, and change definitions if this node is the controller.

        Clients may come afterwards: where the cluster is new, it has its first user by then.
        """
        assert self.shared is not None, "the definitions are shared"
        self.shared.commands.perform_here = partial(perform_for_another, context)
        self.membership.start()
        coordinator, table = self.membership.coordinator, self.membership.table
        self.transactions.start(DecisionPlacing(coordinator, table))
        self.shared.start(self.membership.links)
        process.spawn(self.mover.run())
        assert self.alarms is not None, "the definitions are shared"
        assert self.clocks is not None, "likewise"
        process.spawn(self.alarms.run())
        process.spawn(self.clocks.run())
        with contextlib.suppress(TimeoutError):  # others may have users that it knows nothing of
            async with asyncio.timeout(FIRST_USER_SECONDS_MAX):
                while context.administration.is_first_start:  # noqa: ASYNC110  # at the start
                    await asyncio.sleep(FIRST_USER_POLL_SECONDS)

    async def leave(self) -> None:
        """Hand over what this node leads, because it stops; the rest is elected elsewhere."""
        handed = await self.hand_overs.leave(LEAVE_SECONDS_MAX)
        if handed:
            logger.info("%d partitions were handed over to other nodes", handed)


def _left_by_consumer(broker: Broker, queue: DeclaredQueue) -> None:
    vhost = broker.vhosts.get(queue.definition.vhost)
    if vhost is not None and queue.definition.auto_delete and not queue.consumer_count:
        broker.left_by_consumers(vhost, queue)


def _replicas_of(policies: Policies, queue: QueueDefinition) -> int:
    return _replication_of(policies, queue).replicas


def _replication_of(policies: Policies, queue: QueueDefinition) -> Replication:
    policy = policies.for_queue(
        queue.vhost, queue.name, queue.arguments.get("x-queue-type", "classic")
    )
    return replication_of(queue.arguments, policy.definition)


async def _create_defaults(administration: Administration) -> None:
    await create_defaults(administration)
    await administration.store.flush()
