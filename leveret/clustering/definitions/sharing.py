"""Definitions of a cluster on one node: everything about them, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.clustering.definitions.applying import NodeDefinitions
from leveret.clustering.definitions.asking import ChangeTimes, ClusterChanges
from leveret.clustering.definitions.commands import ClusterCommands
from leveret.clustering.definitions.following import DefinitionRole
from leveret.clustering.definitions.owners import QueueOwners
from leveret.clustering.definitions.placing import PartitionPlacing
from leveret.clustering.definitions.visibility import DefinitionVisibility
from leveret.ports.link_kinds import (
    CHANGE_DEFINITIONS,
    DEFINITIONS_APPLIED,
    RUN_COMMAND,
    RUN_COMMAND_AT_LEADER,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Mapping

    from leveret.broker.broker import Broker
    from leveret.core.definitions.administration import Administration
    from leveret.links.accepted import MessageHandler, RequestHandler
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator
    from leveret.ports.definitions import QueueDefinition
    from leveret.replication.cluster_definitions import ClusterDefinitions

__all__ = ["SharedDefinitions"]

CHANGE_TIMES = ChangeTimes()


class SharedDefinitions:
    """Definitions that a node shares with the others of its cluster.

    It is made before the broker restores what `store` has, and started after that: then clients may
    come. `replicas_of(definition)` says how many replicas the partitions of a new queue have;
    `create_defaults()` creates the definitions of a cluster that has none.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        node: int,
        store: ClusterDefinitions,
        broker: Broker,
        *,
        administration: Administration,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        replicas_of: Callable[[QueueDefinition], int],
        create_defaults: Callable[[], Coroutine[object, object, None]],
        times: ChangeTimes = CHANGE_TIMES,
    ) -> None:
        self._administration = administration
        self._spawn = spawn
        self._create_defaults = create_defaults
        self._broker = broker
        self._store = store
        self.node = NodeDefinitions(broker, administration)
        owners = QueueOwners(coordinator, node)
        self._placing = PartitionPlacing(coordinator, replicas_of)
        self.role = DefinitionRole(coordinator, store, self.node, broker, owners)
        self._visibility = DefinitionVisibility(coordinator, node)
        self.role.advanced = self._visibility.advanced
        coordinator.follow_controller(self._visibility.tell)
        self.changes = ClusterChanges(
            broker,
            self.role,
            owners,
            coordinator,
            spawn,
            visibility=self._visibility,
            times=times,
        )
        self.commands = ClusterCommands(self.role, coordinator)
        self.role.begun = self._begun
        self.role.unowned = self.changes.remove_queue
        store.companions = self._placing
        store.forward = self.changes.forward
        broker.changes, broker.homes = self.changes, owners

    @property
    def requests(self) -> Mapping[int, RequestHandler]:
        """Handlers of other nodes' requests, by their kinds."""
        return {
            CHANGE_DEFINITIONS: self.changes.serve,
            RUN_COMMAND: self.commands.serve,
            RUN_COMMAND_AT_LEADER: self.commands.serve_leader,
        }

    @property
    def messages(self) -> Mapping[int, MessageHandler]:
        """Handlers of other nodes' messages, by their kinds."""
        return {DEFINITIONS_APPLIED: self._visibility.told}

    def start(self, links: Links) -> None:
        """Begin to follow, or to change, the definitions."""
        self._visibility.links = links
        self.changes.links = self.commands.links = links
        self.role.start()

    def _begun(self) -> None:
        """As the controller, complete what another one, or none, has left."""
        if self._administration.is_first_start:
            self._spawn(self._create_defaults())
        self._broker.chores.begin(self._store.complete(self._broker.all_queues()))
