"""Owners of exclusive queues, which are connections of any node, and homes of transient queues."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from leveret.cluster.partition_state import PartitionState
from leveret.clustering.definitions.placing import partition_prefix
from leveret.ports.definitions import Home

if TYPE_CHECKING:
    from leveret.ports.coordination import Coordinator
    from leveret.ports.definitions import QueueDefinition

__all__ = ["QueueOwners", "RemoteOwner"]


class RemoteOwner:
    """Stands for a connection of another node, or of an earlier session of this one."""

    __slots__ = ("__weakref__", "home")

    def __init__(self, home: Home) -> None:
        self.home = home

    def __str__(self) -> str:
        return self.home.connection


class QueueOwners:
    """`QueueHomes` of a node of a cluster. Equal homes have the same owner, as long as it is used.

    Connections are told by their names.
    """

    def __init__(self, coordinator: Coordinator, node: int) -> None:
        self._coordinator = coordinator
        self._node = node
        self._owners: WeakValueDictionary[Home, object] = WeakValueDictionary()

    def is_here(self, home: Home) -> bool:
        """Whether a home is this process."""
        return (home.node, home.session) == (self._node, self._coordinator.session)

    def home_of(self, owner: object | None) -> Home:
        """Return the home of a queue that is declared here (see QueueHomes).

        The connection is found again when the queue is there.
        """
        if isinstance(owner, RemoteOwner):
            return owner.home
        name = "" if owner is None else str(owner)
        home = Home(self._node, self._coordinator.session, name)
        if owner is not None:
            self._owners[home] = owner
        return home

    def owner(self, home: Home) -> object:
        """Return the owner that has a home: the connection where it is one of this node."""
        owner = self._owners.get(home)
        if owner is None:
            owner = self._owners[home] = RemoteOwner(home)
        return owner

    def owner_of(self, definition: QueueDefinition) -> object | None:
        """Return the owner of an exclusive queue (see QueueHomes)."""
        if not definition.exclusive or definition.home is None:
            return None
        return self.owner(definition.home)

    def leads(self, definition: QueueDefinition, partition: int) -> bool:
        """Whether a queue lives here, or the partition is led here (see QueueHomes)."""
        if definition.home is not None:
            return self.is_here(definition.home)
        entry = self._coordinator.entries.get(f"{partition_prefix(definition)}{partition}")
        return entry is not None and PartitionState.from_bytes(entry.value).leader == self._node
